"""Blocks that several runs share."""

from ml_collections import ConfigDict

from nemocascade_jax.configs import models

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


def run(arg, stages):
    """Returns a whole run: the model, mesh, tokenizer and held-out rows of a size around its stages."""
    size = choose(arg, {"tiny": "tiny", "micro": "micro", "nano_30b_a3b": "nano_30b_a3b"})
    config = ConfigDict()
    config.seed = 0
    config.init = "scratch"
    config.tokenizer = "checkpoints/nemotron_3_nano_base" if size == "nano_30b_a3b" else "tiny"
    config.model = getattr(models, size)()
    config.mesh = mesh(fsdp=4, expert=16) if size == "nano_30b_a3b" else mesh(data=2)
    config.order = tuple(stages)
    config.stages = ConfigDict(stages)
    if size == "micro":
        config.evaluation = evaluation(
            256, confirmation=256, instruction_following="instruction_single"
        )
    else:
        config.evaluation = evaluation(512, confirmation=512)
    return config


# Short name of each domain -> the generator of its rows.
DOMAINS = {
    "instruction_following": "instruction",
    "math": "math",
    "multiple_choice": "choice",
    "structured_output": "structure",
}


def rows_of(*domains, count, **other):
    """Generated rows of some domains, a source each; `other` names another generator for one."""
    generators = {**DOMAINS, **other}
    return ConfigDict({domain: generated(generators[domain], count=count) for domain in domains})


def evaluation(count, *domains, confirmation=0, **other):
    """Held-out prompts a domain, one answer each at temperature 1.

    `confirmation` more of each are the second set, on which teachers are measured again.
    """
    generators = {**DOMAINS, **other}
    rows = count + confirmation
    return ConfigDict(
        {
            "domains": {
                domain: generated(generators[domain], count=rows, split="heldout", seed=1)
                for domain in domains or DOMAINS
            },
            "sampling": sampling(),
            "turns": None,
            "greedy": False,
            "seed": 1,
            "confirmation": confirmation,
            "fallen_errors": 3.0,
        }
    )
