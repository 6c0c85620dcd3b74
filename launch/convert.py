"""Converts a model: Hugging Face folder to native checkpoint, and either one to a Hugging Face folder.

python launch/convert.py --src DIR --dst DIR --to native
python launch/convert.py --src STAGE/checkpoints/STEP --dst DIR --to hf

Tokenizer, template, generation settings and what config.json says go with the weights, both ways. An
export stores each tensor in the type it was read in; a model that was never published as the hub
does (A_log, D and the correction bias in float32, the rest in bfloat16). The folder appears whole or
not at all.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import token_rows
from absl import flags

import command
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.model_folder import (
    ModelFolder,
    carried_files,
    check_model_folder,
    load_model,
)
from nemocascade_jax.formats.new_folder import check_new_folder, new_folder

TYPES = ("float32", "bfloat16", "float16")
KINDS = ("hf", "native")

flags.DEFINE_string("src", None, "Hugging Face checkpoint folder, or STAGE/checkpoints/STEP")
flags.DEFINE_string("dst", None, "folder to write; it must not hold anything yet")
flags.DEFINE_string("to", None, "hf or native")
flags.DEFINE_string(
    "dtype", None, "float32, bfloat16 or float16 for all but A_log, D and the correction bias"
)
flags.DEFINE_float("shard_gb", 5.0, "largest file of an export, in 10^9 bytes", 0.0)

FLAGS = flags.FLAGS


def main() -> None:
    to = _one_of("to", command.required("to"), KINDS)
    allowed = TYPES if to == "hf" else TYPES[:2]  # what a model is held in
    dtype = None if FLAGS.dtype is None else _one_of("dtype", FLAGS.dtype, allowed)
    limit = int(FLAGS.shard_gb * 1e9)
    if limit < 1:
        raise InputError(f"--shard_gb: {FLAGS.shard_gb:g}; must be above 0, 5 is usual")
    folder = check_model_folder(command.required("src"), "--src")
    dst = check_new_folder(command.required("dst"), "--dst")
    _use_host()
    if to == "native":
        to_native(folder, dst, dtype)
    else:
        to_hf(folder, dst, dtype, limit)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise InputError(f"--{name}: {value!r} is none of {', '.join(known)}")
    return value


def _use_host() -> None:
    """Keeps the weights in host memory, which holds more than any one accelerator does."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    command.start_jax()


def to_native(folder: ModelFolder, dst: pathlib.Path, dtype: str | None) -> None:
    """Writes a folder that `--model` and `config.init` take; `dtype` is what it is held in."""
    import dataclasses

    from nemocascade_jax.formats.checkpoint import model_files, save_model

    if dtype:
        precision = dataclasses.replace(folder.cfg.precision, params=dtype)  # type: ignore[arg-type]
        folder = folder._replace(cfg=dataclasses.replace(folder.cfg, precision=precision))
    files = carried_files(folder)
    params = _load(folder)
    with new_folder(dst) as part:
        save_model(part, params, model_files(folder.cfg, files))


def to_hf(folder: ModelFolder, dst: pathlib.Path, dtype: str | None, limit: int) -> None:
    """Writes a folder as the hub has it, for other programs to read."""
    from nemocascade_jax.formats.hf_export import save_hf

    files, params = carried_files(folder), _load(folder)
    with new_folder(dst) as part:
        save_hf(
            part,
            params,
            folder.cfg,
            files,
            dtype=dtype,
            limit=limit,
            ids=special_ids(folder),
            report=_progress("write", "tensors"),
        )


def special_ids(folder: ModelFolder) -> Mapping[str, Any]:
    """Returns the ids that begin, end and pad a text, as far as the folder knows them."""
    tokenizer, stops = folder.tokenizer, list(folder.stop_ids)
    ids = {} if tokenizer is None else {"pad_token_id": tokenizer.pad_id}
    if tokenizer is not None and tokenizer.bos_id is not None:
        ids["bos_token_id"] = tokenizer.bos_id
    return ids | ({"eos_token_id": stops} if stops else {})


def _load(folder: ModelFolder) -> Any:
    if folder.kind == "native":
        return load_model(folder).params
    return load_model(folder, report=_progress("read", "parameters")).params


def _progress(what: str, unit: str) -> Callable[[int, int], None]:
    shown: list[token_rows.Progress] = []

    def show(done: int, total: int) -> None:
        if not shown:
            shown.append(token_rows.Progress(what, unit, total))
        shown[0].show(done)

    return show


if __name__ == "__main__":
    command.run(main)
