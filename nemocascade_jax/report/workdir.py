"""Reads a workdir that may be unfinished or torn; what could not be read is said, not guessed."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

from nemocascade_jax.errors import InputError

ROLLOUT_BYTES = 64 << 20  # that are read of one rollout file


@dataclasses.dataclass(frozen=True)
class StageFolder:
    """One stage: its name, its place in the cascade, its folder (which may be missing)."""

    name: str
    folder: pathlib.Path
    config: dict[str, Any]
    entry: dict[str, Any]  # of the ledger; empty when the stage has not started

    @property
    def kind(self) -> str:
        return str(self.entry.get("kind") or self.config.get("kind") or "?")

    def rollout_files(self) -> dict[int, pathlib.Path]:
        """Returns the rollout files by step, in order."""
        found = {
            int(path.stem): path
            for path in (self.folder / "rollouts").glob("*.jsonl")
            if path.stem.isdigit()
        }
        return dict(sorted(found.items()))


@dataclasses.dataclass(frozen=True)
class Workdir:
    """A workdir's config and ledger as plain data; `notes` collects what was missing or torn."""

    root: pathlib.Path
    config: dict[str, Any]
    ledger: dict[str, Any]
    stages: list[StageFolder]
    notes: list[str]

    def lines(self, path: pathlib.Path, most_bytes: float = math.inf) -> Iterator[dict[str, Any]]:
        """Yields the objects of a .jsonl file; a broken line is left out and noted once.

        Ends before a line that goes beyond `most_bytes`.
        """
        read = 0
        try:
            content = path.open("rb")
        except OSError:
            return
        with content:
            for number, line in enumerate(content, 1):
                read += len(line)
                if read > most_bytes:
                    return
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    found = None
                if isinstance(found, dict):
                    yield found
                else:
                    torn = "" if line.endswith(b"\n") else ", torn (a write was cut short)"
                    self.note(f"{self.inside(path)}: line {number} is not JSON{torn}; left out")

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def inside(self, path: pathlib.Path) -> str:
        """Returns a path as seen from the workdir, so that a moved workdir gives the same report."""
        return path.relative_to(self.root).as_posix()


def open_workdir(root: pathlib.Path) -> Workdir:
    """Returns the workdir; raises InputError when it is none."""
    paths = [root / "config.json", root / "cascade.json"]
    if not any(path.is_file() for path in paths):
        raise InputError(
            f"--workdir: {root} holds neither config.json nor cascade.json; "
            "name the folder that run.py --workdir wrote"
        )
    notes: list[str] = []
    config, ledger = (_read(path, notes) for path in paths)
    ledger = {**EMPTY, **{key: value for key, value in ledger.items() if value is not None}}
    if ledger["version"] not in (None, 2):
        raise InputError(f"{paths[1]}: version {ledger['version']}, this program reads 2")
    order = ledger["order"] or config.get("order") or []
    stages = [
        StageFolder(
            name=name,
            folder=root / f"{number:02d}_{name}",
            config=(config.get("stages") or {}).get(name) or {},
            entry=ledger["stages"].get(name, {}),
        )
        for number, name in enumerate(order, 1)
    ]
    notes += [
        f"{stage.folder.name}: the folder is missing"
        for stage in stages
        if stage.entry and not stage.folder.is_dir()
    ]
    return Workdir(root, config, ledger, stages, notes)


def _read(path: pathlib.Path, notes: list[str]) -> dict[str, Any]:
    """Returns a JSON object; an absent file is noted and empty, a broken one is refused."""
    if not path.is_file():
        notes.append(f"{path.name}: not there (the run stopped early, or it is being made)")
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); restore the file") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds no JSON object; restore the file")
    return found


EMPTY: dict[str, Any] = {
    "version": None,
    "order": [],
    "stages": {},
    "best": {},
    "teachers": {},
    "scores": [],
    "differences": [],
    "gates": [],
    "triggers": [],
    "recoveries": [],
}
