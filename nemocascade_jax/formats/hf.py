"""Hugging Face checkpoint folders to parameters, strict: every tensor is named, used and checked."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.models.hybrid import cut_pattern, layer_places
from nemocascade_jax.sharding import Params

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # safetensors finds the type once ml_dtypes is imported
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
IGNORED = "mtp."  # multi-token-prediction heads, which the model does not run

Read = Callable[[str, tuple[int, ...]], np.ndarray]


def read_config(folder: str | pathlib.Path) -> dict[str, Any]:
    """Returns `config.json` of a checkpoint folder; the bare word Infinity is accepted."""
    path = pathlib.Path(folder) / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file; name a Hugging Face checkpoint folder")
    return _json(path)


def load_hf(folder: str | pathlib.Path, cfg: ModelConfig) -> Params:
    """Returns the float32 parameters of a folder with the published tensor names.

    Matrices are stored [out, in] and come back [in, out]; experts come back stacked. A tensor that is
    missing, left over, misshapen or not a float is an error that names it.
    """
    where = _tensor_files(pathlib.Path(folder))
    used: set[str] = set()
    handles: dict[pathlib.Path, Any] = {}

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in where:
            raise InputError(f"{folder}: tensor {name} is missing; expected {list(shape)}")
        path = where[name]
        if path not in handles:
            handles[path] = _open(path)
        used.add(name)
        return _float_tensor(handles[path], path, name, shape)

    params = _read_params(read, cfg)
    extra = sorted(name for name in where if name not in used and not name.startswith(IGNORED))
    if extra:
        raise InputError(
            f"{folder}: tensor {extra[0]} is not part of pattern {cfg.pattern!r} "
            f"({len(extra)} such tensors); use the config.json of this checkpoint"
        )
    return params


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg})") from None


def _open(path: pathlib.Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, FileNotFoundError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from None


def _tensor_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the file of each tensor, through the index where there is one."""
    if (folder / INDEX).is_file():
        table = _json(folder / INDEX)["weight_map"]
        files = {name: folder / file for name, file in table.items()}
    elif (folder / SINGLE).is_file():
        return dict.fromkeys(_open(folder / SINGLE).keys(), folder / SINGLE)
    else:
        raise InputError(f"{folder}: holds neither {SINGLE} nor {INDEX}")
    for path in sorted(set(files.values())):
        held = set(_open(path).keys())
        for name, file in files.items():
            if file == path and name not in held:
                raise InputError(f"{path}: tensor {name} is missing, but {INDEX} places it there")
    return files


def _float_tensor(handle: Any, path: pathlib.Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    view = handle.get_slice(name)
    if tuple(view.get_shape()) != shape:
        raise InputError(
            f"{path}: tensor {name} has shape {view.get_shape()}, expected {list(shape)}"
        )
    if view.get_dtype() not in ("F64", "F32", "F16", "BF16"):
        raise InputError(f"{path}: tensor {name} holds {view.get_dtype()}, expected floats")
    return np.asarray(handle.get_tensor(name), np.float32)


def _read_params(read: Read, cfg: ModelConfig) -> Params:
    table = (cfg.vocab_size, cfg.width)
    params: Params = {"embed": jnp.asarray(read("backbone.embeddings.weight", table))}
    params["units"] = [[{} for _ in unit] for unit, _ in cut_pattern(cfg.pattern)]
    found: dict[tuple[int, int], list[dict[str, np.ndarray]]] = {}
    for number, (unit, letter, _) in enumerate(layer_places(cfg.pattern)):
        prefix = f"backbone.layers.{number}"
        layer = {"pre_norm": read(f"{prefix}.norm.weight", (cfg.width,))}
        kind = cfg.pattern[number]
        found.setdefault((unit, letter), []).append(
            layer | LAYERS[kind](read, f"{prefix}.mixer", cfg)
        )
    for (unit, letter), repeats in found.items():
        params["units"][unit][letter] = {
            name: jnp.asarray(np.stack([layer[name] for layer in repeats])) for name in repeats[0]
        }
    params["norm"] = jnp.asarray(read("backbone.norm_f.weight", (cfg.width,)))
    if not cfg.tied_embeddings:
        params["head"] = jnp.asarray(read("lm_head.weight", table).T)
    return params


def _matrix(read: Read, name: str, rows: int, columns: int) -> np.ndarray:
    """Reads a stored [columns, rows] matrix as [rows, columns]."""
    return read(f"{name}.weight", (columns, rows)).T


def _mamba(read: Read, at: str, cfg: ModelConfig) -> dict[str, np.ndarray]:
    m, width = cfg.mamba, cfg.width
    assert m is not None
    fused = _matrix(read, f"{at}.in_proj", width, m.inner + m.conv_channels + m.heads)
    gate, xbc, dt = np.split(fused, (m.inner, m.inner + m.conv_channels), axis=1)
    conv = read(f"{at}.conv1d.weight", (m.conv_channels, 1, m.conv))
    return {
        "w_gate": gate,
        "w_xbc": xbc,
        "w_dt": dt,
        "conv_w": conv[:, 0].T,
        "conv_b": read(f"{at}.conv1d.bias", (m.conv_channels,)),
        "A_log": read(f"{at}.A_log", (m.heads,)),
        "D": read(f"{at}.D", (m.heads,)),
        "dt_bias": read(f"{at}.dt_bias", (m.heads,)),
        "norm": read(f"{at}.norm.weight", (m.inner,)),
        "w_out": _matrix(read, f"{at}.out_proj", m.inner, width),
    }


def _attention(read: Read, at: str, cfg: ModelConfig) -> dict[str, np.ndarray]:
    a = cfg.attention
    assert a is not None
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    return {
        "w_q": _matrix(read, f"{at}.q_proj", cfg.width, queries),
        "w_k": _matrix(read, f"{at}.k_proj", cfg.width, keys),
        "w_v": _matrix(read, f"{at}.v_proj", cfg.width, keys),
        "w_o": _matrix(read, f"{at}.o_proj", queries, cfg.width),
    }


def _moe(read: Read, at: str, cfg: ModelConfig) -> dict[str, np.ndarray]:
    m, width = cfg.moe, cfg.width
    assert m is not None
    inside = m.latent or width
    experts = [f"{at}.experts.{e}" for e in range(m.experts)]
    layer = {
        "router": _matrix(read, f"{at}.gate", width, m.experts),
        "correction_bias": read(f"{at}.gate.e_score_correction_bias", (m.experts,)),
        "w_up": np.stack([_matrix(read, f"{e}.up_proj", inside, m.inner) for e in experts]),
        "w_down": np.stack([_matrix(read, f"{e}.down_proj", m.inner, inside) for e in experts]),
    }
    if m.latent:
        layer["latent_in"] = _matrix(read, f"{at}.fc1_latent_proj", width, m.latent)
        layer["latent_out"] = _matrix(read, f"{at}.fc2_latent_proj", m.latent, width)
    if m.shared_inner:
        shared = f"{at}.shared_experts"
        layer["shared_up"] = _matrix(read, f"{shared}.up_proj", width, m.shared_inner)
        layer["shared_down"] = _matrix(read, f"{shared}.down_proj", m.shared_inner, width)
    return layer


def _mlp(read: Read, at: str, cfg: ModelConfig) -> dict[str, np.ndarray]:
    assert cfg.mlp_inner is not None
    return {
        "w_up": _matrix(read, f"{at}.up_proj", cfg.width, cfg.mlp_inner),
        "w_down": _matrix(read, f"{at}.down_proj", cfg.mlp_inner, cfg.width),
    }


LAYERS = {"M": _mamba, "*": _attention, "E": _moe, "-": _mlp}
