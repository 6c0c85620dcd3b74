"""Rows of token ids: what `sample.py` and `logprobs.py` share in reading and writing; no jax."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from absl import flags

from nemocascade_jax.errors import InputError
from nemocascade_jax.rows import schema

FLAGS = flags.FLAGS
QUIET_S = 5.0  # between two lines of progress where no terminal is


def define_distribution() -> None:
    """Adds the flags of the distribution: temperature, then top-k, then top-p."""
    flags.DEFINE_float("temperature", 1.0, "0 is greedy, with log-probs of temperature 1", 0.0)
    flags.DEFINE_integer("top_k", 0, "keep this many tokens; 0 keeps all", 0)
    flags.DEFINE_float("top_p", 1.0, "keep the shortest prefix of this probability", 0.0, 1.0)


def distribution() -> dict[str, Any]:
    """Returns those flags under the names that configs and code use."""
    if not FLAGS.top_p > 0:
        raise InputError(f"--top_p: {FLAGS.top_p}; must be above 0 and at most 1, 1 keeps all")
    if not 0 <= FLAGS.temperature < float("inf"):
        raise InputError(f"--temperature: {FLAGS.temperature}; must be a finite number, at least 0")
    return {"temperature": FLAGS.temperature, "top_k": FLAGS.top_k or None, "top_p": FLAGS.top_p}


def check_out(out: str) -> Path:
    """Returns the path to write; refuses it before any work where it cannot be written."""
    path = Path(out)
    if path.is_dir():
        raise InputError(f"--out {out}: is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"--out {out}: {path.parent} is no folder; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--out {out}: {path.parent} cannot be written to; name another folder")
    return path


def row_name(obj: dict[str, Any], index: int, where: str, good: str) -> str | int:
    """Returns a row's `id`, its number where it has none."""
    name = obj.get("id")
    if name is None:
        return index
    if type(name) not in (str, int):
        problem = f"expected text or a whole number, got {type(name).__name__}"
        raise schema.bad(where, "id", problem, good)
    return name


def parse_ids(obj: dict[str, Any], field: str, where: str, *, limit: int, good: str) -> list[int]:
    """Returns a list of token ids, each at least 0 and below `limit`."""
    ids = obj[field]
    if not isinstance(ids, list):
        raise schema.bad(where, field, f"expected a list of ids, got {type(ids).__name__}", good)
    for place, number in enumerate(ids):
        if type(number) is not int:
            problem = f"entry {place} is {number!r}, expected a whole number"
            raise schema.bad(where, field, problem, good)
        if not 0 <= number < limit:
            problem = f"entry {place} is {number}, the vocabulary's ids are 0 to {limit - 1}"
            raise schema.bad(where, field, problem, good)
    return ids


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes JSON Lines, the whole file or none of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class Progress:
    """Shows how much is done on standard error: a line that moves on a terminal, a few lines else."""

    def __init__(self, what: str, unit: str, total: int):
        self.what, self.unit, self.total = what, unit, total
        self.began = self.last = time.monotonic()

    def show(self, done: int, detail: str = "") -> None:
        now = time.monotonic()
        terminal, over = sys.stderr.isatty(), done >= self.total
        if not (terminal or over) and now - self.last < QUIET_S:
            return
        self.last, spent = now, now - self.began
        left = spent / max(done, 1) * (self.total - done)
        line = f"{self.what}: {done}/{self.total} {self.unit}  {spent:.1f} s  {left:.0f} s left  {detail}"
        end = "\n" if over or not terminal else ""
        print(("\r" if terminal else "") + line.rstrip(), end=end, file=sys.stderr, flush=True)
