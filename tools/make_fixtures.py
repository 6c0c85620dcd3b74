"""Writes the small published checkpoints of the tests, and the logits a second implementation gives.

python tools/make_fixtures.py [FOLDER]

Every parameter is random and matters: steps reach below 0.001, the correction bias has an offset of 3
and changes the choice, norm weights differ from 1. The logits are those of `tests/reference_model.py`,
in float64, from the numbers as stored.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from reference_model import reference_logits  # noqa: E402

WHERE = ROOT / "tests" / "fixtures" / "published"
KEPT = ("A_log", "D", "e_score_correction_bias")
LETTERS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}

SHARED = {
    "attention_bias": False,
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 20,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 12,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
    "vocab_size": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
NEMOTRON_H = SHARED | {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M*E-ME",
    "num_hidden_layers": 6,
    "layer_norm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "rope_theta": 10000,
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
    "use_bias": False,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "ssm_state_size": 8,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 8,
    "use_conv_bias": True,
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "time_step_floor": 1e-4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "torch_dtype": "bfloat16",
}
QWEN3_MOE = SHARED | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "sliding_window": None,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
    "num_experts": 4,
    "torch_dtype": "float32",
}

Shapes = dict[str, tuple[int, ...]]


def main() -> None:
    make_fixtures(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else WHERE)


def make_fixtures(where: pathlib.Path) -> None:
    """Writes nemotron_h in the names of the hub and of transformers, and qwen3_moe."""
    rng = np.random.default_rng(0)
    drawn = {name: draw(name, shape, rng) for name, shape in nemotron_h_shapes().items()}
    stored = {
        name: value if name.endswith(KEPT) else value.astype(ml_dtypes.bfloat16)
        for name, value in drawn.items()
    }
    write_model(where / "nemotron_h" / "published", NEMOTRON_H, stored)
    write_model(where / "nemotron_h" / "fused", fused_config(), fused(stored))
    write_logits(where / "nemotron_h", NEMOTRON_H, stored, rng)
    blocks = {name: draw(name, shape, rng) for name, shape in qwen3_moe_shapes().items()}
    write_model(where / "qwen3_moe" / "published", QWEN3_MOE, blocks)
    write_logits(where / "qwen3_moe", QWEN3_MOE, blocks, rng)


def nemotron_h_shapes() -> Shapes:
    c = NEMOTRON_H
    width, inner = c["hidden_size"], c["mamba_num_heads"] * c["mamba_head_dim"]
    channels = inner + 2 * c["n_groups"] * c["ssm_state_size"]
    heads = c["mamba_num_heads"]
    shapes: Shapes = {"backbone.embeddings.weight": (c["vocab_size"], width)}
    for number, letter in enumerate(c["hybrid_override_pattern"]):
        at = f"backbone.layers.{number}."
        shapes[at + "norm.weight"] = (width,)
        at += "mixer."
        if letter == "M":
            shapes[at + "in_proj.weight"] = (inner + channels + heads, width)
            shapes[at + "conv1d.weight"] = (channels, 1, c["conv_kernel"])
            shapes[at + "conv1d.bias"] = (channels,)
            shapes |= {at + name: (heads,) for name in ("A_log", "D", "dt_bias")}
            shapes[at + "norm.weight"] = (inner,)
            shapes[at + "out_proj.weight"] = (width, inner)
        elif letter == "*":
            shapes |= attention_shapes(at)
        elif letter == "E":
            experts, moe = c["n_routed_experts"], c["moe_intermediate_size"]
            shapes[at + "gate.weight"] = (experts, width)
            shapes[at + "gate.e_score_correction_bias"] = (experts,)
            for e in range(experts):
                shapes |= mlp_shapes(f"{at}experts.{e}.", moe)
            shapes |= mlp_shapes(at + "shared_experts.", c["moe_shared_expert_intermediate_size"])
        else:
            shapes |= mlp_shapes(at, c["intermediate_size"])
    last = {"backbone.norm_f.weight": (width,), "lm_head.weight": (c["vocab_size"], width)}
    return shapes | last


def qwen3_moe_shapes() -> Shapes:
    c = QWEN3_MOE
    width, table = c["hidden_size"], (c["vocab_size"], c["hidden_size"])
    shapes: Shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (width,)}
    for number in range(c["num_hidden_layers"]):
        at = f"model.layers.{number}."
        shapes |= {at + name: (width,) for name in ("input_layernorm.weight",)}
        shapes[at + "post_attention_layernorm.weight"] = (width,)
        shapes |= attention_shapes(at + "self_attn.")
        shapes |= {at + f"self_attn.{x}_norm.weight": (c["head_dim"],) for x in "qk"}
        if number in c["mlp_only_layers"]:
            shapes |= mlp_shapes(at + "mlp.", c["intermediate_size"], gated=True)
            continue
        shapes[at + "mlp.gate.weight"] = (c["num_experts"], width)
        for e in range(c["num_experts"]):
            shapes |= mlp_shapes(f"{at}mlp.experts.{e}.", c["moe_intermediate_size"], gated=True)
    return shapes | {"lm_head.weight": table}


def attention_shapes(at: str) -> Shapes:
    width, head = SHARED["hidden_size"], SHARED["head_dim"]
    q, kv = SHARED["num_attention_heads"] * head, SHARED["num_key_value_heads"] * head
    rows = {"q": (q, width), "k": (kv, width), "v": (kv, width), "o": (width, q)}
    return {f"{at}{name}_proj.weight": shape for name, shape in rows.items()}


def mlp_shapes(at: str, inner: int, *, gated: bool = False) -> Shapes:
    width = SHARED["hidden_size"]
    gate = {at + "gate_proj.weight": (inner, width)} if gated else {}
    return gate | {at + "up_proj.weight": (inner, width), at + "down_proj.weight": (width, inner)}


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    noise = rng.normal(size=shape)
    if name.endswith("A_log"):
        drawn = np.log(np.arange(1, shape[0] + 1)) + 0.2 * noise
    elif name.endswith("dt_bias"):
        drawn = -5 + 1.5 * noise  # steps from below 0.001 to above 0.1
    elif name.endswith("e_score_correction_bias"):
        drawn = 3 + 0.3 * noise
    elif name.endswith("conv1d.bias"):
        drawn = 0.2 * noise
    elif len(shape) == 1:
        drawn = 1 + 0.3 * noise
    elif name.endswith(("conv1d.weight", "embeddings.weight", "embed_tokens.weight")):
        drawn = 0.5 * noise
    else:
        drawn = noise / np.sqrt(shape[-1])
    return drawn.astype(np.float32)


def fused(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the same numbers in float32 under the names that transformers 5 has in memory."""
    out: dict[str, Any] = {}
    for name, value in stored.items():
        name, wide = name.replace("backbone.", "model."), value.astype(np.float32)
        at, experts, rest = name.partition(".experts.")
        if experts:
            _, matrix, _ = rest.split(".")
            out.setdefault(f"{at}.experts.{matrix}", []).append(wide)
        else:
            out[name] = wide
    return {
        name: np.stack(value) if isinstance(value, list) else value for name, value in out.items()
    }


def fused_config() -> dict[str, Any]:
    config = {k: v for k, v in NEMOTRON_H.items() if k not in ("torch_dtype", "num_hidden_layers")}
    config["layers_block_type"] = [LETTERS[x] for x in config.pop("hybrid_override_pattern")]
    config["time_step_limit"] = [0.0, {"__float__": "Infinity"}]
    return config | {"dtype": "float32", "moe_latent_size": None}


def write_model(folder: pathlib.Path, config: dict, tensors: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_logits(folder: pathlib.Path, config: dict, tensors: dict, rng: Any) -> None:
    tokens = rng.integers(0, config["vocab_size"], (2, 21)).astype(np.int32)
    logits = np.stack([reference_logits(tensors, config, row) for row in tokens])
    np.savez_compressed(folder / "expected.npz", tokens=tokens, logits=logits)


if __name__ == "__main__":
    main()
