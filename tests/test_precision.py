"""The precision policy: what may be rounded is rounded at its use, and nothing else ever is."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import random_params, tiny_config, variant_config
from published import mean_kl

from nemocascade_jax import dispatch
from nemocascade_jax.models import hybrid, layers, mamba2, moe
from nemocascade_jax.sharding import map_specs, no_shard
from tolerances import BF16, BF16_KL, ORDER_F32

VARIANTS = ["default", "rotary"]


def with_policy(cfg, **changes):
    return dataclasses.replace(cfg, precision=dataclasses.replace(cfg.precision, **changes))


def narrow(variant="default", **changes):
    cfg = with_policy(variant_config(variant), compute="bfloat16", **changes)
    return cfg, random_params(cfg)


@functools.partial(jax.jit, static_argnames="cfg")
def logits_of(params, tokens, cfg):
    hidden, _ = hybrid.forward(params, tokens, jnp.ones_like(tokens), cfg, no_shard)
    return hybrid.logits(params, hidden, cfg)


@functools.partial(jax.jit, static_argnames="cfg")
def decoded_logits(params, tokens, cfg):
    """Returns the logits of the second half of the tokens, decoded one at a time after the first."""
    half = tokens.shape[1] // 2
    lengths = jnp.full(tokens.shape[0], half)
    start = hybrid.prefill(params, tokens[:, :half], lengths, cfg, no_shard, max_len=2 * half)

    def step(carry, token):
        hidden, cache = carry
        carry = hybrid.decode_step(params, token, cache, cfg, no_shard)[:2]
        return carry, hybrid.logits(params, hidden, cfg)

    return jax.lax.scan(step, start[:2], tokens[:, half:].T)[1].swapaxes(0, 1)


def draw_tokens(rng, rows=8, time=32):
    return jnp.asarray(rng.integers(0, 64, (rows, time)), jnp.int32)


@pytest.mark.parametrize(
    ("variant", "state"),
    [("default", "bfloat16"), pytest.param("rotary", "float32", marks=pytest.mark.slow)],
)
def test_forward_and_decoding_agree_in_bfloat16(variant, state, rng):
    cfg, params = narrow(variant, ssm_state=state)
    tokens = draw_tokens(rng)
    full, decoded = logits_of(params, tokens, cfg)[:, 15:31], decoded_logits(params, tokens, cfg)
    assert 0 < mean_kl(full, decoded) < BF16_KL
    gap = jnp.abs(jax.nn.log_softmax(full) - jax.nn.log_softmax(decoded))
    gap = jnp.take_along_axis(gap, tokens[:, 16:, None], axis=2)
    assert gap.mean() < BF16.atol  # what the sampler and the trainer of one policy part by
    whole = logits_of(params, tokens, with_policy(cfg, compute="float32", ssm_state="float32"))
    assert BF16_KL / 1e3 < mean_kl(whole[:, 15:31], full) < 10 * BF16_KL


@pytest.mark.parametrize("pattern", ["M*E-", "ME*E" * 3])  # unrolled, scanned
def test_types_of_every_part(pattern):
    """Nothing is computed: the types alone."""
    cfg = with_policy(tiny_config(pattern), compute="bfloat16")
    params = random_params(cfg)
    tokens = jnp.zeros((2, 8), jnp.int32)

    def loss(params):
        hidden, _ = hybrid.forward(
            params, tokens, jnp.ones_like(tokens), cfg, no_shard, remat="full"
        )
        logits = hybrid.logits(params, hidden, cfg)
        return logits.sum(), (hidden, logits)

    grads, (hidden, logits) = jax.eval_shape(jax.grad(loss, has_aux=True), params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(grads)} == {"float32"}
    assert (hidden.dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)
    inputs = jnp.zeros((2, 11, 96), jnp.bfloat16)
    conv = jnp.zeros((4, 96)), jnp.zeros((96,))
    mixed = jax.eval_shape(mamba2.conv_silu, inputs, jnp.ones((2, 11), jnp.int32), *conv)
    assert mixed.dtype == jnp.bfloat16
    stream = jax.eval_shape(
        lambda p: hybrid.residual_stream(p, tokens, tokens, cfg, no_shard), params
    )
    assert stream.dtype == jnp.bfloat16
    for state in ("float32", "bfloat16"):
        wide = with_policy(cfg, ssm_state=state)
        empty = jax.eval_shape(lambda wide=wide: hybrid.init_cache(wide, 2, 16))
        run = functools.partial(hybrid.prefill, cfg=wide, shard=no_shard, max_len=16)
        _, cache, _ = jax.eval_shape(run, params, tokens, jnp.asarray([8, 3]))
        step = functools.partial(hybrid.decode_step, cfg=wide, shard=no_shard)
        _, later, _ = jax.eval_shape(step, params, tokens[:, 0], cache)
        assert jax.tree.map(str, empty) == jax.tree.map(str, cache) == jax.tree.map(str, later)
        held = [layer for unit in cache.layers for layer in unit]
        types = {name: x.dtype.name for layer in held for name, x in layer.items()}
        assert types == dict.fromkeys(("conv", "k", "v"), "bfloat16") | {"ssm": state}


def rounded(params, name):
    """Returns parameters of which those called `name` went through bfloat16."""

    def one(path, leaf):
        last = path[-1].key if hasattr(path[-1], "key") else None
        return leaf.astype(jnp.bfloat16).astype(jnp.float32) if last == name else leaf

    return jax.tree_util.tree_map_with_path(one, params)


@pytest.mark.parametrize(
    ("variant", "never", "at_use"),
    [
        (
            "default",
            ("A_log", "D", "dt_bias", "correction_bias", "router", "norm", "pre_norm", "conv_w"),
            ("w_q", "w_xbc", "w_dt", "w_out", "w_up", "w_down", "shared_up", "embed", "head"),
        ),
        ("rotary", ("router", "q_norm", "k_norm"), ("w_gate", "shared_gate", "w_o")),
    ],
)
def test_weights_are_narrowed_at_use_or_never(variant, never, at_use, rng):
    """Rounding a weight beforehand changes the outcome if it is used whole, and nothing if not."""
    cfg, params = narrow(variant)
    tokens = draw_tokens(rng)
    plain = logits_of(params, tokens, cfg)
    for name in at_use:
        np.testing.assert_array_equal(logits_of(rounded(params, name), tokens, cfg), plain, name)
    for name in never:
        assert (logits_of(rounded(params, name), tokens, cfg) != plain).any(), name


@pytest.mark.parametrize("op", ["project", "logits", "experts", "scanned experts"])
def test_gradients_of_masters_are_not_rounded(op, rng, monkeypatch):
    """Each has more digits than bfloat16 holds. Not compiled: a compiler may skip a rounding by itself."""
    x = jnp.asarray(rng.normal(size=(2, 8, 32)), jnp.bfloat16)
    weight = jnp.asarray(rng.normal(size=(32, 64)), jnp.float32)
    if op == "scanned experts":
        monkeypatch.setattr(dispatch, "GATHER_LIMIT", 0)

    def product(weight):
        if op == "project":
            return layers.project(x, weight)
        if op == "logits":
            return layers.logits({"head": weight}, x, tiny_config())
        return dispatch.block_product(x, weight[None], jnp.zeros(2, jnp.int32))

    out, back = jax.vjp(product, weight)
    assert out.dtype == (jnp.float32 if op == "logits" else jnp.bfloat16)
    (grad,) = back(jnp.asarray(rng.normal(size=out.shape), out.dtype))
    assert (grad.astype(jnp.bfloat16).astype(jnp.float32) != grad).any()
    exact = np.einsum("btd,btf->df", np.float64(x), np.float64(jnp.ones_like(out)))
    (ones,) = back(jnp.ones_like(out))
    np.testing.assert_allclose(ones, exact, *ORDER_F32)


def test_held_narrow_keeps_what_routing_and_decay_need(rng):
    """A bias of 3 and a bit, held in bfloat16, would send tokens to other experts (T12)."""
    cfg = with_policy(tiny_config("ME*-"), params="bfloat16")
    kept = []
    specs = hybrid.model_specs(cfg)
    map_specs(
        lambda path, _: kept.append(path) if "32" in layers.held_type(path, cfg) else None, specs
    )
    names = {path.rsplit("/", 1)[-1] for path in kept}
    assert names == {"A_log", "D", "dt_bias", "norm", "pre_norm", "router", "correction_bias"}
    layer = jax.tree.map(lambda leaf: leaf[0], random_params(cfg)["units"][0][1])
    x = jnp.asarray(rng.normal(size=(8, 32, 32)), jnp.bfloat16)
    seen = jnp.ones((8, 32), jnp.int32)
    whole = moe.route(layer, x, seen, cfg.moe)
    widened = moe.route(layer, x.astype(jnp.float32), seen, cfg.moe)
    np.testing.assert_array_equal(whole.expert_ids, widened.expert_ids)
    np.testing.assert_array_equal(whole.weights, widened.weights)
    rough = moe.route(rounded(layer, "correction_bias"), x, seen, cfg.moe)
    assert (rough.expert_ids != whole.expert_ids).any()
