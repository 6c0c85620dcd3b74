"""A model's `config.json` as the hub spells it, so that other programs read what is exported; no jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nemocascade_jax.config import AttentionConfig, ModelConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.families import family_of, model_config_from_hf, used_parts

# Spellings that only some readers know; each says again what a hub key says.
OTHER_SPELLINGS = ("layers_block_type", "layer_types", "time_step_limit", "mamba_dt_limit")


def hf_config(
    cfg: ModelConfig, carried: Mapping[str, Any] | None, *, dtype: str, ids: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the `config.json` of a model whose most common tensor type is `dtype`.

    `carried` is the config that came with the weights: what this code does not read is kept as it
    was. It is left out where it describes another model. `ids` fill in for special ids it lacks.
    """
    family = family_of(cfg)
    spelled = WRITERS[family](used_parts(cfg))
    kept = dict(carried) if carried is not None and _same_model(carried, cfg) else {}
    for name in OTHER_SPELLINGS if family == "nemotron_h" else ():
        kept.pop(name, None)
    same = {name: kept[name] for name in spelled if name in kept and kept[name] == spelled[name]}
    absent = {"architectures": [ARCHITECTURES[family]], "model_type": family, **ids}
    if cfg.moe is not None:
        absent["intermediate_size"] = cfg.moe.inner  # of dense layers; read by others without any
    out = kept | {name: value for name, value in absent.items() if name not in kept}
    out |= spelled | same  # 10000 stays 10000 where 10000.0 is meant
    if out.get("num_nextn_predict_layers"):
        out["num_nextn_predict_layers"] = 0  # the heads it speaks of are not read, so not written
    for name in [name for name in ("torch_dtype", "dtype") if name in kept] or ["torch_dtype"]:
        out[name] = dtype
    assert _same_model(out, cfg), "a config that is written must read back as the same model"
    return out


def _same_model(config: Mapping[str, Any], cfg: ModelConfig) -> bool:
    try:
        read = model_config_from_hf(config)
    except InputError:
        return False
    return read == replace(used_parts(cfg), rescale_prenorm_residual=read.rescale_prenorm_residual)


def _shared(cfg: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.width,
        "max_position_embeddings": cfg.max_positions,
        "tie_word_embeddings": cfg.tied_embeddings,
        "initializer_range": cfg.init_std,
        "attention_bias": False,
    }


def _heads(a: AttentionConfig) -> dict[str, Any]:
    return {
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
    }


def _nemotron_h(cfg: ModelConfig) -> dict[str, Any]:
    m, moe = cfg.mamba, cfg.moe
    out: dict[str, Any] = _shared(cfg) | {
        "hybrid_override_pattern": cfg.pattern,
        "num_hidden_layers": len(cfg.pattern),
        "layer_norm_epsilon": cfg.norm_eps,
        "norm_eps": cfg.norm_eps,
        "rescale_prenorm_residual": cfg.rescale_prenorm_residual,
        "residual_in_fp32": False,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "use_bias": False,
        "sliding_window": None,
    }
    out |= {} if cfg.mlp_inner is None else {"intermediate_size": cfg.mlp_inner}
    if cfg.attention is not None:
        out |= _heads(cfg.attention)
    if m is not None:
        out |= {
            "mamba_num_heads": m.heads,
            "mamba_head_dim": m.head_dim,
            "ssm_state_size": m.state,
            "n_groups": m.groups,
            "conv_kernel": m.conv,
            "chunk_size": m.chunk,
            "time_step_min": m.time_step_min,
            "time_step_max": m.time_step_max,
            "time_step_floor": m.time_step_floor,
            "mamba_hidden_act": "silu",
            "mamba_proj_bias": False,
            "use_conv_bias": True,
        }
        # (0, infinity) is what an absent key means, and JSON has no word for infinity.
        out |= {} if m.time_step_limit is None else {"time_step_limit": list(m.time_step_limit)}
    if moe is not None:
        out |= {
            "n_routed_experts": moe.experts,
            "num_experts_per_tok": moe.top_k,
            "moe_intermediate_size": moe.inner,
            "n_shared_experts": 1 if moe.shared_inner else 0,
            "n_group": moe.groups,
            "topk_group": moe.top_groups,
            "routed_scaling_factor": moe.scale,
            "norm_topk_prob": moe.normalise,
        }
        out |= {"moe_shared_expert_intermediate_size": moe.shared_inner} if moe.shared_inner else {}
        out |= {"moe_latent_size": moe.latent} if moe.latent else {}
    return out


def _blocks(cfg: ModelConfig) -> dict[str, Any]:
    a = cfg.attention
    assert a is not None
    out = _shared(cfg) | _heads(a)
    out |= {
        "num_hidden_layers": len(cfg.pattern) // 2,
        "rms_norm_eps": cfg.norm_eps,
        "rope_theta": a.rope_theta,
        "rope_scaling": None,
        "hidden_act": "silu",
    }
    return out if cfg.mlp_inner is None else out | {"intermediate_size": cfg.mlp_inner}


def _llama(cfg: ModelConfig) -> dict[str, Any]:
    return _blocks(cfg) | {"mlp_bias": False}


def _qwen3_moe(cfg: ModelConfig) -> dict[str, Any]:
    moe = cfg.moe
    assert moe is not None
    letters = cfg.pattern[1::2]
    return _blocks(cfg) | {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, letter in enumerate(letters) if letter == "-"],
        "num_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.inner,
        "norm_topk_prob": moe.normalise,
    }


WRITERS: dict[str, Callable[[ModelConfig], dict[str, Any]]] = {
    "nemotron_h": _nemotron_h,
    "qwen3_moe": _qwen3_moe,
    "qwen3": _blocks,
    "llama": _llama,
}
ARCHITECTURES = {
    "nemotron_h": "NemotronHForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
}
