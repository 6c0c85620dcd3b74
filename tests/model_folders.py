"""Model folders as another program would write them, and commands run on them."""

import json
import pathlib
import subprocess
import sys

import numpy as np
from safetensors.numpy import save_file

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.models.hybrid import layer_places
from nemocascade_jax.sharding import Params

# A published config with every kind of layer.
TINY_HF = {
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

ROOT = pathlib.Path(__file__).resolve().parents[1]


def write_hf(
    folder: pathlib.Path, cfg: ModelConfig, params: Params, tokenizer: Tokenizer | None = None
) -> pathlib.Path:
    """Writes the published names and [out, in] matrices; layers `M`, `*` and `-`."""
    folder.mkdir()
    tensors = {
        "backbone.embeddings.weight": params["embed"],
        "backbone.norm_f.weight": params["norm"],
        "lm_head.weight": params["head"].T,
    }
    for number, (unit, letter, repeat) in enumerate(layer_places(cfg.pattern)):
        layer = {name: leaf[repeat] for name, leaf in params["units"][unit][letter].items()}
        at = f"backbone.layers.{number}"
        tensors[f"{at}.norm.weight"] = layer.pop("pre_norm")
        for name, leaf in MIXERS[cfg.pattern[number]](layer).items():
            tensors[f"{at}.mixer.{name}"] = leaf
    arrays = {name: np.ascontiguousarray(leaf, np.float32) for name, leaf in tensors.items()}
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hf_config(cfg)))
    for name, content in (tokenizer.files if tokenizer else {}).items():
        (folder / name).write_bytes(content)
    return folder


def hf_config(cfg: ModelConfig) -> dict:
    a, m = cfg.attention, cfg.mamba
    return {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": cfg.pattern,
        "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.width,
        "intermediate_size": cfg.mlp_inner,
        "layer_norm_epsilon": cfg.norm_eps,
        "max_position_embeddings": cfg.max_positions,
        "tie_word_embeddings": False,
        "initializer_range": cfg.init_std,
        "rescale_prenorm_residual": cfg.rescale_prenorm_residual,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "mamba_num_heads": m.heads,
        "mamba_head_dim": m.head_dim,
        "ssm_state_size": m.state,
        "n_groups": m.groups,
        "conv_kernel": m.conv,
        "chunk_size": m.chunk,
        "time_step_min": m.time_step_min,
        "time_step_max": m.time_step_max,
        "time_step_floor": m.time_step_floor,
    }


def _mamba(layer: dict) -> dict:
    fused = np.concatenate([layer["w_gate"], layer["w_xbc"], layer["w_dt"]], axis=1)
    return {
        "in_proj.weight": fused.T,
        "conv1d.weight": layer["conv_w"].T[:, None],
        "conv1d.bias": layer["conv_b"],
        "A_log": layer["A_log"],
        "D": layer["D"],
        "dt_bias": layer["dt_bias"],
        "norm.weight": layer["norm"],
        "out_proj.weight": layer["w_out"].T,
    }


def _attention(layer: dict) -> dict:
    return {f"{name}_proj.weight": layer[f"w_{name}"].T for name in "qkvo"}


def _mlp(layer: dict) -> dict:
    return {"up_proj.weight": layer["w_up"].T, "down_proj.weight": layer["w_down"].T}


MIXERS = {"M": _mamba, "*": _attention, "-": _mlp}


def run_command(name: str, **given) -> subprocess.CompletedProcess:
    """Runs `launch/NAME.py` with flags; a list gives the flag several times, True gives it bare."""
    args = [sys.executable, f"launch/{name}.py"]
    for flag, value in given.items():
        values = value if isinstance(value, list) else [value]
        args += [f"--{flag}" if entry is True else f"--{flag}={entry}" for entry in values]
    return subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=240)


def write_rows(path: pathlib.Path, rows: list) -> pathlib.Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_rows(path: pathlib.Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]
