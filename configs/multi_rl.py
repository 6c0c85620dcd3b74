"""Multi-domain RL: multiple choice and structured output together (paper 2.6).

    python launch/run.py --config configs/multi_rl.py:tiny --workdir runs/multi --config.init=CHECKPOINT

Domains are trained together when their answers are of similar length and cost the same to check.
`nano_30b_a3b`: 70 steps on the released 18,147 prompts (about 55 % multiple choice, 30 % tool use,
15 % structured output); truncated answers are masked.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common, grpo

DIFFERENCES = {"overlong": "mask", "dynamic_filtering": True}


def stage(**changes):
    config = grpo.stage(**DIFFERENCES)
    config.data = common.rows_of("multiple_choice", "structured_output", count=8192)
    config.update(changes)
    return config


def stage_micro():
    config = grpo.stage_micro(steps=15, **DIFFERENCES)
    config.data = common.rows_of("multiple_choice", "structured_output", count=2048)
    return config


def stage_nano():
    config = grpo.stage_nano(steps=70, overlong="mask")
    config.turns = ConfigDict({"max_turns": 6, "turn_tokens": 8192})  # of the workplace rows
    config.data = ConfigDict({"multi_domain": common.jsonl("data/multi-domain-RL/train.jsonl")})
    return config


def get_config(arg=None):
    block = common.choose(arg, {"tiny": stage, "micro": stage_micro, "nano_30b_a3b": stage_nano})
    return common.run(arg, {"multi_rl": block()})
