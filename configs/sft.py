"""Supervised fine-tuning on conversations, packed (paper 1.2).

    python launch/run.py --config configs/sft.py:micro --workdir runs/sft

`micro` and `tiny` train the small hybrids on generated demonstrations of four domains, by writers who
slip, in a minute or two on two CPU cores; no domain comes out above 0.8. `nano_30b_a3b` is the
paper's SFT: 33,000 steps of 64 packed rows of 262,144 tokens, peak 5e-5, cosine over 40,000 steps,
AdamW .9/.98, decay 0.1.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common


def stage(**changes):
    """The block of an SFT stage for the tiny model."""
    config = ConfigDict()
    config.kind = "sft"
    config.parent = None
    config.steps = 900
    config.microbatches = 1
    config.data = common.rows_of(*common.DOMAINS, count=4096)
    config.data.instruction_following.weight = 1.5  # its answers are the hardest to learn
    config.packing = ConfigDict({"row_length": 160, "rows_per_step": 16, "overlong": "refuse"})
    config.balance_coef = 0.0  # a few experts a layer need no balancing
    config.bias_update_rate = 0.0
    config.optim = common.adamw(
        lr=6e-3, b2=0.98, weight_decay=0.1, warmup_from=6e-4, schedule="cosine"
    )
    config.checkpoint = ConfigDict({"every_steps": 900, "keep": 2})
    config.update(changes)
    return config


def stage_micro():
    """Prompts with a single constraint, for a model too small for several."""
    rows = common.rows_of(*common.DOMAINS, count=2048, instruction_following="instruction_single")
    return stage(steps=400, data=rows, checkpoint=ConfigDict({"every_steps": 400, "keep": 2}))


def stage_nano():
    config = stage(steps=33_000)
    config.data = ConfigDict({"cascade2": common.jsonl("data/cascade2_sft.jsonl")})
    config.packing = ConfigDict({"row_length": 262_144, "rows_per_step": 64, "overlong": "drop"})
    config.balance_coef = 1e-4  # as the published pre-training; off in RL and MOPD, which lack it
    config.bias_update_rate = 1e-3
    config.optim = common.adamw(
        lr=5e-5, b2=0.98, weight_decay=0.1, warmup_steps=200, schedule="cosine", min_lr=5e-6
    )
    config.optim.warmup_from = 0.0
    config.checkpoint = ConfigDict({"every_steps": 500, "keep": 4})
    return config


def get_config(arg=None):
    block = common.choose(arg, {"tiny": stage, "micro": stage_micro, "nano_30b_a3b": stage_nano})
    return common.run(arg, {"sft": block()})
