"""The cascade: SFT, RL one domain at a time, then distillation of what a stage lost (paper 2.1, 3).

    python launch/run.py --config configs/cascade.py:tiny --workdir runs/tiny     (make cascade)

`tiny` (the default) and `micro` run on two CPU cores in minutes; README has the table of what rises,
what falls and what MOPD wins back. `nano_30b_a3b` holds the paper's numbers.
"""

from nemocascade_jax.configs import common, if_rl, mopd, multi_rl, sft

STAGES = {"sft": sft, "if_rl": if_rl, "multi_rl": multi_rl, "mopd": mopd}


def get_config(arg=None):
    block = common.choose(
        arg, {"tiny": "stage", "micro": "stage_micro", "nano_30b_a3b": "stage_nano"}
    )
    return common.run(arg, {name: getattr(file, block)() for name, file in STAGES.items()})
