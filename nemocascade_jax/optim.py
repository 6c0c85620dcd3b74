"""The optimiser chain from its config: clip, AdamW with decay on matrices only, frozen leaves."""

from __future__ import annotations

import re
from typing import Any

import optax

from nemocascade_jax.config import OptimConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.sharding import ParamSpec, map_specs

# The selection bias of the router is a buffer: no gradient, no decay, moved by the balancing rule alone.
ALWAYS_FROZEN = ("correction_bias",)
# A recipe freezes these in any model; one without experts, or without a selection bias, has none.
MAY_BE_ABSENT = ("router", "correction_bias")
NO_DECAY = ("norm", "bias", "A_log", "D", "embed")


def learning_rate(config: OptimConfig, steps: int) -> optax.Schedule:
    """Returns the learning rate of each update, counted from 0: linear warm-up, then the schedule."""
    after = steps - config.warmup_steps
    if config.schedule == "cosine" and after > 0:
        main = optax.cosine_decay_schedule(config.lr, after, alpha=config.min_lr / config.lr)
    else:
        main = optax.constant_schedule(config.lr)
    if config.warmup_steps == 0:
        return main
    warmup = optax.linear_schedule(config.warmup_from, config.lr, config.warmup_steps)
    return optax.join_schedules([warmup, main], [config.warmup_steps])


def trained_leaves(config: OptimConfig, specs: Any) -> Any:
    """Returns a tree of bools: which weights are updated; a pattern that matches nothing is refused.

    The router and its bias may be frozen in a model that lacks them.
    """
    patterns = (*ALWAYS_FROZEN, *config.frozen)
    hits = dict.fromkeys(patterns, 0)

    def trained(path: str, spec: ParamSpec) -> bool:
        found = [pattern for pattern in patterns if re.search(pattern, path)]
        hits.update({pattern: hits[pattern] + 1 for pattern in found})
        return not found

    tree = map_specs(trained, specs)
    for pattern in config.frozen:
        if not hits[pattern] and pattern not in MAY_BE_ABSENT:
            raise InputError(
                f"config: optim.frozen names {pattern!r}, which matches no parameter path; "
                "paths read units/0/1/w_up"
            )
    return tree


def decayed_leaves(specs: Any) -> Any:
    """Returns a tree of bools: weight decay on matrices, never on norms, biases, A_log, D, embeddings."""

    def decayed(path: str, spec: ParamSpec) -> bool:
        own_axes = len(spec.shape) - (spec.axes[:1] == ("layers",))
        name = path.rsplit("/", 1)[-1]
        return own_axes >= 2 and not any(part in NO_DECAY for part in (name, *name.split("_")))

    return map_specs(decayed, specs)


def make_optimizer(config: OptimConfig, specs: Any, steps: int) -> optax.GradientTransformation:
    """Returns the update rule; the clip sees the norm of the trained leaves alone, moments are float32."""
    adamw = optax.adamw(
        learning_rate(config, steps),
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=lambda tree: _like(decayed_leaves(specs), tree),
    )
    clip = (
        optax.identity()
        if config.grad_clip is None
        else optax.clip_by_global_norm(config.grad_clip)
    )
    labels = _labels(trained_leaves(config, specs))
    return optax.partition(
        {"train": optax.chain(clip, adamw), "frozen": optax.set_to_zero()}, labels
    )


def _labels(trained: Any) -> Any:
    if isinstance(trained, bool):
        return "train" if trained else "frozen"
    if isinstance(trained, dict):
        return {key: _labels(entry) for key, entry in trained.items()}
    return [_labels(entry) for entry in trained]


def _like(tree: Any, other: Any) -> Any:
    """Returns `tree` with the masked nodes that `optax.partition` puts in place of frozen leaves."""
    if isinstance(other, optax.MaskedNode):
        return other
    if isinstance(other, dict):
        return {key: _like(tree[key], entry) for key, entry in other.items()}
    if isinstance(other, list):
        return [_like(one, entry) for one, entry in zip(tree, other, strict=True)]
    return tree
