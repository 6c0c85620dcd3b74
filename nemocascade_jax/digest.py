"""One short name for a set of weights, computed where they lie."""

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt32

Lanes = tuple[Array, Array]  # low and high 32 bits of a number modulo 2^64


def weights_digest(params: Any) -> str:
    """Returns 32 hex digits that name paths, types, shapes and every bit of the parameters.

    A leaf counts as sum_i bits_i (2 mix(i) + 1) modulo 2^64 over the flat index i, where mix is a
    bijection of 32 bits. The factors are odd, so no change of one element vanishes, and distinct, so
    no exchange of two does. The sum is exact: its value does not depend on mesh, order or device.
    """
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    sums = [np.asarray(lane) for lane in _leaf_sums([leaf for _, leaf in flat])]
    digest = hashlib.blake2b(digest_size=16)
    named = {
        jax.tree_util.keystr(path, simple=True, separator="/"): (leaf, int(low) | int(high) << 32)
        for (path, leaf), low, high in zip(flat, *sums, strict=True)
    }
    for path in sorted(named):
        leaf, total = named[path]
        digest.update(f"{path} {leaf.dtype} {tuple(leaf.shape)} {total:016x}\n".encode())
    return digest.hexdigest()


@jax.jit
def _leaf_sums(leaves: list[Shaped[Array, "..."]]) -> tuple[UInt32[Array, "N"], UInt32[Array, "N"]]:
    sums = [_leaf_sum(leaf) for leaf in leaves]
    return jnp.stack([low for low, _ in sums]), jnp.stack([high for _, high in sums])


def _leaf_sum(leaf: Shaped[Array, "..."]) -> Lanes:
    bits = _bits(leaf)
    zero = jnp.zeros_like(bits)
    low, high = _flat_index(leaf.shape)
    mixed = _mix(low ^ _mix(high))
    once = _multiply(bits, mixed)
    product = _add(_add(once, once), (bits, zero))
    init = (jnp.uint32(0), jnp.uint32(0))
    return tuple(jax.lax.reduce(product, init, _add, tuple(range(bits.ndim))))


def _bits(leaf: Shaped[Array, "..."]) -> UInt32[Array, "..."]:
    size = leaf.dtype.itemsize
    if size not in (1, 2, 4):
        raise ValueError(
            f"weights_digest: dtype {leaf.dtype} has {size} bytes, at most 4 are supported"
        )
    return jax.lax.bitcast_convert_type(leaf, f"uint{8 * size}").astype(jnp.uint32)


def _flat_index(shape: tuple[int, ...]) -> Lanes:
    """Returns each element's place in row-major order, built from the index of every dimension."""
    index: Lanes = (jnp.zeros(shape, jnp.uint32), jnp.zeros(shape, jnp.uint32))
    for dimension in range(len(shape)):
        stride = math.prod(shape[dimension + 1 :])
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, dimension)
        low, high = _multiply(place, jnp.full(shape, stride & 0xFFFFFFFF, jnp.uint32))
        index = _add(index, (low, high + place * jnp.uint32(stride >> 32)))
    return index


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Scrambles 32 bits by xor-shifts and odd factors, each of which can be undone; 0 stays 0."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _add(a: Lanes, b: Lanes) -> Lanes:
    low = a[0] + b[0]
    return low, a[1] + b[1] + (low < a[0]).astype(jnp.uint32)


def _multiply(a: UInt32[Array, "..."], b: UInt32[Array, "..."]) -> Lanes:
    """Returns the 64 bits of a x b from products of halves."""
    half = jnp.uint32(0xFFFF)
    a_low, a_high, b_low, b_high = a & half, a >> 16, b & half, b >> 16
    middle = a_high * b_low + (a_low * b_low >> 16)  # below 2^32
    crossed = a_low * b_high + (middle & half)  # below 2^32
    return a * b, a_high * b_high + (middle >> 16) + (crossed >> 16)
