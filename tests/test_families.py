"""Published configs: every spelling reads as one model, what cannot be computed is refused by name."""

import dataclasses
import json
import math

import pytest
from model_folders import TINY_HF as CONFIG

from nemocascade_jax.config import ModelConfig, build
from nemocascade_jax.configs import models
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats import config_json, families, tensor_names
from nemocascade_jax.models import hybrid

BLOCKS = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "vocab_size": 64,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
    "initializer_range": 0.02,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_theta": 100000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
}
QWEN3_MOE = BLOCKS | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "mlp_only_layers": [2],
    "decoder_sparse_step": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}

# What the 30B releases publish, without the keys that shape nothing.
PUBLISHED_30B = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_hidden_layers": 52,
    "hidden_size": 2688,
    "vocab_size": 131072,
    "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rope_theta": 10000,
    "partial_rotary_factor": 1.0,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "expand": 2,
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "time_step_floor": 1e-4,
    "time_step_limit": [0.0, math.inf],
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}


@pytest.fixture
def cfg():
    return families.model_config_from_hf(CONFIG)


def without(config, *names):
    return {key: value for key, value in config.items() if key not in names}


# --- nemotron_h ----------------------------------------------------------------------------------


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


ALIASES = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_chunk_size": "chunk_size",
    "mamba_dt_min": "time_step_min",
    "mamba_dt_max": "time_step_max",
    "mamba_dt_init_floor": "time_step_floor",
    "attention_head_dim": "head_dim",
    "num_local_experts": "n_routed_experts",
}


def test_other_names_of_keys_are_read(cfg):
    renamed = without(CONFIG, *ALIASES.values()) | {a: CONFIG[b] for a, b in ALIASES.items()}
    renamed |= {"mamba_conv_bias": True, "mamba_dt_limit": [0.0, {"__float__": "Infinity"}]}
    assert families.model_config_from_hf(renamed) == cfg
    finite = families.model_config_from_hf(CONFIG | {"mamba_dt_limit": [0.01, 0.2]})
    assert finite.mamba.time_step_limit == (0.01, 0.2)


def test_keys_that_contradict_each_other_are_refused():
    with pytest.raises(InputError, match="n_groups is 1 and mamba_n_groups is 2"):
        families.model_config_from_hf(CONFIG | {"mamba_n_groups": 2})
    listed = ["mamba", "moe", "attention", "moe"]
    with pytest.raises(InputError, match=r"says 'ME\*-', layers_block_type says 'ME\*E'"):
        families.model_config_from_hf(CONFIG | {"layers_block_type": listed})
    with pytest.raises(InputError, match=r"mamba_conv_bias is False, only True"):
        families.model_config_from_hf(CONFIG | {"mamba_conv_bias": False})


def test_published_30b_is_the_config_of_the_paper_and_has_its_counts():
    """From the published file: parameters, active ones, tensors and bytes (paper 1.1)."""
    cfg = families.model_config_from_hf(PUBLISHED_30B)
    ours = families.used_parts(build(ModelConfig, models.nano_30b_a3b()))
    assert cfg == ours
    assert hybrid.total_param_count(cfg) == 31_577_940_288
    assert hybrid.active_param_count(cfg) == 3_580_076_352
    tensors = tensor_names.hub_tensors(cfg)
    assert len({tensor.name for tensor in tensors}) == len(tensors) == 6243
    size = sum(math.prod(t.shape) * (4 if t.kept_float32 else 2) for t in tensors)
    assert size == 63_155_892_352


# --- llama, qwen3, qwen3_moe ---------------------------------------------------------------------


def test_blocks_are_pairs_of_attention_and_mlp():
    llama = families.model_config_from_hf(BLOCKS)
    assert (llama.pattern, llama.activation, llama.tied_embeddings) == ("*-*-", "gated_silu", True)
    assert (llama.attention.head_dim, llama.attention.qk_norm) == (8, False)  # 32 / 4
    assert (llama.attention.rope_theta, llama.mlp_inner, llama.moe) == (100000.0, 48, None)
    qwen3 = families.model_config_from_hf(BLOCKS | {"model_type": "qwen3"})
    assert qwen3 == dataclasses.replace(
        llama, attention=dataclasses.replace(llama.attention, qk_norm=True)
    )


@pytest.mark.parametrize(
    ("step", "dense", "pattern"),
    [(1, [2], "*E*E*-*E"), (2, [], "*-*E*-*E"), (2, [1], "*-*-*-*E"), (1, None, "*E*E*E*E")],
)
def test_sparse_step_and_dense_layers_give_the_pattern(step, dense, pattern):
    said = QWEN3_MOE | {"decoder_sparse_step": step, "mlp_only_layers": dense}
    cfg = families.model_config_from_hf(said)
    assert (cfg.pattern, cfg.moe.router, cfg.moe.normalise) == (pattern, "softmax", True)
    assert not families.model_config_from_hf(without(said, "norm_topk_prob")).moe.normalise


def test_rotary_base_is_found_wherever_it_lies():
    """At the top, in the table of transformers 5, or in neither, which means 10,000."""
    plain = families.model_config_from_hf(BLOCKS)
    table = {"rope_type": "default", "rope_theta": 100000.0}
    for name in ("rope_parameters", "rope_scaling"):
        moved = without(BLOCKS, "rope_theta") | {name: table}
        assert families.model_config_from_hf(moved) == plain
    bare = families.model_config_from_hf(without(BLOCKS, "rope_theta") | {"rope_scaling": None})
    assert bare.attention.rope_theta == 10_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling is of type 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling is of type 'linear'"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters.rope_theta is 5.0"),
        ({"attention_bias": True}, "attention_bias is True, only False is supported for llama"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"layer_types": ["sliding_attention"]}, "layer_types has 'sliding_attention'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
    ],
)
def test_options_that_change_the_numbers_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        families.model_config_from_hf(BLOCKS | change)


# --- written again -------------------------------------------------------------------------------

FAMILY_CONFIGS = {
    "nemotron_h": CONFIG | {"time_step_limit": [0.01, 0.2]},
    "llama": BLOCKS,
    "qwen3": BLOCKS | {"model_type": "qwen3"},
    "qwen3_moe": QWEN3_MOE,
}


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_written_configs_read_as_the_same_model(family):
    cfg = families.model_config_from_hf(FAMILY_CONFIGS[family])
    assert families.family_of(cfg) == family
    written = config_json.hf_config(cfg, None, dtype="bfloat16", ids={"eos_token_id": [2, 11]})
    again = json.loads(json.dumps(written, allow_nan=False))
    assert families.model_config_from_hf(again) == cfg
    assert (again["torch_dtype"], again["eos_token_id"]) == ("bfloat16", [2, 11])


def test_config_that_came_with_the_weights_is_kept():
    """Unknown keys stay as they were, other spellings become the hub's, another model's is dropped."""
    listed = ["linear_attention", "moe", "full_attention", "mlp"]
    carried = without(CONFIG, "hybrid_override_pattern") | {
        "layers_block_type": listed,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "num_nextn_predict_layers": 1,
        "dtype": "float32",
        "eos_token_id": 7,
        "auto_map": {"AutoModel": "file.Class"},
        "routed_scaling_factor": 2.5,
    }
    cfg = families.model_config_from_hf(carried)
    written = config_json.hf_config(cfg, carried, dtype="bfloat16", ids={"eos_token_id": [2]})
    assert written["auto_map"] == carried["auto_map"]
    assert written["eos_token_id"] == 7
    assert written["hybrid_override_pattern"] == "ME*-"
    assert not {"layers_block_type", "time_step_limit", "torch_dtype"} & set(written)
    assert written["dtype"] == "bfloat16"
    assert written["num_nextn_predict_layers"] == 0  # its tensors are not exported
    other = config_json.hf_config(
        dataclasses.replace(cfg, norm_eps=1e-6), carried, dtype="bfloat16", ids={}
    )
    assert "auto_map" not in other
    assert other["layer_norm_epsilon"] == 1e-6


def test_models_of_no_published_family_are_not_exported(cfg):
    rotary = dataclasses.replace(cfg.attention, rope_theta=1e4)
    for change in ({"activation": "gated_silu"}, {"attention": rotary}):
        with pytest.raises(InputError, match=r"no published family has pattern 'ME\*-'"):
            families.family_of(dataclasses.replace(cfg, **change))
