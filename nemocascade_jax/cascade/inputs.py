"""Everything a run reads, read and checked before any device work; no jax."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nemocascade_jax import config
from nemocascade_jax.config import GRPOConfig, RunConfig, SourceConfig
from nemocascade_jax.data.tokenizer import Tokenizer, load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.metrics import write_text
from nemocascade_jax.rewards import REWARDS, check_row
from nemocascade_jax.rows.records import Row
from nemocascade_jax.rows.sources import load_rows

Weighted = tuple[list[Any], float]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Rows of every stage with their sources' weights, held-out rows, and the tokenizer."""

    tokenizer: Tokenizer
    stages: Mapping[str, Sequence[Weighted]]
    evaluation: Mapping[str, Sequence[Row]]


def load_inputs(run: RunConfig, say: Callable[[str], None]) -> Inputs:
    """Returns the inputs of a run; a bad row, file or tokenizer is refused here."""
    tokenizer = load_tokenizer(run.tokenizer)
    if tokenizer.size > run.model.vocab_size:
        raise InputError(
            f"config.tokenizer: {run.tokenizer} has {tokenizer.size} ids, config.model.vocab_size is "
            f"{run.model.vocab_size}; every id needs a row of the embedding"
        )
    stages = {}
    for name in run.order:
        stage: Any = run.stages[name]
        kind = "row" if isinstance(stage, GRPOConfig) else "conversation"
        stages[name] = [
            (_load(source, kind, f"{name}.data.{key}", say), source.weight)
            for key, source in stage.data.items()
        ]
    evaluation = {
        domain: _load(source, "row", f"evaluation.{domain}", say)
        for domain, source in run.evaluation.domains.items()
    }
    return Inputs(tokenizer, stages, evaluation)


def _load(source: SourceConfig, kind: Any, where: str, say: Callable[[str], None]) -> list[Any]:
    loaded = load_rows(source, kind, check_row, known=REWARDS)
    for line in loaded.skipped[:5]:
        say(f"{where}: skipped {line}")
    if len(loaded.skipped) > 5:
        say(f"{where}: {len(loaded.skipped)} rows skipped in all")
    return list(loaded.rows)


def claim_workdir(run: RunConfig, workdir: pathlib.Path) -> None:
    """Writes config.json into a new workdir; refuses one that belongs to another config.

    Keys marked free may differ; a longer `order` that starts with the old one may, too.
    """
    path = workdir / "config.json"
    if path.is_file():
        try:
            old = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: not JSON ({error}); use another --workdir") from None
        here, there = config.fixed_part(run), _fixed_again(old, path)
        if here["order"][: len(there["order"])] == there["order"]:
            there["order"] = here["order"]
            there["stages"] = here["stages"] | there["stages"]
        difference = config.first_difference(there, here)
        if difference:
            raise InputError(
                f"{workdir}: holds a run of another config: {difference}; "
                "use another --workdir, or the config it was made with"
            )
    workdir.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(config.to_plain(run), indent=2, allow_nan=False) + "\n")


def _fixed_again(old: Any, path: pathlib.Path) -> Any:
    """Returns the fixed part of a stored config; a version that this program cannot read is refused."""
    try:
        return config.fixed_part(config.build(RunConfig, old))
    except config.ConfigError as error:
        raise InputError(f"{path}: written by another version of the program ({error})") from None
