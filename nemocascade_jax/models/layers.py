"""What every layer kind shares: norms, projections, the dense MLP, the embedding and the head."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.sharding import Init, Params, ParamSpec, Shard, constant, normal

# Held in float32 whatever `precision.params` says: small, and wrong after rounding (the selection
# bias sits on a common offset; decay and step size are exponentiated; routing flips at near ties).
NEVER_NARROWED = ("A_log", "D", "dt_bias", "correction_bias", "router", "norm")


def held_type(name: str, cfg: ModelConfig) -> str:
    """Returns the type that a weight of this name (the end of its path) is held in."""
    own = name.rsplit("/", 1)[-1]
    kept = own in NEVER_NARROWED or own.endswith("_norm")
    return "float32" if kept else cfg.precision.params


def uniform(bound: float) -> Init:
    """Returns the init that draws from [-bound, bound)."""
    return lambda key, shape: jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def kaiming_uniform(fan_in: int, gain: float = 1.0) -> Init:
    """Returns the uniform init with bound gain / sqrt(fan_in): Kaiming's with slope sqrt(5)."""
    return uniform(gain / math.sqrt(fan_in))


def linear(cfg: ModelConfig, rows: tuple[int, str], columns: tuple[int, str]) -> ParamSpec:
    """Declares an [in, out] matrix drawn from normal(0, init_std)."""
    return ParamSpec((rows[0], columns[0]), (rows[1], columns[1]), normal(cfg.init_std))


def norm_spec(width: int) -> ParamSpec:
    return ParamSpec((width,), (None,), constant(1.0))


def spread(weight: Float[Array, "X"], like: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Repeats a per-feature weight over the leading dimensions of `like`, in float32."""
    return jnp.broadcast_to(weight.astype(jnp.float32), like.shape)


def rms_norm(
    x: Float[Array, "... D"], weight: Float[Array, "D"], eps: float
) -> Float[Array, "... D"]:
    """Divides by the root mean square of the last dimension and scales, both in float32."""
    return grouped_norm(x.astype(jnp.float32), weight.astype(jnp.float32), 1, eps).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def grouped_norm(
    x: Float[Array, "... D"], weight: Float[Array, "D"], groups: int, eps: float
) -> Float[Array, "... D"]:
    """Returns x r weight with r = (mean over a group of x^2 + eps)^-1/2, each group by itself.

    With g = d out weight: d x = r (g - x r^2 mean(g x)), d weight = sum d out x r; only x is kept.
    """
    return x * _inverse_rms(x, groups, eps) * spread(weight, x)


def _group_mean(x: Array, groups: int) -> Array:
    """Returns the mean of each group of features, repeated over the group."""
    means = jnp.mean(x.reshape(*x.shape[:-1], groups, -1), axis=-1, keepdims=True)
    return jnp.broadcast_to(means, (*means.shape[:-1], x.shape[-1] // groups)).reshape(x.shape)


def _inverse_rms(x: Array, groups: int, eps: float) -> Array:
    return jax.lax.rsqrt(_group_mean(jnp.square(x), groups) + eps)


def _norm_forward(x: Array, weight: Array, groups: int, eps: float) -> tuple[Array, tuple]:
    return grouped_norm(x, weight, groups, eps), (x, weight)


def _norm_backward(groups: int, eps: float, saved: tuple, grad: Array) -> tuple[Array, Array]:
    x, weight = saved
    inverse = _inverse_rms(x, groups, eps)
    scaled = grad * spread(weight, x)
    d_x = inverse * (scaled - x * jnp.square(inverse) * _group_mean(scaled * x, groups))
    d_weight = jnp.sum((grad * x * inverse).reshape(-1, x.shape[-1]), axis=0)
    return d_x, d_weight


grouped_norm.defvjp(_norm_forward, _norm_backward)


@jax.custom_vjp
def silu_product(x: Float[Array, "*shape"], gate: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns x silu(gate); the gradient keeps nothing but the two inputs."""
    return x * gate / (1 + jnp.exp(-gate))


def _product_forward(x: Array, gate: Array) -> tuple[Array, tuple[Array, Array]]:
    return silu_product(x, gate), (x, gate)


def _product_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, gate = saved
    closing = 1 + jnp.exp(-gate)
    return grad * gate / closing, grad * x * (1 + gate * (1 - 1 / closing)) / closing


silu_product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def project(x: Float[Array, "... D"], weight: Float[Array, "D F"]) -> Float[Array, "... F"]:
    """Returns x weight in the type of x, one linear map a position.

    A wider weight is narrowed here, at its use, and its gradient is summed and returned in its own
    type. That gradient, the usual one, fences the incoming gradient off: XLA on CPU otherwise computes what
    leads to it column by column inside the transpose that d weight = x^T g asks for (10x slower).
    """
    return x @ weight.astype(x.dtype)


def _project_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return project(x, weight), (x, weight)


def _project_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = saved
    grad = jax.lax.optimization_barrier(grad)
    rows, columns = x.reshape(-1, weight.shape[0]), grad.reshape(-1, weight.shape[1])
    d_weight = jnp.matmul(rows.T, columns, preferred_element_type=jnp.float32)
    return grad @ weight.T.astype(grad.dtype), d_weight.astype(weight.dtype)


project.defvjp(_project_forward, _project_backward)


def relu2(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.square(jax.nn.relu(x))


def mlp_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    assert cfg.mlp_inner is not None
    width, inner = (cfg.width, "embed"), (cfg.mlp_inner, "mlp")
    gate = {"w_gate": linear(cfg, width, inner)} if cfg.activation == "gated_silu" else {}
    return gate | {"w_up": linear(cfg, width, inner), "w_down": linear(cfg, inner, width)}


def mlp(
    params: Params, x: Float[Array, "B T D"], shard: Shard, prefix: str = "w"
) -> Float[Array, "B T D"]:
    """Returns down(relu(up x)^2), or down(silu(gate x) up x) where the weights have a gate."""
    up = project(x, params[f"{prefix}_up"])
    if f"{prefix}_gate" in params:
        gate = project(x, params[f"{prefix}_gate"])
        hidden = silu_product(up.astype(jnp.float32), gate.astype(jnp.float32)).astype(x.dtype)
    else:
        hidden = relu2(up)
    return project(shard(hidden, "batch", "seq", "mlp"), params[f"{prefix}_down"])


def embed_specs(cfg: ModelConfig) -> dict[str, ParamSpec]:
    """Declares the input table, the final norm, and the output head unless it is tied."""
    table = (cfg.vocab_size, "vocab"), (cfg.width, "embed")
    specs = {"embed": linear(cfg, *table), "norm": norm_spec(cfg.width)}
    return specs if cfg.tied_embeddings else specs | {"head": linear(cfg, *reversed(table))}


def embed(
    params: Params, tokens: Int[Array, "B T"], cfg: ModelConfig, shard: Shard
) -> Float[Array, "B T D"]:
    """Returns the residual stream's start, in the type that the layers compute in."""
    return shard(params["embed"][tokens].astype(cfg.precision.compute), "batch", "seq", None)


def logits(
    params: Params, hidden: Float[Array, "... D"], cfg: ModelConfig
) -> Float[Array, "... V"]:
    """Projects final hidden states onto the vocabulary; summed in float32 whatever the operands."""
    head = params["embed"].T if cfg.tied_embeddings else params["head"]
    return _wide_product(hidden, head)


@jax.custom_vjp
def _wide_product(x: Float[Array, "... D"], weight: Float[Array, "D V"]) -> Float[Array, "... V"]:
    """Returns x weight in float32, the weight narrowed to the type of x; gradients as `project`'s."""
    return jnp.matmul(x, weight.astype(x.dtype), preferred_element_type=jnp.float32)


def _wide_forward(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return _wide_product(x, weight), (x, weight)


def _wide_backward(saved: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    return _project_backward(saved, grad.astype(saved[0].dtype))


_wide_product.defvjp(_wide_forward, _wide_backward)
