"""Parameters to a Hugging Face checkpoint folder: hub names, chosen types, shards and their index.

Files and index follow from one list of tensors, so neither can name what the other lacks.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.formats.config_json import hf_config
from nemocascade_jax.formats.hf import FLOATS, INDEX, Report, as_stored
from nemocascade_jax.formats.model_folder import HF_CONFIG, HF_DTYPES, STOP_FILE
from nemocascade_jax.formats.tensor_names import Tensor, hub_tensors
from nemocascade_jax.sharding import Params

# What `config.json` and people call a stored type.
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


class Written(NamedTuple):
    """One tensor of an export and the type it is stored in."""

    tensor: Tensor
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.tensor.shape) * FLOATS[self.dtype].itemsize


def save_hf(
    folder: pathlib.Path,
    params: Params,
    cfg: ModelConfig,
    files: Mapping[str, bytes],
    *,
    dtype: str | None = None,
    limit: int = 5 * 10**9,
    ids: Mapping[str, Any] = MappingProxyType({}),
    report: Report = lambda done, total: None,
) -> None:
    """Writes a model into an empty folder as the hub has it, for other programs to read.

    `files` are those of `carried_files`; `ids` are the special ids for a model that came without.
    """
    rest = dict(files)
    read = json.loads(rest.pop(HF_DTYPES, b"{}"))
    carried = json.loads(rest.pop(HF_CONFIG, b"null"))
    plan = plan_tensors(params, cfg, read=read, dtype=dtype)
    content = hf_config(cfg, carried, dtype=common_dtype(plan), ids=ids)
    save_tensors(folder, params, plan, limit, report=report)
    write_json(folder / "config.json", content)
    if ids and STOP_FILE not in rest:
        write_json(folder / STOP_FILE, ids)
    for name, data in rest.items():
        (folder / name).write_bytes(data)


def plan_tensors(
    params: Params, cfg: ModelConfig, *, read: Mapping[str, str], dtype: str | None
) -> list[Written]:
    """Returns what an export holds, in order.

    Each tensor is stored in the type it was `read` in; one that was not read, as the hub stores it:
    A_log, D and the correction bias in float32, the rest in bfloat16. `dtype` replaces both, but for
    these three, which are never narrowed: they keep a short type only while it holds them exactly.
    """
    leaves = _by_path(params)

    def of(tensor: Tensor) -> str:
        if not tensor.kept_float32:
            return DTYPES[dtype] if dtype else read.get(tensor.name, "BF16")
        was, (path, lead, *_) = read.get(tensor.name, "F32"), tensor.parts[0]
        numbers = np.asarray(leaves[path])[lead]
        exact = np.array_equal(numbers.astype(FLOATS[was]).astype(numbers.dtype), numbers)
        return was if exact else "F32"

    return [Written(tensor, of(tensor)) for tensor in hub_tensors(cfg)]


def _by_path(params: Params) -> dict[str, Any]:
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in flat}


def common_dtype(plan: Sequence[Written]) -> str:
    """Returns the type that most of the numbers have, as `config.json` names it."""
    sizes: Counter[str] = Counter()
    for one in plan:
        sizes[one.dtype] += math.prod(one.tensor.shape)
    names = {stored: name for name, stored in DTYPES.items()}
    best = sizes.most_common(1)[0][0]
    return names.get(best, FLOATS[best].name)


def cut_shards(plan: Sequence[Written], limit: int) -> list[list[Written]]:
    """Cuts the list where a file would pass `limit` bytes; a larger tensor has a file of its own."""
    shards: list[list[Written]] = [[]]
    size = 0
    for one in plan:
        if shards[-1] and size + one.bytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(one)
        size += one.bytes
    return shards


def save_tensors(
    folder: pathlib.Path,
    params: Params,
    plan: Sequence[Written],
    limit: int,
    *,
    report: Report = lambda done, total: None,
) -> None:
    """Writes the tensors into an empty folder, in files of at most `limit` bytes."""
    leaves = _by_path(params)
    shards = cut_shards(plan, limit)
    table: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        count = f"-{number:05}-of-{len(shards):05}" if len(shards) > 1 else ""
        file = f"model{count}.safetensors"
        _write(folder / file, shard, leaves)
        table |= {one.tensor.name: file for one in shard}
        report(len(table), len(plan))
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(one.bytes for one in plan)}, "weight_map": table}
        write_json(folder / INDEX, index)


def _write(path: pathlib.Path, shard: Sequence[Written], leaves: Mapping[str, Any]) -> None:
    """Writes one safetensors file a tensor at a time: the host never holds a file's worth.

    Wide types come first, as readers that map the file need every tensor aligned to its own type.
    """
    ordered = sorted(shard, key=lambda one: -FLOATS[one.dtype].itemsize)
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for one in ordered:
        span = [end, end + one.bytes]
        table[one.tensor.name] = {
            "dtype": one.dtype,
            "shape": one.tensor.shape,
            "data_offsets": span,
        }
        end = span[1]
    header = json.dumps(table, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for one in ordered:
            file.write(_numbers(one, leaves).reshape(-1).view(np.uint8).data)


def _numbers(one: Written, leaves: Mapping[str, Any]) -> np.ndarray:
    parts = [np.asarray(leaves[part.path])[part.lead] for part in one.tensor.parts]
    ours = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return np.ascontiguousarray(as_stored(ours, one.tensor), FLOATS[one.dtype])


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(dict(value), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
