"""Which checkpoint teaches which domain of a MOPD stage: chosen once, recorded, loaded on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemocascade_jax.cascade.ledger import Ledger
from nemocascade_jax.config import ModelConfig, MOPDConfig, parse_teacher
from nemocascade_jax.stages.handles import Teacher


def choose_teachers(stage: str, config: MOPDConfig, ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Returns the stage's teachers by domain, from the ledger if they were chosen before.

    "best" is the domain's best scored checkpoint so far; a stage's name is its last checkpoint.
    """
    if stage in ledger.content["teachers"]:
        return ledger.content["teachers"][stage]
    return {domain: _entry(domain, text, ledger) for domain, text in config.teachers.items()}


def _entry(domain: str, text: str, ledger: Ledger) -> dict[str, Any]:
    named = parse_teacher(text)
    entry: dict[str, Any] = {"asked": text, "stage": named.stage, "step": named.step}
    entry |= {"path": named.folder, "digest": None, "score": None, "standard_error": None}
    if text == "best":
        entry |= ledger.content["best"][domain]
    elif named.stage is not None:
        step = ledger.stage(named.stage)["step"] if named.step is None else named.step
        entry |= {"step": step, **_score(domain, named.stage, step, ledger)}
    return entry


def _score(domain: str, stage: str, step: int, ledger: Ledger) -> dict[str, Any]:
    about = {"stage": stage, "step": step, "domain": domain, "mode": "sampled", "rows": "selection"}
    for score in ledger.content["scores"]:
        if about.items() <= score.items():
            return {key: score[key] for key in ("digest", "score", "standard_error")}
    return {}


def load_teachers(
    chosen: dict[str, dict[str, Any]],
    model: ModelConfig,
    *,
    of_stage: Callable[[str, int], Any],
    of_folder: Callable[[str], tuple[ModelConfig, Callable[[], Any]]],
) -> dict[str, Teacher]:
    """Returns a handle for each domain's teacher; its weights are read when the stage asks."""
    out = {}
    for domain, entry in chosen.items():
        stage, step = entry["stage"], entry["step"]
        if stage is None:
            shape, load = of_folder(entry["path"])
            out[domain] = Teacher(entry["path"], shape, load)
        else:
            out[domain] = Teacher(f"{stage}@{step}", model, _loader(of_stage, stage, step))
    return out


def _loader(of_stage: Callable[[str, int], Any], stage: str, step: int) -> Callable[[], Any]:
    return lambda: of_stage(stage, step)
