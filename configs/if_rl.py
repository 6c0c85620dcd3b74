"""IF-RL: instruction following with binary verifiers (paper 2.5).

    python launch/run.py --config configs/if_rl.py:tiny --workdir runs/if_rl --config.init=CHECKPOINT

A truncated answer gets reward 0 and stays in the loss; groups whose rewards are all equal are dropped
and refilled (dynamic filtering). `nano_30b_a3b`: 180 steps on the released 45,879 prompts.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common, grpo

DIFFERENCES = {"overlong": "zero", "dynamic_filtering": True}


def stage(**changes):
    return grpo.stage(**(DIFFERENCES | changes))


def stage_micro():
    return grpo.stage_micro(**DIFFERENCES)


def stage_nano():
    config = grpo.stage_nano(steps=180, **DIFFERENCES)
    config.data = ConfigDict({"if_rl": common.jsonl("data/IF-RL/train.jsonl")})
    return config


def get_config(arg=None):
    block = common.choose(arg, {"tiny": stage, "micro": stage_micro, "nano_30b_a3b": stage_nano})
    return common.run(arg, {"if_rl": block()})
