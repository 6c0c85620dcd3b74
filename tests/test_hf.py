"""Published checkpoint folders: names, shapes, types, shards, and what is refused."""

import json
import math

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nemocascade_jax.errors import InputError
from nemocascade_jax.formats import families, hf
from nemocascade_jax.models import hybrid
from nemocascade_jax.sharding import map_specs

CONFIG = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*-",
    "num_hidden_layers": 4,
    "hidden_size": 8,
    "vocab_size": 10,
    "intermediate_size": 12,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "rescale_prenorm_residual": True,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "mamba_num_heads": 2,
    "mamba_head_dim": 3,
    "ssm_state_size": 5,
    "n_groups": 1,
    "conv_kernel": 4,
    "chunk_size": 8,
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "time_step_floor": 1e-4,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 7,
    "moe_shared_expert_intermediate_size": 9,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
# Inner width 6, conv channels 6 + 2 x 5 = 16, in_proj rows 6 + 16 + 2.
SHAPES = {
    "backbone.embeddings.weight": (10, 8),
    "backbone.norm_f.weight": (8,),
    "lm_head.weight": (10, 8),
    **{f"backbone.layers.{i}.norm.weight": (8,) for i in range(4)},
    "backbone.layers.0.mixer.in_proj.weight": (24, 8),
    "backbone.layers.0.mixer.conv1d.weight": (16, 1, 4),
    "backbone.layers.0.mixer.conv1d.bias": (16,),
    "backbone.layers.0.mixer.A_log": (2,),
    "backbone.layers.0.mixer.D": (2,),
    "backbone.layers.0.mixer.dt_bias": (2,),
    "backbone.layers.0.mixer.norm.weight": (6,),
    "backbone.layers.0.mixer.out_proj.weight": (8, 6),
    "backbone.layers.1.mixer.gate.weight": (2, 8),
    "backbone.layers.1.mixer.gate.e_score_correction_bias": (2,),
    **{f"backbone.layers.1.mixer.experts.{e}.up_proj.weight": (7, 8) for e in range(2)},
    **{f"backbone.layers.1.mixer.experts.{e}.down_proj.weight": (8, 7) for e in range(2)},
    "backbone.layers.1.mixer.shared_experts.up_proj.weight": (9, 8),
    "backbone.layers.1.mixer.shared_experts.down_proj.weight": (8, 9),
    "backbone.layers.2.mixer.q_proj.weight": (8, 8),
    "backbone.layers.2.mixer.k_proj.weight": (4, 8),
    "backbone.layers.2.mixer.v_proj.weight": (4, 8),
    "backbone.layers.2.mixer.o_proj.weight": (8, 8),
    "backbone.layers.3.mixer.up_proj.weight": (12, 8),
    "backbone.layers.3.mixer.down_proj.weight": (8, 12),
}


@pytest.fixture
def tensors(rng):
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def cfg():
    return families.model_config_from_hf(CONFIG)


def test_tensors_land_where_the_specs_say(tensors, cfg, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    params = hf.load_hf(tmp_path, cfg)
    shapes = map_specs(lambda path, spec: spec.shape, hybrid.model_specs(cfg))
    assert jax.tree.map(lambda leaf: leaf.shape, params) == shapes
    mamba, moe, attention, mlp = params["units"][0]
    fused = tensors["backbone.layers.0.mixer.in_proj.weight"]
    np.testing.assert_array_equal(mamba["w_gate"][0], fused[:6].T)
    np.testing.assert_array_equal(mamba["w_xbc"][0], fused[6:22].T)
    np.testing.assert_array_equal(mamba["w_dt"][0], fused[22:].T)
    conv = tensors["backbone.layers.0.mixer.conv1d.weight"]
    np.testing.assert_array_equal(mamba["conv_w"][0, 3], conv[:, 0, 3])
    up = tensors["backbone.layers.1.mixer.experts.1.up_proj.weight"]
    np.testing.assert_array_equal(moe["w_up"][0, 1], up.T)
    output = tensors["backbone.layers.2.mixer.o_proj.weight"]
    np.testing.assert_array_equal(attention["w_o"][0], output.T)
    np.testing.assert_array_equal(
        mlp["w_down"][0], tensors["backbone.layers.3.mixer.down_proj.weight"].T
    )
    np.testing.assert_array_equal(params["head"], tensors["lm_head.weight"].T)


def test_future_heads_are_ignored(tensors, cfg, tmp_path):
    save_file(tensors | {"mtp.0.weight": np.zeros(3)}, tmp_path / "model.safetensors")
    hf.load_hf(tmp_path, cfg)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("backbone.layers.0.mixer.D", None, "is missing"),
        ("backbone.layers.0.mixer.D", np.zeros(3, np.float32), r"shape \[3\], expected \[2\]"),
        ("backbone.layers.0.mixer.D", np.zeros(2, np.int32), "holds I32, expected floats"),
        ("backbone.layers.0.mixer.E", np.zeros(2, np.float32), "is not part of pattern 'ME"),
        ("lm_head.weight", np.zeros((8, 10), np.float32), r"shape \[8, 10\], expected \[10, 8\]"),
    ],
)
def test_wrong_tensors_are_refused_by_name(name, change, message, tensors, cfg, tmp_path):
    tensors.pop(name, None)
    if change is not None:
        tensors[name] = change
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=message) as caught:
        hf.load_hf(tmp_path, cfg)
    assert name in str(caught.value)


def write_shards(tensors, folder):
    names = sorted(tensors)
    table = {
        name: f"model-{index % 3 + 1:05}-of-00003.safetensors" for index, name in enumerate(names)
    }
    for file in sorted(set(table.values())):
        save_file({name: tensors[name] for name in names if table[name] == file}, folder / file)
    return table


def test_shards_are_read_through_the_index(tensors, cfg, tmp_path):
    table = write_shards(tensors, tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": table}))
    params = hf.load_hf(tmp_path, cfg)
    np.testing.assert_array_equal(params["embed"], tensors["backbone.embeddings.weight"])
    files = sorted(set(table.values()))
    table["lm_head.weight"] = files[(files.index(table["lm_head.weight"]) + 1) % 3]
    index.write_text(json.dumps({"weight_map": table}))
    with pytest.raises(InputError, match=r"lm_head.weight is missing, but .* places it there"):
        hf.load_hf(tmp_path, cfg)


def test_folders_without_weights_or_config_are_refused(cfg, tmp_path):
    with pytest.raises(InputError, match=r"holds neither model.safetensors nor"):
        hf.load_hf(tmp_path, cfg)
    with pytest.raises(InputError, match=r"config.json: no such file"):
        hf.read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json:1: not JSON"):
        hf.read_config(tmp_path)
    (tmp_path / "model.safetensors").write_text("not a tensor file")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        hf.load_hf(tmp_path, cfg)


# --- configs -------------------------------------------------------------------------------------


def test_config_spellings_agree(cfg):
    listed = dict(CONFIG)
    del listed["hybrid_override_pattern"]
    newer = listed | {"layers_block_type": ["mamba", "moe", "attention", "mlp"]}
    newest = listed | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]}
    assert families.model_config_from_hf(newer) == cfg
    assert families.model_config_from_hf(newest) == cfg


@pytest.mark.parametrize("high", [math.inf, {"__float__": "Infinity"}, 1e30])
def test_infinite_step_limits_are_none(high):
    limit = families.model_config_from_hf(CONFIG | {"time_step_limit": [0.0, high]}).mamba
    assert limit.time_step_limit is None
    low = families.model_config_from_hf(CONFIG | {"time_step_limit": [0.01, high]}).mamba
    assert low.time_step_limit == (0.01, 1e30)


def test_finite_step_limits_are_kept():
    read = families.model_config_from_hf(CONFIG | {"time_step_limit": [0.01, 0.2]})
    assert read.mamba.time_step_limit == (0.01, 0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; known:.* nemotron_h"),
        ({"attention_bias": True}, "attention_bias is True, only False"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu', only 'relu2'"),
        ({"n_shared_experts": 2}, "n_shared_experts is 2"),
        ({"num_hidden_layers": 5}, "num_hidden_layers is 5, the pattern 'ME"),
        ({"hidden_size": None}, "missing key 'hidden_size'"),
        ({"n_routed_experts": 0}, "experts: expected int at least 1"),
    ],
)
def test_configs_that_cannot_be_computed_are_refused(change, message):
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    with pytest.raises(InputError, match=message):
        families.model_config_from_hf(config)


def test_unknown_layer_kinds_are_refused():
    config = {key: value for key, value in CONFIG.items() if key != "hybrid_override_pattern"}
    with pytest.raises(InputError, match="layers_block_type has 'conv'; known: mamba"):
        families.model_config_from_hf(config | {"layers_block_type": ["mamba", "conv"]})


# --- the published folders -----------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["published_sharded", "published_bf16"])
def test_published_dialects_hold_the_same_weights(dialect, extra_dir):
    folder = extra_dir / "fixtures" / "nemotron_h_tiny"
    cfg = families.model_config_from_hf(hf.read_config(folder / "published"))
    assert families.model_config_from_hf(hf.read_config(folder / dialect)) == cfg
    plain, other = hf.load_hf(folder / "published", cfg), hf.load_hf(folder / dialect, cfg)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(other))
    for (path, want), got in zip(
        jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(other), strict=True
    ):
        name = path[-1].key
        exact = dialect == "published_sharded" or name in ("A_log", "D", "correction_bias")
        if exact:  # kept in float32 beside bfloat16 weights
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=2**-8)
    stored = load_file(folder / "published" / "model.safetensors")
    bias = stored["backbone.layers.1.mixer.gate.e_score_correction_bias"]
    np.testing.assert_array_equal(other["units"][0][1]["correction_bias"][0], bias)
