"""Scores of the checkpoints of one run: made, kept beside them, entered in the ledger; retention."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Collection
from typing import Any

from nemocascade_jax import metrics as logs
from nemocascade_jax.cascade import gates
from nemocascade_jax.cascade.ledger import Ledger
from nemocascade_jax.config import INIT, CheckpointConfig, MOPDConfig, RunConfig, parse_teacher
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.evaluate import Evaluate, Evaluation, RowSet, from_records
from nemocascade_jax.formats.checkpoint import checkpoint_steps, remove_checkpoint


def stage_folder(workdir: pathlib.Path, order: tuple[str, ...], name: str) -> pathlib.Path:
    """Returns NN_stage, numbered from 1 in the order of the cascade; 00_init for the first weights."""
    number = 0 if name == INIT else order.index(name) + 1
    return workdir / f"{number:02d}_{name}"


@dataclasses.dataclass(frozen=True)
class Scores:
    """Every held-out score of a run; the records of all answers lie in STAGE/evaluations/."""

    run: RunConfig
    workdir: pathlib.Path
    ledger: Ledger
    evaluate: Evaluate
    load: Callable[[str, int], Any]  # stage, step -> parameters

    def checkpoint(self, stage: str, step: int, params: Any, *, last: bool) -> list[Evaluation]:
        """Scores a checkpoint on the first set, at a stage's end with the greedy answers."""
        found = self.evaluate(params, "selection", greedy=last)
        self._enter(stage, step, params, found)
        return found

    def confirm(
        self, stage: str, step: int, domains: Collection[str] | None = None, params: Any = None
    ) -> list[Evaluation]:
        """Returns a checkpoint's scores on the second set, made where they are not there yet."""
        if not self.run.evaluation.confirmation:
            return []
        wanted = set(self.run.evaluation.domains if domains is None else domains)
        there = self.read(stage, step, "confirmation")
        missing = wanted - {one.domain for one in there}
        if missing:
            params = self.load(stage, step) if params is None else params
            there += self.evaluate(params, "confirmation", greedy=False, domains=missing)
            there.sort(key=lambda one: one.domain)
            self._enter(stage, step, params, there)
        return [one for one in there if one.domain in wanted]

    def measure_folder(
        self, stage: str, domain: str, evaluate: Evaluate, load: Callable[[], Any]
    ) -> Evaluation:
        """Scores a teacher from outside the run on its domain, once; returns its first-set score."""
        sets: tuple[RowSet, ...] = ("selection", "confirmation")
        for rows in sets[: 2 if self.run.evaluation.confirmation else 1]:
            path = self._file(stage, _teacher(domain), rows)
            if not path.is_file():
                found = evaluate(load(), rows, greedy=False, domains=[domain])
                logs.write_lines(path, [record for one in found for record in one.records])
        return self._one(stage, _teacher(domain), domain, "selection")

    def read(self, stage: str, step: int | str, rows: str) -> list[Evaluation]:
        """Returns the stored evaluations of a checkpoint, none where there is no file."""
        path = self._file(stage, step, rows)
        if not path.is_file():
            return []
        return from_records(map(json.loads, path.read_text(encoding="utf-8").splitlines()))

    def differences(self, stage: str, step: int) -> None:
        """Enters what a stage's last checkpoint changed against its parent's."""
        parent, at = self.parent(stage)
        found = [
            entry
            for rows in ("selection", "confirmation")
            for entry in gates.differences(
                stage, parent, self.read(stage, step, rows), self.read(parent, at, rows)
            )
        ]
        self.ledger.set_entries("differences", stage, found)

    def gates(self, stage: str, step: int) -> None:
        """Enters the verdict on every domain: at its best, or below it."""
        found = []
        for now in self.read(stage, step, "selection"):
            best = self.ledger.content["best"].get(now.domain)
            if now.mode == "sampled" and best is not None:
                at_best = self._one(best["stage"], best["step"], now.domain, "selection")
                errors = self.run.evaluation.fallen_errors
                found.append(gates.gate(stage, step, now, best, at_best, errors))
        self.ledger.set_entries("gates", stage, found)

    def recoveries(self, stage: str, step: int, params: Any, teachers: dict[str, Any]) -> None:
        """Enters what MOPD did to every domain, on the second set; nothing without such a set."""
        parent, at = self.parent(stage)
        fallen = {
            entry["domain"]
            for entry in self.ledger.entries("gates", parent)
            if entry["verdict"] == "fallen"
        }
        before = {one.domain: one for one in self.confirm(parent, at)}
        found = []
        for after in self.confirm(stage, step, params=params):
            teacher = teachers.get(after.domain)
            if teacher is None:  # a domain that is scored and not taught
                teacher = {"stage": None, "step": None, "path": None}
                at_teacher = before[after.domain]
            elif teacher["stage"] is None:
                at_teacher = self._one(stage, _teacher(after.domain), after.domain, "confirmation")
            else:
                at_teacher = self._one(
                    teacher["stage"], teacher["step"], after.domain, "confirmation"
                )
            found.append(
                gates.recovery(
                    stage,
                    teacher,
                    after=after,
                    before=before[after.domain],
                    at_teacher=at_teacher,
                    fallen=after.domain in fallen,
                )
            )
        self.ledger.set_entries("recoveries", stage, found)

    def parent(self, stage: str) -> tuple[str, int]:
        """Returns the checkpoint that a stage started from."""
        name = self.run.parent(stage)
        return (INIT, 0) if name is None else (name, self.ledger.stage(name)["step"])

    def remove_old(self) -> None:
        """Removes checkpoints that nobody needs any more.

        Those stay that are among the newest `checkpoint.keep` of their stage, best at a domain,
        chosen as a teacher, or named as one in the config.
        """
        needed = {(best["stage"], best["step"]) for best in self.ledger.content["best"].values()}
        for chosen in self.ledger.content["teachers"].values():
            needed |= {(teacher["stage"], teacher["step"]) for teacher in chosen.values()}
        for config in self.run.stages.values():
            if isinstance(config, MOPDConfig):
                named = [parse_teacher(text) for text in config.teachers.values()]
                needed |= {(name.stage, name.step) for name in named}
        for stage in self.run.order:
            folder = stage_folder(self.workdir, self.run.order, stage) / "checkpoints"
            steps = checkpoint_steps(folder)
            plan: CheckpointConfig = self.run.stages[stage].checkpoint  # type: ignore[attr-defined]
            # a signal saves between the scored steps; such a checkpoint goes when the next is there
            due = [step for step in steps if step % plan.every_steps == 0 or step == steps[-1]]
            for step in set(steps) - set(due[-plan.keep :]):
                if (stage, step) not in needed:
                    remove_checkpoint(folder, step)

    def _enter(self, stage: str, step: int, params: Any, found: list[Evaluation]) -> None:
        lines = [record for one in found for record in one.records]
        logs.write_lines(self._file(stage, step, found[0].rows), lines)
        digest = weights_digest(params)
        self.ledger.add_scores(stage, step, digest, self.run.evaluation.seed, found)

    def _file(self, stage: str, step: int | str, rows: str) -> pathlib.Path:
        ending = "" if rows == "selection" else f".{rows}"
        folder = stage_folder(self.workdir, self.run.order, stage) / "evaluations"
        return folder / f"{step}{ending}.jsonl"

    def _one(self, stage: str, step: int | str, domain: str, rows: str) -> Evaluation:
        found = self.read(stage, step, rows)
        return next(one for one in found if (one.domain, one.mode) == (domain, "sampled"))


def _teacher(domain: str) -> str:
    """Names the file of a teacher that is no checkpoint of this run."""
    return f"teacher.{domain}"
