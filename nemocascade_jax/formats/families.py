"""Model configs of published families, read strictly: what the model code lacks is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nemocascade_jax.config import (
    AttentionConfig,
    MambaConfig,
    ModelConfig,
    MoEConfig,
    PrecisionConfig,
)
from nemocascade_jax.errors import InputError

LETTERS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "moe": "E",
    "mlp": "-",
}

# A folder says what its tensors are, not how to compute with them: widened, nothing is lost.
FLOAT32 = PrecisionConfig(
    params="float32", compute="float32", router="float32", ssm_state="float32", logits="float32"
)

# Keys with one value that this code computes; anything else would change the numbers silently.
FIXED: dict[str, Any] = {
    "attention_bias": False,
    "use_bias": False,
    "mlp_bias": False,
    "mamba_proj_bias": False,
    "use_conv_bias": True,
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "sliding_window": None,
}


def model_config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Returns the model of a Hugging Face `config.json`; refuses a family or option it cannot compute."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise InputError(
            f"config.json: model_type {kind!r} is not supported; known: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind](config)


def _need(config: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if name in config:
            return config[name]
    raise InputError(
        f"config.json: missing key {names[0]!r}; take the config of the published checkpoint"
    )


def _nemotron_h(config: Mapping[str, Any]) -> ModelConfig:
    for name, value in FIXED.items():
        if name in config and config[name] != value:
            raise InputError(
                f"config.json: {name} is {config[name]!r}, only {value!r} is supported for nemotron_h"
            )
    pattern = _pattern(config)
    return ModelConfig(
        pattern=pattern,
        vocab_size=_need(config, "vocab_size"),
        width=_need(config, "hidden_size"),
        mlp_inner=_need(config, "intermediate_size") if "-" in pattern else None,
        norm_eps=float(_need(config, "layer_norm_epsilon", "norm_eps")),
        max_positions=_need(config, "max_position_embeddings"),
        tied_embeddings=_need(config, "tie_word_embeddings"),
        init_std=float(_need(config, "initializer_range")),
        rescale_prenorm_residual=_need(config, "rescale_prenorm_residual"),
        attention=_attention(config) if "*" in pattern else None,
        mamba=_mamba(config) if "M" in pattern else None,
        moe=_moe(config) if "E" in pattern else None,
        activation="relu2",
        precision=FLOAT32,
    )


def _pattern(config: Mapping[str, Any]) -> str:
    if "hybrid_override_pattern" in config:
        pattern = config["hybrid_override_pattern"]
    else:
        kinds = _need(config, "layers_block_type")
        unknown = sorted(set(kinds) - set(LETTERS))
        if unknown:
            raise InputError(
                f"config.json: layers_block_type has {unknown[0]!r}; known: {', '.join(LETTERS)}"
            )
        pattern = "".join(LETTERS[kind] for kind in kinds)
    layers = config.get("num_hidden_layers", len(pattern))
    if layers != len(pattern):
        raise InputError(
            f"config.json: num_hidden_layers is {layers}, the pattern {pattern!r} has {len(pattern)}"
        )
    return pattern


def _attention(config: Mapping[str, Any]) -> AttentionConfig:
    return AttentionConfig(
        heads=_need(config, "num_attention_heads"),
        kv_heads=_need(config, "num_key_value_heads"),
        head_dim=_need(config, "head_dim", "attention_head_dim"),
        rope_theta=None,
        qk_norm=False,
    )


def _mamba(config: Mapping[str, Any]) -> MambaConfig:
    return MambaConfig(
        heads=_need(config, "mamba_num_heads"),
        head_dim=_need(config, "mamba_head_dim"),
        state=_need(config, "ssm_state_size"),
        groups=_need(config, "n_groups", "mamba_n_groups"),
        conv=_need(config, "conv_kernel", "mamba_d_conv"),
        chunk=_need(config, "chunk_size", "mamba_chunk_size"),
        time_step_min=float(_need(config, "time_step_min")),
        time_step_max=float(_need(config, "time_step_max")),
        time_step_floor=float(_need(config, "time_step_floor")),
        time_step_limit=_limit(config.get("time_step_limit", config.get("mamba_dt_limit"))),
    )


def _limit(given: Any) -> tuple[float, float] | None:
    """Returns a limit that acts, None for (0, infinity) in any of its spellings."""
    if given is None:
        return None
    low, high = (
        float(end["__float__"]) if isinstance(end, Mapping) else float(end) for end in given
    )
    largest = 1e30  # some exports write this for infinity, which JSON lacks
    return None if low <= 0 and high >= largest else (low, min(high, largest))


def _moe(config: Mapping[str, Any]) -> MoEConfig:
    shared = config.get("n_shared_experts", 1)
    if shared not in (0, 1):
        raise InputError(f"config.json: n_shared_experts is {shared!r}, only 0 and 1 are supported")
    scale = float(_need(config, "routed_scaling_factor"))
    if not math.isfinite(scale):
        raise InputError(f"config.json: routed_scaling_factor is {scale}, expected a finite number")
    return MoEConfig(
        router="sigmoid",
        experts=_need(config, "n_routed_experts"),
        top_k=_need(config, "num_experts_per_tok"),
        inner=_need(config, "moe_intermediate_size"),
        shared_inner=_need(config, "moe_shared_expert_intermediate_size") if shared else 0,
        groups=_need(config, "n_group"),
        top_groups=_need(config, "topk_group"),
        scale=scale,
        normalise=_need(config, "norm_topk_prob"),
        latent=config.get("moe_latent_size"),
    )


FAMILIES = {"nemotron_h": _nemotron_h}
