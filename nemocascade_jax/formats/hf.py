"""Hugging Face checkpoint folders to parameters, strict: every tensor is named, used and checked.

Names, shapes and types are checked on the headers, before any number is read. Then each device gets
the bytes of its own shards and no others, one parameter after another.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats import tensor_names
from nemocascade_jax.formats.families import family_of
from nemocascade_jax.formats.tensor_names import NAMES, Order, Tensor
from nemocascade_jax.models.hybrid import model_specs
from nemocascade_jax.models.layers import held_type
from nemocascade_jax.sharding import Params, map_specs

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
IGNORED = "mtp."  # multi-token-prediction heads, which the model does not run
BLOCK_BYTES = 64 << 20  # a larger shard is put together on its device from blocks of this size

FLOATS: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}

Span = tuple[int, int]
Report = Callable[[int, int], None]  # how many of how many are done


class Stored(NamedTuple):
    """Where a tensor's bytes lie and what they are."""

    path: pathlib.Path
    dtype: str  # as safetensors calls it
    shape: tuple[int, ...]
    offset: int

    def numbers(self) -> np.ndarray:
        """Returns the tensor as a view of its file: only what is copied out of it is read."""
        return np.memmap(self.path, FLOATS[self.dtype], "r", self.offset, self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class _Source:
    """One parameter of ours and the tensors it lies in, by the indices of its leading axes."""

    shape: tuple[int, ...]
    dtype: np.dtype
    order: Order
    leads: int
    places: dict[tuple[int, ...], tuple[Stored, int]]  # and its first column there


def read_config(folder: str | pathlib.Path) -> dict[str, Any]:
    """Returns `config.json` of a checkpoint folder; the bare word Infinity is accepted."""
    path = pathlib.Path(folder) / "config.json"
    if not path.is_file():
        raise InputError(f"{path}: no such file; name a Hugging Face checkpoint folder")
    return _json(path)


def load_hf(
    folder: str | pathlib.Path,
    cfg: ModelConfig,
    shardings: Any = None,
    *,
    report: Report = lambda done, total: None,
) -> Params:
    """Returns the parameters of a folder, in any dialect, in the type that `cfg.precision` holds.

    Matrices are stored [out, in] and come back [in, out]; experts come back stacked. A tensor that is
    missing, left over, misshapen or not a float is an error that names it.
    """
    sources = _sources(_matched(pathlib.Path(folder), cfg), cfg)
    leaves, tree = jax.tree.flatten(map_specs(lambda path, spec: sources[path], model_specs(cfg)))
    laid = [None] * len(leaves) if shardings is None else jax.tree.leaves(shardings)
    params = []
    for number, (source, sharding) in enumerate(zip(leaves, laid, strict=True), 1):
        params.append(_load(source, sharding))
        report(number, len(leaves))
    return jax.tree.unflatten(tree, params)


def read_dtypes(folder: str | pathlib.Path, cfg: ModelConfig) -> dict[str, str]:
    """Returns the type each tensor is stored in, by its name on the hub, whatever the dialect."""
    sources = _sources(_matched(pathlib.Path(folder), cfg), cfg)
    found = {}
    for tensor in tensor_names.hub_tensors(cfg):
        path, lead, *_ = tensor.parts[0]
        stored, _ = sources[path].places[lead[: sources[path].leads]]
        found[tensor.name] = stored.dtype
    return found


# --- what a folder holds -------------------------------------------------------------------------


def _json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg})") from None


def _matched(folder: pathlib.Path, cfg: ModelConfig) -> list[tuple[Tensor, Stored]]:
    """Returns each tensor that the model needs with its place; refuses any that does not fit."""
    held = _tensors_of(folder)
    names = NAMES[family_of(cfg)]
    embed, _ = names.ends["embed"]
    found = [prefix for prefix in names.prefixes if prefix + embed in held]
    joined = tuple(name for name, _ in names.stacked.values())
    stacked = any(name.endswith(joined) for name in held)
    wanted = tensor_names.tensors(cfg, (found or names.prefixes)[0], stacked=stacked)
    absent = [tensor for tensor in wanted if tensor.name not in held]
    if absent:
        raise InputError(
            f"{folder}: tensor {absent[0].name} is missing; expected {list(absent[0].shape)} "
            f"({len(absent)} of {len(wanted)} are missing); copy the whole checkpoint"
        )
    for tensor in wanted:
        _check(tensor, held[tensor.name])
    needed = {tensor.name for tensor in wanted}
    extra = sorted(name for name in set(held) - needed if not name.startswith(IGNORED))
    if extra:
        raise InputError(
            f"{held[extra[0]].path}: tensor {extra[0]} is not part of pattern {cfg.pattern!r} "
            f"({len(extra)} such tensors); use the config.json of this checkpoint"
        )
    return [(tensor, held[tensor.name]) for tensor in wanted]


def _check(tensor: Tensor, stored: Stored) -> None:
    if stored.shape != tensor.shape:
        turned = stored.shape == tensor.shape[::-1]
        raise InputError(
            f"{stored.path}: tensor {tensor.name} has shape {list(stored.shape)}, expected "
            f"{list(tensor.shape)}; " + ("transpose it" if turned else "use its own config.json")
        )
    if stored.dtype not in FLOATS:
        raise InputError(
            f"{stored.path}: tensor {tensor.name} holds {stored.dtype}, expected floats "
            f"({', '.join(FLOATS)}); use a checkpoint that is not quantised"
        )


def _tensors_of(folder: pathlib.Path) -> dict[str, Stored]:
    """Returns the place of each tensor, through the index where there is one."""
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise InputError(f"{folder}: holds neither {SINGLE} nor {INDEX}; copy the weights too")
        return _header(folder / SINGLE)
    table = _json(folder / INDEX).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        raise InputError(f"{folder / INDEX}: weight_map is no table of file names; restore it")
    files = {}
    for name, file in table.items():
        if file not in files:
            if not (folder / file).is_file():
                raise InputError(
                    f"{folder / file}: no such file, but {INDEX} places tensor {name} there; "
                    "copy the missing shard"
                )
            files[file] = _header(folder / file)
        if name not in files[file]:
            raise InputError(
                f"{folder / file}: tensor {name} is missing, but {INDEX} places it there"
            )
    for file, held in files.items():
        unlisted = sorted(n for n in set(held) - set(table) if not n.startswith(IGNORED))
        if unlisted:
            raise InputError(
                f"{folder / file}: tensor {unlisted[0]} is not listed in {INDEX}; "
                "restore the index that belongs to these files"
            )
    return {name: files[file][name] for name, file in table.items()}


def _header(path: pathlib.Path) -> dict[str, Stored]:
    """Returns the tensors of one file: a length of 8 bytes, a JSON table, then the numbers."""
    try:
        with safe_open(path, framework="np"):  # checks the table and the file's length
            pass
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: not a readable safetensors file ({error}); copy it again"
        ) from None
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table = json.loads(file.read(size))
    table.pop("__metadata__", None)
    return {
        name: Stored(path, said["dtype"], tuple(said["shape"]), 8 + size + said["data_offsets"][0])
        for name, said in table.items()
    }


# --- from files to devices -----------------------------------------------------------------------


def _sources(matched: list[tuple[Tensor, Stored]], cfg: ModelConfig) -> dict[str, _Source]:
    shapes: dict[str, tuple[int, ...]] = {}
    map_specs(lambda path, spec: shapes.__setitem__(path, spec.shape), model_specs(cfg))
    sources: dict[str, _Source] = {}
    for tensor, stored in matched:
        for part in tensor.parts:
            held = np.dtype(held_type(part.path, cfg))
            new = _Source(shapes[part.path], held, tensor.order, len(part.lead), {})
            sources.setdefault(part.path, new).places[part.lead] = (stored, part.start)
    return sources


def _load(source: _Source, sharding: jax.sharding.Sharding | None) -> jax.Array:
    """Returns one parameter; a shard that several devices hold is read once."""
    if sharding is None:
        return _on_device(source, [(0, size) for size in source.shape], None)
    shards: dict[tuple[Span, ...], jax.Array] = {}
    arrays = []
    for device, index in sharding.addressable_devices_indices_map(source.shape).items():
        assert index is not None
        spans = [part.indices(size)[:2] for part, size in zip(index, source.shape, strict=True)]
        if tuple(spans) in shards:
            arrays.append(jax.device_put(shards[tuple(spans)], device))
        else:
            arrays.append(_on_device(source, spans, device))
            shards[tuple(spans)] = arrays[-1]
    return jax.make_array_from_single_device_arrays(source.shape, sharding, arrays)


def _on_device(source: _Source, spans: list[Span], device: jax.Device | None) -> jax.Array:
    """Returns one shard on its device, the default one for None; the host holds a block at a time."""
    axes = [*range(source.leads), *(source.leads + a for a in source.order if a is not None)]
    blocks = list(_blocks(spans, axes, source.dtype.itemsize))
    if len(blocks) == 1:
        return jax.device_put(_read(source, spans), device)
    held = jnp.zeros([stop - start for start, stop in spans], source.dtype, device=device)
    for block in blocks:
        at = [np.int32(low - start) for (low, _), (start, _) in zip(block, spans, strict=True)]
        held = _place(held, jax.device_put(_read(source, block), device), at)
        held.block_until_ready()  # else blocks are read faster than they are placed
    return held


@jax.jit(donate_argnums=0)
def _place(held: jax.Array, block: jax.Array, at: list[jax.Array]) -> jax.Array:
    return jax.lax.dynamic_update_slice(held, block, at)


def _blocks(spans: list[Span], axes: list[int], itemsize: int) -> Iterator[list[Span]]:
    """Cuts a region into blocks of at most BLOCK_BYTES, along `axes` in this order."""
    size = math.prod(stop - start for start, stop in spans) * itemsize
    long = [axis for axis in axes if spans[axis][1] - spans[axis][0] > 1]
    if size <= BLOCK_BYTES or not long:
        yield spans
        return
    axis = long[0]
    start, stop = spans[axis]
    step = max(1, (stop - start) * BLOCK_BYTES // size)
    for low in range(start, stop, step):
        cut = [*spans[:axis], (low, min(low + step, stop)), *spans[axis + 1 :]]
        yield from _blocks(cut, axes, itemsize)


def _read(source: _Source, spans: list[Span]) -> np.ndarray:
    """Returns a region of a parameter, cast as it is copied out of the files."""
    out = np.empty([stop - start for start, stop in spans], source.dtype)
    firsts = [start for start, _ in spans[: source.leads]]
    *rows, (low, high) = spans[source.leads :]
    for place in np.ndindex(out.shape[: source.leads]):
        lead = tuple(first + step for first, step in zip(firsts, place, strict=True))
        stored, column = source.places[lead]
        ours = as_ours(stored.numbers(), source.order)
        cut = [*(slice(*row) for row in rows), slice(low + column, high + column)]
        out[place] = ours[tuple(cut)]
    return out


def as_ours(stored: np.ndarray, order: Order) -> np.ndarray:
    """Returns a view of a stored tensor with our axes."""
    kept = [axis for axis in order if axis is not None]
    plain = stored.reshape(
        [n for n, axis in zip(stored.shape, order, strict=True) if axis is not None]
    )
    return plain.transpose([kept.index(axis) for axis in range(len(kept))])


def as_stored(ours: np.ndarray, tensor: Tensor) -> np.ndarray:
    """Returns a view of our numbers with the axes and the shape of a published tensor."""
    return ours.transpose([axis for axis in tensor.order if axis is not None]).reshape(tensor.shape)
