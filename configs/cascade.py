"""The cascade: SFT, then RL one domain at a time (paper 2.1).

    python launch/run.py --config configs/cascade.py:tiny --workdir runs/tiny     (make cascade)

`tiny` (the default) and `micro` run on two CPU cores in minutes and raise held-out instruction
following; README has the table. `nano_30b_a3b` holds the paper's numbers.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common, if_rl, sft


def get_config(arg=None):
    stages = common.choose(
        arg,
        {
            "tiny": {"sft": sft.stage(), "if_rl": if_rl.stage()},
            "micro": {"sft": sft.stage_micro(), "if_rl": if_rl.stage_micro()},
            "nano_30b_a3b": {"sft": sft.stage_nano(), "if_rl": if_rl.stage_nano()},
        },
    )
    config = sft.get_config(arg)
    config.order = ("sft", "if_rl")
    config.stages = ConfigDict(stages)
    return config
