"""`cascade.json`: which stages ran from which parent, what each checkpoint scored, who teaches what.

No times in it, and its lists are sorted, so that a run that was stopped leaves the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from nemocascade_jax.config import INIT
from nemocascade_jax.errors import InputError
from nemocascade_jax.evaluate import Evaluation
from nemocascade_jax.metrics import write_text

VERSION = 2
TABLES = ("stages", "best", "teachers")
ROWS = ("selection", "confirmation")
LISTS = ("scores", "differences", "gates", "triggers", "recoveries")


@dataclasses.dataclass
class Ledger:
    """The bookkeeping of one workdir; every change is written whole before the next step."""

    path: pathlib.Path
    content: dict[str, Any]

    def stage(self, name: str) -> dict[str, Any]:
        """Returns the entry of a stage; empty when it has not started."""
        return self.content["stages"].get(name, {})

    def start(self, name: str, entry: dict[str, Any]) -> None:
        """Records that a stage runs, from which parent and weights."""
        self.content["stages"][name] = {**entry, "status": "running"}
        self._write()

    def finish(
        self, name: str, *, step: int, status: str, digest: str, counters: dict[str, int]
    ) -> None:
        """Records the stage's last checkpoint; `status` is "done" or why it ended early."""
        self.content["stages"][name] |= {
            "status": status,
            "step": step,
            "digest": digest,
            "counters": counters,
        }
        self._write()

    def scored(self, stage: str, step: int) -> bool:
        """Returns whether the checkpoint has its scores on the first held-out set."""
        about = (stage, step, "selection")
        return any((s["stage"], s["step"], s["rows"]) == about for s in self.content["scores"])

    def add_scores(
        self, stage: str, step: int, digest: str, seed: int, found: Sequence[Evaluation]
    ) -> None:
        """Adds scores of one checkpoint, replacing those of an interrupted earlier try."""
        new = {(stage, step, one.rows, one.domain, one.mode) for one in found}
        kept = [score for score in self.content["scores"] if _key(score) not in new]
        for one in found:
            kept.append(
                {
                    "stage": stage,
                    "step": step,
                    "domain": one.domain,
                    "mode": one.mode,
                    "rows": one.rows,
                    "score": one.mean,
                    "n": sum(reward is not None for reward in one.rewards),
                    "failed": sum(reward is None for reward in one.rewards),
                    "standard_error": one.standard_error,
                    "seed": seed,
                    "digest": digest,
                }
            )
        self.content["scores"] = [_without_nan(score) for score in kept]
        self._choose_best()
        self._write()

    def _choose_best(self) -> None:
        """The best of a domain: the highest sampled score on the first set, the earliest of equals."""
        self._sort()
        best: dict[str, Any] = {}
        for score in self.content["scores"]:
            if score["mode"] != "sampled" or score["rows"] != "selection" or not score["n"]:
                continue
            domain = score["domain"]
            if domain not in best or score["score"] > best[domain]["score"]:
                keys = ("stage", "step", "score", "standard_error", "digest")
                best[domain] = {key: score[key] for key in keys}
        self.content["best"] = dict(sorted(best.items()))

    def set_entries(self, what: str, stage: str, entries: Sequence[dict[str, Any]]) -> None:
        """Replaces a stage's entries in one of the lists `differences`, `gates`, ..."""
        others = [entry for entry in self.content[what] if entry["stage"] != stage]
        self.content[what] = [*others, *map(_without_nan, entries)]
        self._write()

    def set_teachers(self, stage: str, chosen: dict[str, dict[str, Any]]) -> None:
        """Records a stage's teachers by domain; they stay what they are when the run goes on."""
        self.content["teachers"][stage] = chosen
        self._write()

    def entries(self, what: str, stage: str) -> list[dict[str, Any]]:
        """Returns a stage's entries in one of the lists."""
        return [entry for entry in self.content[what] if entry["stage"] == stage]

    def _sort(self) -> None:
        order = [INIT, *self.content["order"]]
        for name in LISTS:
            self.content[name].sort(
                key=lambda entry: (
                    order.index(entry["stage"]),
                    entry.get("step", 0),
                    ROWS.index(entry.get("rows", ROWS[0])),
                    entry.get("domain", ""),
                    entry.get("mode", ""),
                )
            )

    def _write(self) -> None:
        self._sort()
        write_text(self.path, json.dumps(self.content, indent=1, allow_nan=False) + "\n")


def _key(score: dict[str, Any]) -> tuple[Any, ...]:
    return score["stage"], score["step"], score["rows"], score["domain"], score["mode"]


def _without_nan(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the entry with null where there is no number, such as the error of a single row."""
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in entry.items()
    }


def open_ledger(workdir: pathlib.Path, order: Sequence[str]) -> Ledger:
    """Returns the workdir's ledger, a new one where there is none."""
    path = workdir / "cascade.json"
    empty: dict[str, Any] = {"version": VERSION, "order": list(order)}
    empty |= {name: {} for name in TABLES} | {name: [] for name in LISTS}
    if not path.is_file():
        return Ledger(path, empty)
    try:
        content = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}: not a ledger ({error}); restore it or use another workdir"
        ) from None
    if content.get("version") != VERSION:
        raise InputError(f"{path}: version {content.get('version')}, this program reads {VERSION}")
    return Ledger(path, content | {"order": list(order)})
