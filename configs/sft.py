"""Supervised fine-tuning on conversations, packed (paper 1.2).

    python launch/run.py --config configs/sft.py:micro --workdir runs/sft

`micro` and `tiny` train the small hybrids on generated demonstrations in seconds on two CPU cores and
leave instruction following at 0.3 to 0.6. `nano_30b_a3b` is the paper's SFT: 33,000 steps of 64
packed rows of 262,144 tokens, peak 5e-5, cosine over 40,000 steps, AdamW .9/.98, decay 0.1.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common, models


def stage(**changes):
    """The block of an SFT stage for the tiny model."""
    config = ConfigDict()
    config.kind = "sft"
    config.parent = None
    config.steps = 200
    config.microbatches = 1
    config.data = ConfigDict({"instruction": common.generated("instruction", count=4096)})
    config.packing = ConfigDict({"row_length": 128, "rows_per_step": 32, "overlong": "refuse"})
    config.optim = common.adamw(lr=3e-3, b2=0.98, weight_decay=0.1, warmup_from=3e-4)
    config.checkpoint = ConfigDict({"every_steps": 50, "keep": 2})
    config.update(changes)
    return config


def stage_micro():
    """Prompts with a single constraint, for a model too small for several."""
    rows = common.generated("instruction_single", count=2048)
    return stage(steps=160, data=ConfigDict({"instruction": rows}))


def stage_nano():
    config = stage(steps=33_000)
    config.data = ConfigDict({"cascade2": common.jsonl("data/cascade2_sft.jsonl")})
    config.packing = ConfigDict({"row_length": 262_144, "rows_per_step": 64, "overlong": "drop"})
    config.optim = common.adamw(
        lr=5e-5, b2=0.98, weight_decay=0.1, warmup_steps=200, schedule="cosine", min_lr=5e-6
    )
    config.optim.warmup_from = 0.0
    config.checkpoint = ConfigDict({"every_steps": 500, "keep": 4})
    return config


def get_config(arg=None):
    model, block, mesh, tokenizer, evaluation = common.choose(
        arg,
        {
            "tiny": (models.tiny(), stage(), common.mesh(data=2), "tiny", common.evaluation(512)),
            "micro": (
                models.micro(),
                stage_micro(),
                common.mesh(data=2),
                "tiny",
                common.evaluation(256, "instruction_single"),
            ),
            "nano_30b_a3b": (
                models.nano_30b_a3b(),
                stage_nano(),
                common.mesh(fsdp=4, expert=16),
                "checkpoints/nemotron_3_nano_base",
                common.evaluation(512),
            ),
        },
    )
    return common.run(
        model,
        mesh=mesh,
        tokenizer=tokenizer,
        order=("sft",),
        stages=ConfigDict({"sft": block}),
        evaluation=evaluation,
    )
