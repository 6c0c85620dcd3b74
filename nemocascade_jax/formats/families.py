"""Model configs of published families, read strictly: what the model code lacks is refused by name."""

from __future__ import annotations

import dataclasses
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
FIXED: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        "attention_bias": False,
        "use_bias": False,
        "mlp_bias": False,
        "mamba_proj_bias": False,
        "use_conv_bias": True,
        "mamba_conv_bias": True,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "sliding_window": None,
        "residual_in_fp32": False,
        "quantization_config": None,
    },
    "llama": {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "use_sliding_window": False,
        "partial_rotary_factor": 1.0,
        "quantization_config": None,
    },
}


def model_config_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Returns the model of a Hugging Face `config.json`; refuses a family or option it cannot compute."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise InputError(
            f"config.json: model_type {kind!r} is not supported; known: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind](config)


def used_parts(cfg: ModelConfig) -> ModelConfig:
    """Returns the model without what its pattern never runs, in float32: what a `config.json` can say."""
    parts = {"*": "attention", "M": "mamba", "E": "moe", "-": "mlp_inner"}
    idle = {name: None for letter, name in parts.items() if letter not in cfg.pattern}
    return dataclasses.replace(cfg, precision=FLOAT32, **idle)  # type: ignore[arg-type]


def family_of(cfg: ModelConfig) -> str:
    """Returns the `model_type` whose code computes this model; refuses a model that none computes."""
    used = used_parts(cfg)
    a, moe, letters = used.attention, used.moe, used.pattern
    rotary = a is not None and a.rope_theta is not None
    norms = a is not None and a.qk_norm
    sigmoid = moe is None or moe.router == "sigmoid"
    if cfg.activation == "relu2" and sigmoid and not (rotary or norms):
        return "nemotron_h"
    paired = set(letters[::2]) == {"*"} and set(letters[1::2]) <= {"E", "-"}
    if cfg.activation == "gated_silu" and paired and len(letters) % 2 == 0 and rotary:
        if moe is None:
            return "qwen3" if norms else "llama"
        plain = (moe.shared_inner, moe.groups, moe.scale, moe.latent) == (0, 1, 1.0, None)
        if norms and plain and not sigmoid:
            return "qwen3_moe"
    raise InputError(
        f"model: no published family has pattern {letters!r} with activation {cfg.activation!r}, "
        f"{a} and {moe}; train one of {', '.join(sorted(FAMILIES))} to export it"
    )


def _need(config: Mapping[str, Any], *names: str) -> Any:
    """Returns the value of a key that has several names; two of them with two values are refused."""
    found = {name: config[name] for name in names if name in config}
    if not found:
        raise InputError(
            f"config.json: missing key {names[0]!r}; take the config of the published checkpoint"
        )
    first = next(iter(found))
    for name, value in found.items():
        if value != found[first]:
            raise InputError(
                f"config.json: {first} is {found[first]!r} and {name} is {value!r}, one key by two "
                "names; remove the wrong one"
            )
    return found[first]


def _refuse_other_values(config: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    for name, value in fixed.items():
        if name in config and config[name] != value:
            raise InputError(
                f"config.json: {name} is {config[name]!r}, only {value!r} is supported for "
                f"{config['model_type']}"
            )


# --- nemotron_h ----------------------------------------------------------------------------------


def _nemotron_h(config: Mapping[str, Any]) -> ModelConfig:
    _refuse_other_values(config, FIXED["nemotron_h"])
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
    listed = [name for name in ("layers_block_type", "layer_types") if name in config]
    patterns = [config[name] for name in ("hybrid_override_pattern",) if name in config]
    for name in listed:
        kinds = config[name]
        unknown = sorted(set(kinds) - set(LETTERS))
        if unknown:
            raise InputError(f"config.json: {name} has {unknown[0]!r}; known: {', '.join(LETTERS)}")
        patterns.append("".join(LETTERS[kind] for kind in kinds))
    if not patterns:
        patterns = [_need(config, "hybrid_override_pattern", "layers_block_type")]
    pattern = patterns[0]
    if any(other != pattern for other in patterns):
        raise InputError(
            f"config.json: hybrid_override_pattern says {pattern!r}, {listed[0]} says "
            f"{patterns[-1]!r}; remove the wrong one"
        )
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
    limits = [config[name] for name in ("time_step_limit", "mamba_dt_limit") if name in config]
    return MambaConfig(
        heads=_need(config, "mamba_num_heads"),
        head_dim=_need(config, "mamba_head_dim"),
        state=_need(config, "ssm_state_size"),
        groups=_need(config, "n_groups", "mamba_n_groups"),
        conv=_need(config, "conv_kernel", "mamba_d_conv"),
        chunk=_need(config, "chunk_size", "mamba_chunk_size"),
        time_step_min=float(_need(config, "time_step_min", "mamba_dt_min")),
        time_step_max=float(_need(config, "time_step_max", "mamba_dt_max")),
        time_step_floor=float(_need(config, "time_step_floor", "mamba_dt_init_floor")),
        time_step_limit=_limit(limits[0]) if limits else None,
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
        experts=_need(config, "n_routed_experts", "num_local_experts"),
        top_k=_need(config, "num_experts_per_tok"),
        inner=_need(config, "moe_intermediate_size"),
        shared_inner=_need(config, "moe_shared_expert_intermediate_size") if shared else 0,
        groups=_need(config, "n_group"),
        top_groups=_need(config, "topk_group"),
        scale=scale,
        normalise=_need(config, "norm_topk_prob"),
        latent=config.get("moe_latent_size"),
    )


# --- llama, qwen3, qwen3_moe: blocks of attention and MLP ---------------------------------------


def _llama(config: Mapping[str, Any]) -> ModelConfig:
    return _blocks(config, "*-" * _layers(config), qk_norm=False)


def _qwen3(config: Mapping[str, Any]) -> ModelConfig:
    return _blocks(config, "*-" * _layers(config), qk_norm=True)


def _qwen3_moe(config: Mapping[str, Any]) -> ModelConfig:
    every, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    letters = [
        "E" if layer not in dense and (layer + 1) % every == 0 else "-"
        for layer in range(_layers(config))
    ]
    return _blocks(config, "".join(f"*{letter}" for letter in letters), qk_norm=True)


def _layers(config: Mapping[str, Any]) -> int:
    layers = _need(config, "num_hidden_layers")
    if type(layers) is not int or layers < 1:
        raise InputError(f"config.json: num_hidden_layers is {layers!r}, expected a whole number")
    return layers


def _blocks(config: Mapping[str, Any], pattern: str, *, qk_norm: bool) -> ModelConfig:
    _refuse_other_values(config, FIXED["llama"])
    other = sorted(set(config.get("layer_types") or []) - {"full_attention"})
    if other:
        raise InputError(
            f"config.json: layer_types has {other[0]!r}, only 'full_attention' is supported for "
            f"{config['model_type']}"
        )
    width, heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
    attention = AttentionConfig(
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or width // heads,
        rope_theta=_rope_theta(config),
        qk_norm=qk_norm,
    )
    return ModelConfig(
        pattern=pattern,
        vocab_size=_need(config, "vocab_size"),
        width=width,
        mlp_inner=_need(config, "intermediate_size") if "-" in pattern else None,
        norm_eps=float(_need(config, "rms_norm_eps")),
        max_positions=_need(config, "max_position_embeddings"),
        tied_embeddings=config.get("tie_word_embeddings", False),
        init_std=float(_need(config, "initializer_range")),
        rescale_prenorm_residual=False,
        attention=attention,
        mamba=None,
        moe=_softmax_moe(config) if "E" in pattern else None,
        activation="gated_silu",
        precision=FLOAT32,
    )


def _rope_theta(config: Mapping[str, Any]) -> float:
    """Returns the base of the rotary embeddings; any rule that bends them is refused by its name."""
    given = {"rope_theta": config["rope_theta"]} if config.get("rope_theta") is not None else {}
    for name in ("rope_parameters", "rope_scaling"):
        table = config.get(name) or {}
        kind = table.get("rope_type", table.get("type", "default"))
        if kind != "default":
            raise InputError(
                f"config.json: {name} is of type {kind!r}, only null and 'default' are supported for "
                f"{config['model_type']}"
            )
        if table.get("partial_rotary_factor", 1.0) != 1.0:
            raise InputError(
                f"config.json: {name}.partial_rotary_factor is {table['partial_rotary_factor']}, "
                "only 1.0 is supported"
            )
        if table.get("rope_theta") is not None:
            given[f"{name}.rope_theta"] = table["rope_theta"]
    if len(set(given.values())) > 1:
        said = " and ".join(f"{name} is {value}" for name, value in given.items())
        raise InputError(f"config.json: {said}, one key by two names; remove the wrong one")
    return float(next(iter(given.values()), 10_000.0))  # what the family means by an absent key


def _softmax_moe(config: Mapping[str, Any]) -> MoEConfig:
    return MoEConfig(
        router="softmax",
        experts=_need(config, "num_experts", "num_local_experts"),
        top_k=_need(config, "num_experts_per_tok"),
        inner=_need(config, "moe_intermediate_size"),
        shared_inner=0,
        groups=1,
        top_groups=1,
        scale=1.0,
        normalise=config.get("norm_topk_prob", False),
        latent=None,
    )


FAMILIES = {
    "nemotron_h": _nemotron_h,
    "qwen3_moe": _qwen3_moe,
    "qwen3": _qwen3,
    "llama": _llama,
}
