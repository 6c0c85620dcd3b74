"""The hybrid model: the same thing computed two ways."""

import dataclasses
import functools
import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import (
    next_id_params,
    random_params,
    tiny_config,
    tiny_hybrid_config,
    unigram_params,
    variant_config,
)

import golden
from nemocascade_jax.config import MeshConfig, RulesConfig
from nemocascade_jax.formats import families
from nemocascade_jax.models import hybrid
from nemocascade_jax.sharding import (
    init_params,
    make_mesh,
    make_shard,
    map_specs,
    no_shard,
    param_shardings,
)
from tolerances import (
    GRAD_F32,
    MESH_SCALAR,
    ORDER_F32,
    SAME_F32,
)

near = np.testing.assert_allclose
ROWS, TIME = 8, 32
VARIANTS = ["default", "latent", "mamba", "rotary"]
NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


@functools.partial(jax.jit, static_argnames=("cfg", "remat"))
def run(params, tokens, segment_ids, cfg, remat="none"):
    hidden, aux = hybrid.forward(params, tokens, segment_ids, cfg, no_shard, remat=remat)
    return hybrid.logits(params, hidden, cfg), hidden, aux


@functools.partial(jax.jit, static_argnames=("cfg", "remat"))
def loss_and_grad(params, tokens, segment_ids, weight, cfg, remat="none"):
    """Sums weight x a smooth function of the logits, so that every position and id counts."""

    def loss(params):
        hidden, _ = hybrid.forward(params, tokens, segment_ids, cfg, no_shard, remat=remat)
        return jnp.sum(jnp.square(jax.nn.log_softmax(hybrid.logits(params, hidden, cfg))) * weight)

    return jax.value_and_grad(loss)(params)


@functools.partial(jax.jit, static_argnames=("cfg", "max_len"))
def prefill(params, tokens, lengths, cfg, max_len):
    return hybrid.prefill(params, tokens, lengths, cfg, no_shard, max_len=max_len)


@functools.partial(jax.jit, static_argnames=("cfg",))
def step(params, token, cache, cfg, active=None):
    return hybrid.decode_step(params, token, cache, cfg, no_shard, active=active)


def greedy(params, tokens, lengths, cfg, *, max_len, steps):
    """Returns the ids and logits of `steps` greedy tokens, and the last cache."""
    hidden, cache, _ = prefill(params, tokens, lengths, cfg, max_len)
    ids, rows = [], []
    for number in range(steps):
        rows.append(hybrid.logits(params, hidden, cfg))
        ids.append(rows[-1].argmax(-1).astype(jnp.int32))
        if number < steps - 1:
            hidden, cache, _ = step(params, ids[-1], cache, cfg)
    return np.stack(ids, 1), np.stack(rows, 1), cache


def draw_tokens(rng, *shape, vocab=64):
    return jnp.asarray(rng.integers(0, vocab, shape), jnp.int32)


def packed_batch(rng, lengths):
    """Returns a batch of one packed row among empty ones; few shapes, since each costs a compile."""
    segments = np.zeros((ROWS, TIME), np.int32)
    segments[0, : sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return draw_tokens(rng, ROWS, TIME), jnp.asarray(segments)


def weights_of(rng, segments):
    weight = jnp.asarray(rng.normal(size=segments.shape), jnp.float32)
    return jnp.where(segments > 0, weight, 0)[..., None]


def equal_trees(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def trees_near(one, other, tolerance):
    jax.tree.map(lambda a, b: near(a, b, *tolerance), one, other)


# --- the pattern and the declarations ------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "cuts"),
    [
        ("ME*EME*E", (("ME*E", 2),)),
        (NANO, (("MEMEM*E", 5), ("ME", 3), ("M*E", 1), ("ME", 4))),
        ("MEM*E", (("MEM*E", 1),)),
        ("MMM", (("M", 3),)),
        ("*-*-E", (("*-", 2), ("E", 1))),
    ],
)
def test_cut_pattern_finds_the_fewest_bodies(pattern, cuts):
    assert hybrid.cut_pattern(pattern) == cuts
    places = hybrid.layer_places(pattern)
    assert "".join(cuts[u][0][j] for u, j, _ in places) == pattern
    assert len(set(places)) == len(pattern)


def test_specs_stack_each_unit_on_a_leading_axis():
    specs = hybrid.model_specs(tiny_config("ME*EME*E-"))
    assert [len(unit) for unit in specs["units"]] == [4, 1]
    assert specs["units"][0][1]["w_up"].shape == (2, 4, 32, 24)
    assert specs["units"][1][0]["w_up"].shape == (1, 32, 40)
    paths = []
    map_specs(lambda path, spec: paths.append(path), specs)
    assert "units/0/1/w_up" in paths
    assert "head" not in hybrid.model_specs(tiny_config(tied_embeddings=True))


def test_parameter_counts_of_the_published_model():
    cfg = nano_config()
    assert hybrid.total_param_count(cfg) == golden.NANO_PARAMS
    assert hybrid.active_param_count(cfg) == golden.NANO_ACTIVE_PARAMS


def nano_config():
    return families.model_config_from_hf(
        {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": NANO,
            "num_hidden_layers": 52,
            "hidden_size": 2688,
            "vocab_size": 131072,
            "layer_norm_epsilon": 1e-5,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
            "initializer_range": 0.02,
            "rescale_prenorm_residual": True,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "chunk_size": 128,
            "time_step_min": 0.001,
            "time_step_max": 0.1,
            "time_step_floor": 1e-4,
            "time_step_limit": [0.0, math.inf],
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
        }
    )


def test_initial_weights_follow_the_published_rules(key):
    cfg = tiny_config("ME*-", width=64)
    params = init_params(hybrid.model_specs(cfg), key)
    mamba, moe = params["units"][0][0], params["units"][0][1]
    assert abs(float(params["embed"].std()) - 0.02) < 2e-3
    assert abs(float(moe["w_up"].std()) - 0.02) < 2e-3
    assert not moe["correction_bias"].any()
    near(mamba["A_log"][0], np.log([1, 2, 3, 4]), *SAME_F32)
    steps = np.log1p(np.exp(mamba["dt_bias"]))
    assert (steps >= 1e-4).all()
    assert (steps <= 0.1 * (1 + 1e-5)).all()
    bound = 1 / math.sqrt(64) / math.sqrt(4)  # fan-in 4 heads x 16; 4 layers
    largest = float(jnp.abs(mamba["w_out"]).max())
    assert 0.98 * bound < largest <= bound


# --- crafted models ------------------------------------------------------------------------------


def test_unigram_model_gives_its_distribution_everywhere(rng):
    cfg = tiny_config("ME*-")
    params = unigram_params(cfg, golden.UNIGRAM)
    tokens = draw_tokens(rng, 2, 5)
    logits, _, _ = run(params, tokens, jnp.ones_like(tokens), cfg)
    probs = jax.nn.softmax(logits)
    near(probs[..., :4], np.broadcast_to(golden.UNIGRAM, (2, 5, 4)), atol=2e-5)


def test_next_id_model_prefers_the_next_id():
    cfg = tiny_config("M*")
    tokens = jnp.asarray([[0, 1, 2, 3]], jnp.int32)
    logits, _, _ = run(next_id_params(cfg), tokens, jnp.ones_like(tokens), cfg)
    probs = np.asarray(jax.nn.softmax(logits))[0, :, :4]
    near(probs, 0.1 + 0.6 * np.roll(np.eye(4), 1, axis=1), atol=2e-4)


# --- two ways ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant", ["default", "latent", "rotary", pytest.param("mamba", marks=pytest.mark.slow)]
)
def test_packed_rows_match_single_examples(variant, rng):
    cfg = variant_config(variant)
    params = random_params(cfg)
    lengths = [
        3,
        1,
        8,
        2,
        13,
    ]  # borders inside, on and across chunks of 8, and closer than the conv
    tokens, segments = packed_batch(rng, lengths)
    weight = weights_of(rng, segments)
    alone, mask = jnp.zeros_like(tokens), jnp.zeros_like(segments)
    alone_weight = jnp.zeros_like(weight)
    spans = list(pairwise(np.cumsum([0, *lengths])))
    for row, (start, end) in enumerate(spans):
        alone = alone.at[row, : end - start].set(tokens[0, start:end])
        mask = mask.at[row, : end - start].set(1)
        alone_weight = alone_weight.at[row, : end - start].set(weight[0, start:end])
    packed, _, aux = run(params, tokens, segments, cfg)
    single, _, single_aux = run(params, alone, mask, cfg)
    for row, (start, end) in enumerate(spans):
        near(packed[0, start:end], single[row, : end - start], *ORDER_F32)
    np.testing.assert_array_equal(aux.expert_load, single_aux.expert_load)
    one = loss_and_grad(params, tokens, segments, weight, cfg)
    other = loss_and_grad(params, alone, mask, alone_weight, cfg)
    grads_near(one, other)


def grads_near(one, other):
    """Compares (loss, gradients); the absolute part scales with the largest gradient."""
    scale = max(1.0, *(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(other)))
    trees_near(one, other, (GRAD_F32.rtol, GRAD_F32.atol * scale))


def test_segments_do_not_see_each_other(rng):
    cfg, params = tiny_hybrid_config()
    tokens, segments = packed_batch(rng, [9, 7])
    first, _, _ = run(params, tokens, segments, cfg)
    other, _, _ = run(params, tokens.at[0, :9].set(1), segments, cfg)
    near(first[0, 9:16], other[0, 9:16], *SAME_F32)
    assert np.abs(first[0, :9] - other[0, :9]).max() > 0.1


def test_padding_content_never_matters(rng):
    cfg, params = tiny_hybrid_config()
    tokens, segments = packed_batch(rng, [5, 6])
    weight = weights_of(rng, segments)
    other = jnp.where(segments > 0, tokens, 63 - tokens)
    assert (other != tokens).any()
    one, two = (loss_and_grad(params, t, segments, weight, cfg) for t in (tokens, other))
    equal_trees(one, two)
    one, two = (run(params, t, segments, cfg)[0][segments > 0] for t in (tokens, other))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cached_decoding_matches_the_full_forward(variant, rng):
    cfg = variant_config(variant)
    params = random_params(cfg)
    tokens = draw_tokens(rng, 3, 14)
    lengths = jnp.asarray([4, 9, 10])
    full, _, full_aux = run(params, tokens, jnp.ones_like(tokens), cfg)
    hidden, cache, aux = prefill(params, tokens[:, :10], lengths, cfg, 16)
    for _ in range(4):
        at = np.asarray(cache.length)
        logits = hybrid.logits(params, hidden, cfg)
        near(logits, full[np.arange(3), at - 1], *ORDER_F32)
        hidden, cache, aux = step(params, tokens[np.arange(3), at], cache, cfg)
    if aux.expert_ids is not None:
        last = np.asarray(full_aux.expert_ids)[:, np.arange(3), np.asarray(cache.length) - 1]
        np.testing.assert_array_equal(aux.expert_ids[:, :, 0], last)
    assert cache.places == (16 if "*" in cfg.pattern else None)


def test_inactive_rows_keep_their_cache_and_full_rows_are_not_overwritten(rng):
    cfg, params = tiny_hybrid_config()
    tokens = draw_tokens(rng, 2, 6)
    _, cache, _ = prefill(params, tokens, jnp.asarray([6, 3]), cfg, 6)
    cache = cache.replace(layers=jax.tree.map(lambda leaf: leaf + 1, cache.layers))  # no zeros
    _, after, _ = step(params, tokens[:, 0], cache, cfg, jnp.asarray([False, False]))
    equal_trees(cache, after)
    _, after, _ = step(params, tokens[:, 0], cache, cfg, jnp.asarray([True, False]))
    assert after.length.tolist() == [7, 3]
    equal_trees(*(jax.tree.map(lambda leaf: leaf[:, 1], c.layers) for c in (cache, after)))
    attention = cache.layers[0][1], after.layers[0][1]
    np.testing.assert_array_equal(attention[0]["k"], attention[1]["k"])  # no place: no write
    assert not np.array_equal(cache.layers[0][0]["ssm"], after.layers[0][0]["ssm"])


def test_fork_copies_a_prompt_to_its_group(rng):
    cfg, params = tiny_hybrid_config()
    tokens = draw_tokens(rng, 2, 5)
    hidden, cache, _ = prefill(params, tokens, jnp.asarray([5, 3]), cfg, 8)
    index = jnp.asarray([1, 1, 0])
    forked = hybrid.fork_cache(cache, index)
    assert forked.length.tolist() == [3, 3, 5]
    token = jnp.asarray([7, 8, 7], jnp.int32)
    many, _, _ = step(params, token, forked, cfg)
    both, _, _ = step(params, token[jnp.asarray([2, 1])], cache, cfg)
    near(many[1], both[1], *SAME_F32)
    near(many[2], both[0], *SAME_F32)
    assert np.abs(many[0] - many[1]).max() > 1e-3
    assert many.shape[1:] == hidden.shape[1:]


@pytest.mark.parametrize("pads", [0, 40])
def test_padded_prompts_decode_like_single_ones(pads, rng):
    """Prompts of 2, 5 and 9 in one batch, with and without 40 extra pads (T11)."""
    cfg, params = tiny_hybrid_config()
    lengths = [2, 5, 9]
    tokens = draw_tokens(rng, 3, 9 + pads)
    ids, logits, _ = greedy(params, tokens, jnp.asarray(lengths), cfg, max_len=60, steps=6)
    for row, length in enumerate(lengths):
        one = tokens[row : row + 1, :9]
        alone = greedy(params, one, jnp.asarray([length]), cfg, max_len=60, steps=6)
        np.testing.assert_array_equal(ids[row], alone[0][0])
        near(jax.nn.log_softmax(logits[row]), jax.nn.log_softmax(alone[1][0]), *ORDER_F32)


@pytest.mark.parametrize("variant", ["default", "rotary"])
def test_left_padding_matches_right_padding(variant, rng):
    cfg = variant_config(variant)
    params = random_params(cfg)
    tokens, right = packed_batch(rng, [27])
    left = jnp.roll(right, 5, 1)
    one = run(params, jnp.roll(tokens, 5, 1), left, cfg)[0][0, 5:]
    near(one, run(params, tokens, right, cfg)[0][0, :27], *ORDER_F32)


@pytest.mark.slow
def test_scanned_layers_match_unrolled_ones(rng, monkeypatch):
    cfg, params = tiny_hybrid_config("ME*EME*E")
    tokens, segments = packed_batch(rng, [11, 9])
    weight = weights_of(rng, segments)
    unrolled = (
        run(params, tokens, segments, cfg),
        loss_and_grad(params, tokens, segments, weight, cfg),
    )
    lengths = jnp.full((ROWS,), 11)
    decoded = greedy(params, tokens, lengths, cfg, max_len=40, steps=3)
    monkeypatch.setattr(hybrid, "UNROLLED_LAYERS", 0)
    jax.clear_caches()
    scanned = (
        run(params, tokens, segments, cfg),
        loss_and_grad(params, tokens, segments, weight, cfg),
    )
    again = greedy(params, tokens, lengths, cfg, max_len=40, steps=3)
    jax.clear_caches()
    trees_near(unrolled[0], scanned[0], ORDER_F32)
    grads_near(unrolled[1], scanned[1])
    trees_near(decoded[:2], again[:2], ORDER_F32)


@pytest.mark.slow
def test_remat_changes_nothing(rng):
    cfg, params = tiny_hybrid_config()
    tokens, segments = packed_batch(rng, [20, 9])
    weight = weights_of(rng, segments)
    grads_near(
        loss_and_grad(params, tokens, segments, weight, cfg),
        loss_and_grad(params, tokens, segments, weight, cfg, remat="full"),
    )


def test_tied_head_reads_the_embedding(rng):
    cfg, params = tiny_hybrid_config("*", tied_embeddings=True)
    hidden = jnp.asarray(rng.normal(size=(2, 32)), jnp.float32)
    near(hybrid.logits(params, hidden, cfg), hidden @ params["embed"].T, *SAME_F32)


def test_routing_is_reported_in_published_order(rng):
    cfg, params = tiny_hybrid_config("ME*EME*EE")
    for place, (unit, letter, repeat) in enumerate(hybrid.layer_places(cfg.pattern)):
        if cfg.pattern[place] == "E":  # the bias sends every token of this layer to one pair
            bias = jnp.zeros(4).at[jnp.asarray([place % 4, (place + 1) % 4])].set(10.0)
            layer = params["units"][unit][letter]
            layer["correction_bias"] = layer["correction_bias"].at[repeat].set(bias)
    tokens = draw_tokens(rng, 2, 3)
    _, _, aux = run(params, tokens, jnp.asarray([[1, 1, 1], [1, 0, 0]], jnp.int32), cfg)
    pairs = [{place % 4, (place + 1) % 4} for place in (1, 3, 5, 7, 8)]
    assert [set(np.unique(ids)) for ids in aux.expert_ids] == pairs
    assert [set(np.flatnonzero(load)) for load in aux.expert_load] == pairs
    assert aux.expert_load.sum() == 4 * 2 * 5  # four real tokens


# --- meshes --------------------------------------------------------------------------------------


def rules(**laid):
    names = [field.name for field in dataclasses.fields(RulesConfig)]
    return RulesConfig(**(dict.fromkeys(names, ()) | {"batch": ("data", "fsdp")} | laid))


LAID = {"embed": ("fsdp",), "vocab": ("data",)}


@pytest.mark.parametrize(
    ("variant", "shape", "laid"),
    [
        ("default", (2, 1), {}),
        ("default", (2, 4), LAID),
        pytest.param("latent", (2, 4), LAID, marks=pytest.mark.slow),
        pytest.param("mamba", (2, 4), LAID, marks=pytest.mark.slow),
        pytest.param("rotary", (2, 4), LAID, marks=pytest.mark.slow),
    ],
)
def test_mesh_matches_one_device(variant, shape, laid, rng):
    cfg = variant_config(variant)
    params = random_params(cfg)
    config = MeshConfig(
        data=shape[0], fsdp=shape[1], expert=1, tensor=1, context=1, rules=rules(**laid)
    )
    mesh = make_mesh(config)
    tokens = draw_tokens(rng, ROWS, TIME)
    segments = jnp.ones_like(tokens).at[3, 14:].set(2).at[5, 6:].set(0)
    weight = weights_of(rng, segments)
    shard = make_shard(mesh, config.rules)

    @jax.jit
    def sharded(params, tokens, segments):
        def loss(params):
            hidden, _ = hybrid.forward(params, tokens, segments, cfg, shard)
            logits = hybrid.logits(params, hidden, cfg)
            return jnp.sum(jnp.square(jax.nn.log_softmax(logits)) * weight)

        return jax.value_and_grad(loss)(params)

    placed = jax.device_put(params, param_shardings(hybrid.model_specs(cfg), mesh, config.rules))
    expected = loss_and_grad(params, tokens, segments, weight, cfg)
    got = sharded(placed, tokens, segments)
    near(got[0], expected[0], *MESH_SCALAR)
    grads_near(got, expected)
