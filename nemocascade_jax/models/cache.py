"""The decoding cache: what one row carries from token to token."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from nemocascade_jax.config import ModelConfig

Layers = list[list[dict[str, Array]]]


@flax.struct.dataclass
class Cache:
    """Per unit and letter a dict, each array with a leading axis of the unit's repeats, then rows; a
    pattern that runs unrolled counts as one unit.

    `M`: "conv" [repeats, B, W - 1, X] inputs of the convolution, oldest first, and "ssm"
    [repeats, B, M, P, N]; `*`: "k" and "v" [repeats, B, J, S, A]; others: nothing. "ssm" has the type
    `precision.ssm_state`, the rest `precision.compute`. S places are there for `length` tokens: a
    write at or past S is lost, so callers stop a row before it.
    """

    layers: Any  # Layers; also their shapes or shardings
    length: Any  # Int[Array, "B"]

    @property
    def places(self) -> int | None:
        """How many tokens a row can hold; None without attention, whose state has no end."""
        sizes = [entry["k"].shape[3] for unit in self.layers for entry in unit if "k" in entry]
        return sizes[0] if sizes else None


def init_layers(
    cfg: ModelConfig, units: tuple[tuple[str, int], ...], batch: int, max_len: int
) -> Layers:
    """Returns empty layers for `batch` rows of up to `max_len` tokens."""
    return [
        [_empty(letter, cfg, (repeats, batch), max_len) for letter in unit]
        for unit, repeats in units
    ]


def _empty(letter: str, cfg: ModelConfig, lead: tuple[int, int], max_len: int) -> dict[str, Array]:
    if letter == "M":
        m = cfg.mamba
        assert m is not None
        return {
            "conv": jnp.zeros((*lead, m.conv - 1, m.conv_channels), cfg.precision.compute),
            "ssm": jnp.zeros((*lead, m.heads, m.head_dim, m.state), cfg.precision.ssm_state),
        }
    if letter == "*":
        a = cfg.attention
        assert a is not None
        shape = (*lead, a.kv_heads, max_len, a.head_dim)
        return {name: jnp.zeros(shape, cfg.precision.compute) for name in ("k", "v")}
    return {}


def filled(layers: Layers, lengths: Int[Array, "B"], max_len: int) -> Cache:
    """Returns the cache after a prefill from the states its layers ended in."""

    def widen(name: str, entry: Array) -> Array:
        if name not in ("k", "v"):
            return entry
        return jnp.pad(entry, ((0, 0), (0, 0), (0, 0), (0, max_len - entry.shape[3]), (0, 0)))

    wide = [[{n: widen(n, a) for n, a in entry.items()} for entry in unit] for unit in layers]
    return Cache(layers=wide, length=lengths.astype(jnp.int32))


def advanced(cache: Cache, updates: Layers, active: Bool[Array, "B"]) -> Cache:
    """Returns the cache after one token of the active rows: states replaced, keys and values written."""
    rows = jnp.arange(cache.length.shape[0])

    def one(old: dict[str, Array], new: dict[str, Array]) -> dict[str, Array]:
        if "k" not in old:
            return new
        place = jnp.where(active, cache.length, old["k"].shape[3])  # past the end: not written
        written = {}
        for name, entry in old.items():
            token = jnp.moveaxis(new[name][:, :, :, 0], 1, 0).astype(
                entry.dtype
            )  # [B, repeats, J, A]
            written[name] = entry.at[:, rows, :, place].set(token, mode="drop")
        return written

    layers = [
        [one(old, new) for old, new in zip(*pair, strict=True)]
        for pair in zip(cache.layers, updates, strict=True)
    ]
    return Cache(layers=layers, length=cache.length + active.astype(jnp.int32))


def fork_cache(cache: Cache, index: Int[Array, "N"]) -> Cache:
    """Returns the rows `index` of a cache: a prompt's state copied to each sample of its group."""
    layers = jax.tree.map(lambda entry: jnp.take(entry, index, axis=1), cache.layers)
    return Cache(layers=layers, length=cache.length[index])
