"""Which backing an op runs on, chosen by argument, never by exception.

Routed experts: y_n = sum_k w_nk down_e(h_e(x_n)), e = expert_ids[n, k], with h_e(x) = relu(up_e x)^2,
or silu(gate_e x) up_e x where there is a gate. Backings: "blocks"
sorts the assignments by expert and pads each expert to whole tiles of rows, so every product is a
plain matrix product and nothing is dropped; "ragged_dot" and "dense" (all experts on all tokens)
are numeric references.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

GroupedImpl = Literal["blocks", "ragged_dot", "dense"]

TILES = (8, 16, 32, 64, 128, 256)
GATHER_LIMIT = 2**21  # numbers in the gathered weights above which blocks are scanned instead


def routed_experts(
    x: Float[Array, "N D"],
    expert_ids: Int[Array, "N K"],
    weights: Float[Array, "N K"],
    w_up: Float[Array, "E D F"],
    w_down: Float[Array, "E F D"],
    w_gate: Float[Array, "E D F"] | None = None,
    *,
    grouped_impl: GroupedImpl = "blocks",
) -> Float[Array, "N D"]:
    """Returns the weighted sum of each token's experts; an id of E or more takes no expert.

    Products are taken in the type of `x`; the weighted sum, and the gradients of wider experts, are
    float32.
    """
    choices = {"blocks": _blocks, "ragged_dot": _ragged_dot, "dense": _dense}
    return choices[grouped_impl](x, expert_ids, weights, w_up, w_down, w_gate)


def _activated(rows: Array, product: Callable[[Array], Array], up: Array, gate: Any) -> Array:
    """Returns the inner values of an MLP whose linear maps are taken by `product`."""
    if gate is None:
        return jnp.square(jax.nn.relu(product(up)))
    opened = jax.nn.silu(product(gate).astype(jnp.float32))
    return (opened * product(up).astype(jnp.float32)).astype(rows.dtype)


def _dense(
    x: Array, expert_ids: Array, weights: Array, w_up: Array, w_down: Array, w_gate: Array | None
) -> Array:
    def product(weight: Array) -> Array:
        return jnp.einsum("nd,edf->enf", x, weight.astype(x.dtype))

    chosen = jax.nn.one_hot(expert_ids, w_up.shape[0], dtype=weights.dtype)
    share = jnp.einsum("nke,nk->ne", chosen, weights)
    hidden = _activated(x, product, w_up, w_gate) * share.T[..., None]
    return jnp.einsum("enf,efd->nd", hidden, w_down).astype(x.dtype)


def _ragged_dot(
    x: Array, expert_ids: Array, weights: Array, w_up: Array, w_down: Array, w_gate: Array | None
) -> Array:
    # Dropped assignments sort behind every group; what ragged_dot leaves there is cut by `real`.
    flat = expert_ids.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    sizes = jnp.bincount(flat, length=w_up.shape[0]).astype(jnp.int32)
    token = order // expert_ids.shape[1]
    real = (flat[order] < w_up.shape[0])[:, None]
    rows = jnp.where(real, x[token], 0)

    def product(rows: Array, weight: Array) -> Array:
        return jax.lax.ragged_dot(rows, weight.astype(rows.dtype), sizes)

    out = product(_activated(rows, partial(product, rows), w_up, w_gate), w_down)
    out = jnp.where(real, out * weights.reshape(-1)[order][:, None], 0)
    return jnp.zeros_like(x).at[token].add(out.astype(x.dtype))


class Layout(NamedTuple):
    """Where each assignment's row lies when experts are padded to whole tiles."""

    token: Int[Array, "S"]  # the token in each slot, N where the slot is empty
    slot: Int[Array, "N K"]  # the slot of each assignment, S where it takes no expert
    expert: Int[Array, "blocks"]  # the expert of each tile of slots


def block_layout(expert_ids: Int[Array, "N K"], experts: int, tile: int) -> Layout:
    """Returns the slots of all assignments, sorted by expert, each expert from a tile's start on."""
    tokens, top_k = expert_ids.shape
    flat = expert_ids.reshape(-1)
    member = flat[:, None] == jnp.arange(experts)[None, :]
    running = jnp.cumsum(member, axis=0, dtype=jnp.int32)
    counts = running[-1]
    tiles = (counts + tile - 1) // tile
    ends = jnp.cumsum(tiles)
    blocks = tokens * top_k // tile + experts
    starts = (ends - tiles) * tile
    place = jnp.sum(jnp.where(member, running - 1 + starts[None, :], 0), axis=1)
    slot = jnp.where(flat < experts, place, blocks * tile)
    owner = jnp.arange(tokens * top_k, dtype=jnp.int32) // top_k
    token = jnp.full((blocks * tile,), tokens, jnp.int32).at[slot].set(owner, mode="drop")
    expert = jnp.sum(jnp.arange(blocks)[:, None] >= ends[None, :], axis=1, dtype=jnp.int32)
    return Layout(token, slot.reshape(tokens, top_k), jnp.minimum(expert, experts - 1))


def tile_rows(assignments: int, experts: int) -> int:
    """Returns the tile that pads an evenly used expert by about an eighth."""
    fitting = [tile for tile in TILES if tile * 4 <= max(assignments // experts, 1)]
    return fitting[-1] if fitting else TILES[0]


def _blocks(
    x: Array, expert_ids: Array, weights: Array, w_up: Array, w_down: Array, w_gate: Array | None
) -> Array:
    experts, tokens = w_up.shape[0], x.shape[0]
    tile = tile_rows(expert_ids.size, experts)
    layout = block_layout(expert_ids, experts, tile)
    rows = _spread_rows(x, layout).reshape(-1, tile, x.shape[1])
    hidden = _activated(rows, lambda w: block_product(rows, w, layout.expert), w_up, w_gate)
    out = block_product(hidden, w_down, layout.expert).reshape(-1, x.shape[1])
    picked = _pick_rows(out, layout, tokens)
    return jnp.einsum("nkd,nk->nd", picked.astype(weights.dtype), weights).astype(x.dtype)


def _take(rows: Array, index: Array) -> Array:
    return rows.at[index].get(mode="fill", fill_value=0)


# Both directions are gathers: what autodiff makes of a gather is a scatter-add, slower everywhere.
@jax.custom_vjp
def _spread_rows(x: Array, layout: Layout) -> Array:
    """Returns the token row of each slot, zero in empty slots."""
    return _take(x, layout.token)


def _spread_forward(x: Array, layout: Layout) -> tuple[Array, Layout]:
    return _take(x, layout.token), layout


def _spread_backward(layout: Layout, grad: Array) -> tuple[Array, None]:
    return _take(grad, layout.slot).sum(axis=1), None


_spread_rows.defvjp(_spread_forward, _spread_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _pick_rows(rows: Array, layout: Layout, tokens: int) -> Array:
    """Returns the row of each assignment, zero where it takes no expert."""
    return _take(rows, layout.slot)


def _pick_forward(rows: Array, layout: Layout, tokens: int) -> tuple[Array, Layout]:
    return _take(rows, layout.slot), layout


def _pick_backward(tokens: int, layout: Layout, grad: Array) -> tuple[Array, None]:
    top_k = layout.slot.shape[1]
    slots = layout.token.shape[0]
    index = jnp.arange(tokens * top_k, dtype=jnp.int32)
    source = jnp.full((slots,), tokens * top_k, jnp.int32)
    source = source.at[layout.slot.reshape(-1)].set(index, mode="drop")
    return _take(grad.reshape(tokens * top_k, -1), source), None


_pick_rows.defvjp(_pick_forward, _pick_backward)


@jax.custom_vjp
def block_product(
    rows: Float[Array, "blocks t D"], weight: Float[Array, "E D F"], expert: Int[Array, "blocks"]
) -> Float[Array, "blocks t F"]:
    """Returns rows[b] @ weight[expert[b]]; d weight[e] = sum over its blocks of rows[b]^T d out[b].

    The product has the type of `rows`, the sum is float32 and comes back in the type of `weight`.
    Few weights are gathered and multiplied in one batch; many are visited block by block, forward
    and backward, so that no array of blocks x D x F exists.
    """
    return _product(rows, weight, expert)


def _gathered(blocks: int, weight: Array) -> bool:
    return blocks * weight.shape[1] * weight.shape[2] <= GATHER_LIMIT


def _product(rows: Array, weight: Array, expert: Array) -> Array:
    weight = weight.astype(rows.dtype)
    if _gathered(rows.shape[0], weight):
        return jnp.einsum("btd,bdf->btf", rows, weight[expert])
    return jax.lax.map(lambda block: block[0] @ weight[block[1]], (rows, expert))


def _product_forward(rows: Array, weight: Array, expert: Array) -> tuple[Array, tuple]:
    return _product(rows, weight, expert), (rows, weight, expert)


def _product_backward(saved: tuple, grad: Array) -> tuple[Array, Array, None]:
    rows, weight, expert = saved
    d_rows = _product(grad, weight.transpose(0, 2, 1), expert)
    zeros = jnp.zeros(weight.shape, jnp.float32)
    if _gathered(rows.shape[0], weight):
        each = jnp.einsum("btd,btf->bdf", rows, grad, preferred_element_type=jnp.float32)
        return d_rows, zeros.at[expert].add(each).astype(weight.dtype), None

    def add(total: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
        row, g, index = block
        one = jnp.matmul(row.T, g, preferred_element_type=jnp.float32)
        return total.at[index].add(one), None

    d_weight, _ = jax.lax.scan(add, zeros, (rows, grad, expert))
    return d_rows, d_weight.astype(weight.dtype), None


block_product.defvjp(_product_forward, _product_backward)
