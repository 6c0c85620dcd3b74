"""Mamba-2: a selective state space with a scalar decay a head, in chunks or one token at a time.

With D_t = softplus(dt_t + dt_bias) and A = -exp(A_log), both float32, each head keeps a state
S <- exp(D_t A) S + D_t x_t (x) B_t and returns y_t = S C_t + D x_t (Mamba-2, section 6).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from nemocascade_jax.config import MambaConfig, ModelConfig
from nemocascade_jax.models.layers import (
    grouped_norm,
    kaiming_uniform,
    linear,
    norm_spec,
    project,
    silu_product,
    spread,
)
from nemocascade_jax.sharding import Init, Params, ParamSpec, Shard, constant

COUNTED = 64  # places counted by one product


def mamba2_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    m = cfg.mamba
    assert m is not None
    width, inner = (cfg.width, "embed"), (m.inner, "mamba_inner")
    channels, heads = (m.conv_channels, "mamba_inner"), (m.heads, "mamba_heads")
    out = linear(cfg, inner, width)
    if cfg.rescale_prenorm_residual:
        shrunk = kaiming_uniform(m.inner, 1 / math.sqrt(len(cfg.pattern)))
        out = ParamSpec(out.shape, out.axes, shrunk)
    conv = ParamSpec((m.conv, m.conv_channels), (None, "mamba_inner"), kaiming_uniform(m.conv))
    return {
        "w_gate": linear(cfg, width, inner),
        "w_xbc": linear(cfg, width, channels),
        "w_dt": linear(cfg, width, heads),
        "conv_w": conv,  # the last tap is the current token's
        "conv_b": ParamSpec((m.conv_channels,), ("mamba_inner",), constant(0.0)),
        "A_log": ParamSpec((m.heads,), ("mamba_heads",), _log_range),
        "D": ParamSpec((m.heads,), ("mamba_heads",), constant(1.0)),
        "dt_bias": ParamSpec((m.heads,), ("mamba_heads",), _inverse_softplus_steps(m)),
        "norm": norm_spec(m.inner),
        "w_out": out,
    }


def _log_range(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.log(jnp.arange(1, shape[0] + 1, dtype=jnp.float32))


def _inverse_softplus_steps(m: MambaConfig) -> Init:
    low, high = math.log(m.time_step_min), math.log(m.time_step_max)

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        drawn = jnp.exp(jax.random.uniform(key, shape, jnp.float32, low, high))
        step = jnp.maximum(drawn, m.time_step_floor)
        return step + jnp.log(-jnp.expm1(-step))

    return init


def mamba2(
    params: Params,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    cfg: ModelConfig,
    shard: Shard,
    cache: dict[str, Array] | None = None,
) -> tuple[Float[Array, "B T D"], dict[str, Array]]:
    """Returns the mixed tokens and the state {"conv", "ssm"} after the last real token of each row.

    A segment is one run of equal ids. Without a cache each starts from zero state; with one, the
    row's first segment carries on from it. Padding (id 0) neither moves the state nor is seen.
    """
    m = cfg.mamba
    assert m is not None
    gate = shard(project(x, params["w_gate"]), "batch", "seq", "mamba_inner")
    y, state = mamba2_scan(params, x, segment_ids, cfg, shard, cache)
    y = gated_norm(y, gate, params["norm"], m.groups, cfg.norm_eps)
    return project(y.astype(x.dtype), params["w_out"]), state


def mamba2_scan(
    params: Params,
    x: Float[Array, "B T D"],
    segment_ids: Int[Array, "B T"],
    cfg: ModelConfig,
    shard: Shard,
    cache: dict[str, Array] | None = None,
) -> tuple[Float[Array, "B T I"], dict[str, Array]]:
    """Returns S C + D x of convolution and recurrence, before the gate, float32; and the state."""
    m = cfg.mamba
    assert m is not None
    rows, time, _ = x.shape
    real = segment_ids > 0
    ordinal = segment_ordinals(segment_ids, carried=cache is not None)
    raw = shard(project(x, params["w_xbc"]), "batch", "seq", "mamba_inner")
    window = (
        cache["conv"]
        if cache is not None
        else jnp.zeros_like(raw, shape=(rows, m.conv - 1, raw.shape[2]))
    )
    mixed, window = _conv(params, raw, window, real, ordinal)
    heads, b, c = jnp.split(mixed, (m.inner, m.inner + m.groups * m.state), axis=2)
    heads = heads.reshape(rows, time, m.heads, m.head_dim)
    b, c = (entry.reshape(rows, time, m.groups, m.state) for entry in (b, c))
    delta = _step_sizes(params, x, real, m)
    decay = -jnp.exp(params["A_log"].astype(jnp.float32))[None, None] * delta
    state = cache["ssm"].astype(jnp.float32) if cache is not None else None
    if time == 1:
        y, state = ssd_step(heads, delta, decay, (b, c), real, state)
    else:
        y, state = ssd(heads, delta, decay, (b, c), ordinal, chunk=m.chunk, state=state)
    y = y + heads.astype(jnp.float32) * params["D"].astype(jnp.float32)[None, None, :, None]
    kept = {"conv": window, "ssm": state.astype(cfg.precision.ssm_state)}
    return y.reshape(rows, time, m.inner), kept


def segment_ordinals(segment_ids: Int[Array, "B T"], *, carried: bool) -> Int[Array, "B T"]:
    """Numbers the segments of each row in order; padding takes the number before it.

    Number 0 is what a carried state belongs to: the row's first segment if `carried`, else none.
    """
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
    starts = (segment_ids != before) & (segment_ids > 0)
    if carried:
        starts = starts.at[:, 0].set(False)
    cut = _chunked(starts, -starts.shape[1] % COUNTED, COUNTED)[..., None]  # [B, chunks, C, 1]
    totals = cut.sum(axis=2)[:, None]
    before = _running_sum(totals) - totals
    counted = _running_sum(cut.at[:, :, 0].add(before[:, 0]))
    return counted.reshape(starts.shape[0], -1)[:, : starts.shape[1]].astype(jnp.int32)


def _step_sizes(
    params: Params, x: Float[Array, "B T D"], real: Bool[Array, "B T"], m: MambaConfig
) -> Float[Array, "B T M"]:
    """Returns softplus(dt + dt_bias) in float32 within time_step_limit, zero on padding."""
    raw = project(x, params["w_dt"]).astype(jnp.float32)
    delta = jax.nn.softplus(raw + spread(params["dt_bias"], raw))
    if m.time_step_limit is not None:
        delta = jnp.clip(delta, *m.time_step_limit)
    return jnp.where(real[:, :, None], delta, 0.0)


def _conv(
    params: Params,
    raw: Float[Array, "B T X"],
    window: Float[Array, "B W1 X"],
    real: Bool[Array, "B T"],
    ordinal: Int[Array, "B T"],
) -> tuple[Float[Array, "B T X"], Float[Array, "B W1 X"]]:
    """Returns silu(causal depthwise conv) and the inputs before the next real token, oldest first.

    A tap that reaches into another segment reads zero.
    """
    time, back = raw.shape[1], window.shape[1]
    inputs = jnp.concatenate([window, raw], axis=1)
    owner = jnp.pad(ordinal, ((0, 0), (back, 0)))
    out = conv_silu(inputs, owner, params["conv_w"], params["conv_b"])
    if time == 1:
        return out, jnp.where(real[:, :, None], inputs[:, 1:], window)
    end = jnp.max(jnp.where(real, jnp.arange(1, time + 1)[None], 0), axis=1)
    places = end[:, None] + jnp.arange(back)[None, :]
    kept = jnp.take_along_axis(inputs, places[..., None], axis=1)
    own = jnp.take_along_axis(owner, places, axis=1) == ordinal[:, -1:]
    return out, jnp.where(own[..., None], kept, 0)


@jax.custom_vjp
def conv_silu(
    inputs: Float[Array, "B S X"],
    owner: Int[Array, "B S"],
    weight: Float[Array, "W X"],
    bias: Float[Array, "X"],
) -> Float[Array, "B T X"]:
    """Returns silu(sum_i weight[i] inputs[t + i] + bias), T = S - W + 1, where both have one owner.

    Summed in float32, returned in the type of `inputs`.
    Value and gradient end in a division, which XLA on CPU computes once; what ends in a product it
    computes again, sum and all, inside each of its uses.
    """
    return _conv_forward(inputs, owner, weight, bias)[0]


def _taps(entry: Array, owner: Array, width: int) -> list[Array]:
    """Returns the places 0.. W - 1 before each output, zero where another segment owns them."""
    time = owner.shape[1] - width + 1
    same = [owner[:, i : i + time] == owner[:, width - 1 :] for i in range(width)]
    return [jnp.where(same[i][..., None], entry[:, i : i + time], 0) for i in range(width)]


def _conv_sum(inputs: Array, owner: Array, weight: Array, bias: Array) -> Array:
    taps = _taps(inputs.astype(jnp.float32), owner, weight.shape[0])
    return (
        sum(tap * row[None, None] for tap, row in zip(taps, weight, strict=True)) + bias[None, None]
    )


def _conv_forward(inputs: Array, owner: Array, weight: Array, bias: Array) -> tuple[Array, tuple]:
    total = _conv_sum(inputs, owner, weight, bias)
    out = total / (1 + jnp.exp(-total))
    return out.astype(inputs.dtype), (inputs, owner, weight, bias)


def _conv_backward(saved: tuple, grad: Array) -> tuple[Array, None, Array, Array]:
    inputs, owner, weight, bias = saved
    width, time = weight.shape[0], grad.shape[1]
    total = _conv_sum(inputs, owner, weight, bias)
    closing = 1 + jnp.exp(-total)  # silu' = (1 + total (1 - 1 / closing)) / closing
    grad = grad * (1 + total * (1 - 1 / closing)) / closing  # float32 from here
    d_weight = [jnp.sum(tap * grad, axis=(0, 1)) for tap in _taps(inputs, owner, width)]
    # Seen from an input, the output i places on is there, and is owned alike or takes nothing.
    late = jnp.pad(grad, ((0, 0), (width - 1, width - 1), (0, 0)))
    owners = jnp.pad(owner, ((0, 0), (0, width - 1)), constant_values=-1)
    d_inputs = jnp.zeros(inputs.shape, jnp.float32)
    for i in range(width):
        shift = width - 1 - i
        same = owners[:, shift : shift + time + width - 1] == owner
        moved = late[:, shift : shift + time + width - 1]
        d_inputs += jnp.where(same[..., None], moved, 0) * weight[i][None, None]
    sums = jnp.stack(d_weight).astype(weight.dtype), grad.sum(axis=(0, 1)).astype(bias.dtype)
    return d_inputs.astype(inputs.dtype), None, *sums


conv_silu.defvjp(_conv_forward, _conv_backward)


def gated_norm(
    y: Float[Array, "B T I"],
    gate: Float[Array, "B T I"],
    weight: Float[Array, "I"],
    groups: int,
    eps: float,
) -> Float[Array, "B T I"]:
    """Returns RMSNorm(y silu(gate)), each group of channels by itself, in float32."""
    gated = silu_product(y.astype(jnp.float32), gate.astype(jnp.float32))
    return grouped_norm(gated, weight.astype(jnp.float32), groups, eps)


def ssd_step(
    x: Float[Array, "B 1 M P"],
    delta: Float[Array, "B 1 M"],
    decay: Float[Array, "B 1 M"],
    bc: tuple[Float[Array, "B 1 R N"], Float[Array, "B 1 R N"]],
    real: Bool[Array, "B 1"],
    state: Float[Array, "B M P N"] | None,
) -> tuple[Float[Array, "B 1 M P"], Float[Array, "B M P N"]]:
    """Returns one step of the recurrence; a row that is padding keeps its state bit for bit."""
    per_group = x.shape[2] // bc[0].shape[2]
    b, c = (jnp.repeat(entry[:, 0].astype(jnp.float32), per_group, axis=1) for entry in bc)
    pushed = (delta[:, 0, :, None] * x[:, 0].astype(jnp.float32))[..., None] * b[:, :, None]
    if state is None:
        new = pushed
    else:
        new = jnp.exp(decay[:, 0])[..., None, None] * state + pushed
        new = jnp.where(real[:, 0, None, None, None], new, state)
    read = jax.lax.dot_general(new, c, (((3,), (2,)), ((0, 1), (0, 1))))  # [B, M, P]
    return read[:, None], new


def ssd(
    x: Float[Array, "B T M P"],
    delta: Float[Array, "B T M"],
    decay: Float[Array, "B T M"],
    bc: tuple[Float[Array, "B T R N"], Float[Array, "B T R N"]],
    ordinal: Int[Array, "B T"],
    *,
    chunk: int,
    state: Float[Array, "B M P N"] | None = None,
) -> tuple[Float[Array, "B T M P"], Float[Array, "B M P N"]]:
    """Returns the recurrence in chunks, and the state after the row; float32.

    Within a chunk, with cs the running sum of the log decay: y_t = sum_{s<=t} (C_t.B_s)
    exp(cs_t - cs_s) delta_s x_s + exp(cs_t) C_t.S_in; the state leaves as exp(cs_end) S_in +
    sum_s exp(cs_end - cs_s) delta_s x_s (x) B_s (Mamba-2, section 6). Terms that cross a segment
    border are left out. `state` belongs to segment number 0.
    """
    time = x.shape[1]
    chunk = min(chunk, time)
    pad = -time % chunk
    ordinal = jnp.pad(ordinal, ((0, 0), (0, pad)), mode="edge")
    ordinal = ordinal.reshape(ordinal.shape[0], -1, chunk)
    x, delta, decay, b, c = (_chunked(entry, pad, chunk) for entry in (x, delta, decay, *bc))
    sums = _running_sum(decay)
    driven = _grouped(x * delta[..., None], b.shape[3])  # [B, chunks, C, R, M/R, P]
    last = ordinal[:, :, -1:]
    first = jnp.pad(last[:, :-1], ((0, 0), (1, 0), (0, 0)))  # the segment that S_in belongs to
    y = _within_chunks(sums, driven, b, c, ordinal)

    to_end = _masked_exp(sums[:, :, -1:] - sums, (ordinal == last)[..., None])
    pushed = driven * _grouped(to_end[..., None], b.shape[3])
    pushed = jnp.einsum("bksrhp,bksrn->bkrhpn", pushed, b)
    keep = _masked_exp(sums[:, :, -1], first == last)  # [B, chunks, M]
    before, state = _carry(pushed, keep, state)
    from_start = _masked_exp(sums, (ordinal == first)[..., None])
    carried = jnp.einsum("bktrn,bkrhpn->bktrhp", c, before)
    y = y + carried * _grouped(from_start[..., None], b.shape[3])
    return y.reshape(y.shape[0], -1, *x.shape[3:])[:, :time], state


def _chunked(entry: Array, pad: int, chunk: int) -> Array:
    widths = ((0, 0), (0, pad)) + ((0, 0),) * (entry.ndim - 2)
    padded = jnp.pad(entry.astype(jnp.float32), widths) if pad else entry.astype(jnp.float32)
    return padded.reshape(entry.shape[0], -1, chunk, *entry.shape[2:])


def _running_sum(decay: Float[Array, "B K C M"]) -> Float[Array, "B K C M"]:
    # As a product with a triangle: several times faster than a windowed sum, both ways.
    triangle = jnp.tril(jnp.ones((decay.shape[2],) * 2, decay.dtype))
    return jnp.einsum("ts,bksm->bktm", triangle, decay, precision=jax.lax.Precision.HIGHEST)


def _grouped(entry: Float[Array, "B K C M X"], groups: int) -> Float[Array, "B K C R H X"]:
    return entry.reshape(*entry.shape[:3], groups, -1, entry.shape[4])


def _masked_exp(exponent: Array, mask: Array) -> Array:
    # The mask comes first: beyond it the exponent overflows, and 0 x inf would reach the gradient.
    return jnp.exp(jnp.where(mask, exponent, -jnp.inf))


def _within_chunks(
    sums: Float[Array, "B K C M"],
    driven: Float[Array, "B K C R H P"],
    b: Float[Array, "B K C R N"],
    c: Float[Array, "B K C R N"],
    ordinal: Int[Array, "B K C"],
) -> Float[Array, "B K C R H P"]:
    chunk, groups = sums.shape[2], b.shape[3]
    seen = jnp.tril(jnp.ones((chunk, chunk), bool))[None, None]
    seen = seen & (ordinal[:, :, :, None] == ordinal[:, :, None, :])
    sums = jnp.moveaxis(sums, 3, 2)  # [B, K, M, C]
    decayed = _masked_exp(sums[..., :, None] - sums[..., None, :], seen[:, :, None])
    decayed = decayed.reshape(*decayed.shape[:2], groups, -1, chunk, chunk)
    scores = jnp.einsum("bktrn,bksrn->bkrts", c, b)
    return jnp.einsum("bkrhts,bksrhp->bktrhp", scores[:, :, :, None] * decayed, driven)


def _carry(
    pushed: Float[Array, "B K R H P N"],
    keep: Float[Array, "B K M"],
    state: Float[Array, "B M P N"] | None,
) -> tuple[Float[Array, "B K R H P N"], Float[Array, "B M P N"]]:
    """Returns the state before each chunk and after the last."""
    rows, chunks, groups, per_group, head_dim, width = pushed.shape
    shape = (rows, groups, per_group, head_dim, width)
    start = jnp.zeros(shape, jnp.float32) if state is None else state.reshape(shape)
    keep = keep.reshape(rows, chunks, groups, per_group, 1, 1)

    def step(carried: Array, entry: tuple[Array, Array]) -> tuple[Array, Array]:
        kept, new = entry
        return kept * carried + new, carried

    over = jnp.moveaxis(keep, 1, 0), jnp.moveaxis(pushed, 1, 0)
    end, before = jax.lax.scan(step, start, over)
    return jnp.moveaxis(before, 0, 1), end.reshape(rows, groups * per_group, head_dim, width)
