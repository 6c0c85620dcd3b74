"""GRPO with one update a batch: no ratio, no clip, no KL (paper 2.2, 2.3).

    python launch/run.py --config configs/grpo.py:tiny --workdir runs/grpo --config.init=CHECKPOINT

Complete and domain-free; a domain file (if_rl.py) starts from `stage` and states its differences.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common


def stage(**changes):
    """The block of a GRPO stage for the tiny model."""
    config = ConfigDict()
    config.kind = "grpo"
    config.parent = None
    config.steps = 30
    config.microbatches = 1
    config.prompts_per_step = 32
    config.group_size = 8
    config.data = common.rows_of("instruction_following", count=8192)
    config.sampling = common.sampling()
    config.turns = None
    config.advantage = "group"
    config.denominator = "global"
    config.overlong = "mask"
    config.dynamic_filtering = False
    config.refill_batches = 10
    config.max_failed_share = 0.2
    config.max_sampler_gap = 1e-4  # float32; None for bfloat16 compute
    config.kl_coef = 0.0
    config.reward = ConfigDict({"workers": 1, "cpu_s": 2.0, "memory_mb": 1024})
    config.optim = common.adamw(lr=1e-3, warmup_from=1e-4, frozen=("router", "correction_bias"))
    config.checkpoint = ConfigDict({"every_steps": 30, "keep": 2})
    config.rollouts_keep = "all"
    config.update(changes)
    return config


def stage_micro(**changes):
    """Prompts with a single constraint, for a model too small for several."""
    config = stage(prompts_per_step=16)
    config.data = common.rows_of(
        "instruction_following", count=2048, instruction_following="instruction_single"
    )
    config.update(changes)
    return config


def stage_nano(**changes):
    """128 prompts x 16 samples, 49,152 new tokens, 3e-6 (paper 2.3)."""
    config = stage(prompts_per_step=128, group_size=16, microbatches=16, max_sampler_gap=None)
    config.sampling = common.sampling(
        max_prompt_tokens=8192, max_completion_tokens=49_152, thinking=True
    )
    config.optim = common.adamw(frozen=("router", "correction_bias"))
    config.reward.workers = 16
    config.update(changes)
    return config


def get_config(arg=None):
    block = common.choose(arg, {"tiny": stage, "micro": stage_micro, "nano_30b_a3b": stage_nano})
    return common.run(arg, {"grpo": block()})
