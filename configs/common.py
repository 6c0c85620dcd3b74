"""Blocks that several runs share."""

from ml_collections import ConfigDict

AXES = ("data", "fsdp", "expert", "tensor", "context")


def choose(arg, sizes):
    """Returns the entry of `sizes` that the one-word argument names; the first is the default."""
    if arg is None:
        return next(iter(sizes.values()))
    if arg not in sizes:
        raise ValueError(f"unknown argument {arg!r}; known: {', '.join(sizes)}")
    return sizes[arg]


def mesh(**sizes):
    """The rules that lay every logical axis over the mesh; axes not named have one device."""
    config = ConfigDict({axis: sizes.get(axis, 1) for axis in AXES})
    config.rules = ConfigDict(
        {
            "batch": ("data", "fsdp", "expert"),
            "seq": (),
            "embed": ("fsdp",),
            "vocab": ("tensor",),
            "heads": ("tensor",),
            "kv_heads": ("tensor",),
            "mlp": ("tensor",),
            "expert": ("expert",),
            "mamba_inner": ("tensor",),
            "mamba_heads": ("tensor",),
            "layers": (),
        }
    )
    return config


def generated(generator, *, count, split="train", seed=0):
    """Rows that code in rows/generators writes."""
    return ConfigDict(
        {
            "kind": "generated",
            "path": None,
            "generator": generator,
            "split": split,
            "count": count,
            "seed": seed,
            "on_bad_row": "refuse",
            "weight": 1.0,
        }
    )


def jsonl(path, *, weight=1.0):
    """Rows of a JSON Lines file in the schemas of the released data."""
    return ConfigDict(
        {
            "kind": "jsonl",
            "path": path,
            "generator": None,
            "split": "train",
            "count": None,
            "seed": 0,
            "on_bad_row": "refuse",
            "weight": weight,
        }
    )


def adamw(**changes):
    """AdamW as RL uses it: no decay, clip 1.0, constant after 10 warm-up steps (paper 2.3, Nano 3)."""
    config = ConfigDict(
        {
            "lr": 3e-6,
            "schedule": "constant",
            "warmup_steps": 10,
            "warmup_from": 3e-7,
            "min_lr": 0.0,
            "b1": 0.9,
            "b2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.0,
            "grad_clip": 1.0,
            "frozen": (),
        }
    )
    config.update(changes)
    return config


def sampling(**changes):
    """The policy's own distribution: temperature 1, no truncation (paper 2.3)."""
    config = ConfigDict(
        {
            "temperature": 1.0,
            "top_k": None,
            "top_p": 1.0,
            "max_prompt_tokens": 64,
            "max_completion_tokens": 48,
            "stop": (),
            "ignore_eos": False,
            "thinking": False,
        }
    )
    config.update(changes)
    return config


def run(model, *, mesh, tokenizer, order, stages, evaluation):
    """A whole run around its stages."""
    config = ConfigDict()
    config.seed = 0
    config.init = "scratch"
    config.tokenizer = tokenizer
    config.model = model
    config.mesh = mesh
    config.order = order
    config.stages = stages
    config.evaluation = evaluation
    return config


def evaluation(count, generator="instruction", **changes):
    """Instruction following on held-out prompts: one answer each at temperature 1, and greedy."""
    return ConfigDict(
        {
            "domains": {
                "instruction_following": generated(generator, count=count, split="heldout", seed=1)
            },
            "sampling": sampling(**changes),
            "greedy": True,
            "seed": 1,
        }
    )
