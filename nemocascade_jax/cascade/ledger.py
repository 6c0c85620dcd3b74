"""`cascade.json`: which stages ran from which parent, and what each checkpoint scored; no times in it."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from nemocascade_jax.errors import InputError
from nemocascade_jax.evaluate import Evaluation, paired_difference
from nemocascade_jax.metrics import write_text

VERSION = 1


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

    def add_scores(
        self, stage: str, step: int, digest: str, seed: int, found: Sequence[Evaluation]
    ) -> None:
        """Adds one checkpoint's scores, replacing those of an interrupted earlier try."""
        kept = [s for s in self.content["scores"] if (s["stage"], s["step"]) != (stage, step)]
        for one in found:
            kept.append(
                {
                    "stage": stage,
                    "step": step,
                    "domain": one.domain,
                    "mode": one.mode,
                    "score": one.mean,
                    "n": sum(reward is not None for reward in one.rewards),
                    "failed": sum(reward is None for reward in one.rewards),
                    "standard_error": one.standard_error,
                    "seed": seed,
                    "digest": digest,
                }
            )
        self.content["scores"] = kept
        self._write()

    def add_differences(
        self, stage: str, parent: str, after: Sequence[Evaluation], before: Sequence[Evaluation]
    ) -> None:
        """Adds what a stage changed on each domain, paired over the same rows and random numbers."""
        kept = [d for d in self.content["differences"] if d["stage"] != stage]
        old = {(one.domain, one.mode): one for one in before}
        for one in after:
            if (one.domain, one.mode) in old:
                mean, error = paired_difference(one.rewards, old[one.domain, one.mode].rewards)
                kept.append(
                    {
                        "stage": stage,
                        "parent": parent,
                        "domain": one.domain,
                        "mode": one.mode,
                        "difference": mean,
                        "standard_error": error,
                    }
                )
        self.content["differences"] = kept
        self._write()

    def _write(self) -> None:
        write_text(self.path, json.dumps(self.content, indent=1, allow_nan=False) + "\n")


def open_ledger(workdir: pathlib.Path, order: Sequence[str]) -> Ledger:
    """Returns the workdir's ledger, a new one where there is none."""
    path = workdir / "cascade.json"
    empty = {
        "version": VERSION,
        "order": list(order),
        "stages": {},
        "scores": [],
        "differences": [],
    }
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
