"""Everything a run reads, read and checked before any device work; no jax."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from nemocascade_jax import config
from nemocascade_jax.config import MOPDConfig, RunConfig, SFTConfig, SourceConfig
from nemocascade_jax.data.compatible import refuse_other_ids, refuse_other_prompts
from nemocascade_jax.data.tokenizer import Tokenizer, load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.families import used_parts
from nemocascade_jax.formats.model_folder import ModelFolder, check_model_folder
from nemocascade_jax.metrics import write_text
from nemocascade_jax.rewards import REWARDS, check_row, reward_for
from nemocascade_jax.rows.records import Row
from nemocascade_jax.rows.sources import load_rows

Weighted = tuple[list[Any], float]
TRIED_PROMPTS = 16  # prompts of a domain that student and teacher from outside must render alike


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Rows of every stage with their sources' weights, held-out rows, and the tokenizer."""

    tokenizer: Tokenizer
    stages: Mapping[str, Sequence[Weighted]]
    evaluation: Mapping[str, Sequence[Row]]


def load_inputs(run: RunConfig, say: Callable[[str], None]) -> Inputs:
    """Returns the inputs of a run; a bad row, file or tokenizer is refused here."""
    if run.init != "scratch":
        _refuse_other_model(run)
    try:
        tokenizer = load_tokenizer(run.tokenizer)
    except InputError as error:
        raise InputError(f"config.tokenizer: {error}") from None
    if tokenizer.size > run.model.vocab_size:
        raise InputError(
            f"config.tokenizer: {run.tokenizer} has {tokenizer.size} ids, config.model.vocab_size is "
            f"{run.model.vocab_size}; every id needs a row of the embedding"
        )
    outside = {
        (name, domain): _outside_tokenizer(f"stages.{name}.teachers.{domain}", folder, tokenizer)
        for name, domain, folder in _folders(run)
    }
    unchecked: list[Row] = []  # checked last: what a config alone can be wrong about is cheaper
    stages: dict[str, list[Weighted]] = {}
    for name in sorted(run.order, key=lambda name: not isinstance(run.stages[name], MOPDConfig)):
        stage: Any = run.stages[name]
        kind = "conversation" if isinstance(stage, SFTConfig) else "row"
        stages[name] = [
            (_load(source, kind, f"{name}.data.{key}", say, unchecked), source.weight)
            for key, source in stage.data.items()
        ]
        if isinstance(stage, MOPDConfig):
            rows = _by_domain(name, stage, stages[name])
            for domain, of_domain in rows.items():
                if (name, domain) in outside:
                    where = f"stages.{name}.teachers.{domain}: {stage.teachers[domain]}"
                    refuse_other_prompts(
                        tokenizer,
                        outside[name, domain],
                        sorted(of_domain, key=lambda row: not row.tools)[:TRIED_PROMPTS],
                        where,
                        thinking=stage.sampling.thinking,
                    )
    evaluation = {
        domain: _load(source, "row", f"evaluation.{domain}", say, unchecked)
        for domain, source in run.evaluation.domains.items()
    }
    for row in unchecked:
        check_row(row)
    return Inputs(tokenizer, stages, evaluation)


def _folders(run: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (stage, domain, folder) of every teacher from outside the run."""
    for name in run.order:
        stage = run.stages[name]
        if isinstance(stage, MOPDConfig):
            for domain, text in stage.teachers.items():
                folder = config.parse_teacher(text).folder
                if folder is not None:
                    yield name, domain, folder


def _outside_tokenizer(key: str, folder: str, student: Tokenizer) -> Tokenizer:
    """Returns the tokenizer of a teacher's folder; refuses a teacher with other ids than the student's."""
    found = _folder(key, folder)
    where = f"config.{key}: {folder}"
    if found.tokenizer is None:
        raise InputError(
            f"{where}: holds no tokenizer, so its ids cannot be compared with the student's; "
            "put the tokenizer's files beside the weights"
        )
    refuse_other_ids(student, found.tokenizer, where)
    return found.tokenizer


def _folder(key: str, folder: str) -> ModelFolder:
    return check_model_folder(folder, f"config.{key}:")


def _refuse_other_model(run: RunConfig) -> None:
    """Raises for starting weights of another shape, naming the first key that differs."""
    found, described = used_parts(_folder("init", run.init).cfg), used_parts(run.model)
    where = config.first_difference(
        config.to_plain(found), config.to_plain(described), "config.model"
    )
    if where is not None:
        raise InputError(
            f"config.init: {run.init} holds another model than config.model describes; first "
            f"difference: {where}"
        )


def _by_domain(name: str, stage: MOPDConfig, sources: Sequence[Weighted]) -> dict[str, list[Row]]:
    """Returns a MOPD stage's rows by domain; each needs a teacher, and each teacher needs rows."""
    found: dict[str, list[Row]] = {}
    for rows, _ in sources:
        for row in rows:
            found.setdefault(reward_for(row).domain, []).append(row)
    for domain, rows in found.items():
        if domain not in stage.teachers:
            raise InputError(
                f"config.stages.{name}.teachers: no teacher for domain {domain!r} of row "
                f"{rows[0].where}; add one (there are: {', '.join(stage.teachers)}), or remove the rows"
            )
    for domain in stage.teachers:
        if domain not in found:
            raise InputError(
                f"config.stages.{name}.teachers.{domain}: no row of the stage's data is of this "
                f"domain (there are: {', '.join(sorted(found))}); add rows or remove the teacher"
            )
    return found


def _load(
    source: SourceConfig,
    kind: Any,
    where: str,
    say: Callable[[str], None],
    unchecked: list[Row],
) -> list[Any]:
    """Returns the rows of a source; where a bad one is refused, its rows are left for a later check."""
    later = kind == "row" and source.on_bad_row == "refuse"
    loaded = load_rows(source, kind, None if later else check_row, known=REWARDS)
    unchecked += loaded.rows if later else []  # type: ignore[arg-type]
    for line in loaded.skipped[:5]:
        say(f"{where}: skipped {line}")
    if len(loaded.skipped) > 5:
        say(f"{where}: {len(loaded.skipped)} rows skipped in all")
    return list(loaded.rows)


def claim_workdir(run: RunConfig, workdir: pathlib.Path) -> None:
    """Writes config.json into a new workdir; refuses one that belongs to another config."""
    check_workdir(run, workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config.to_plain(run), indent=2, allow_nan=False) + "\n"
    write_text(workdir / "config.json", text)


def check_workdir(run: RunConfig, workdir: pathlib.Path) -> None:
    """Raises InputError for a workdir that belongs to another config.

    Keys marked free may differ; so may stages that were not in the old `order`, and a longer `order`
    that starts with the old one.
    """
    path = workdir / "config.json"
    if path.is_file():
        try:
            old = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: not JSON ({error}); use another --workdir") from None
        here, there = config.fixed_part(run), _fixed_again(old, path)
        if here["order"][: len(there["order"])] == there["order"]:
            ran = {name: there["stages"][name] for name in there["order"]}
            there |= {"order": here["order"], "stages": here["stages"] | ran}
        difference = config.first_difference(there, here)
        if difference:
            raise InputError(
                f"{workdir}: holds a run of another config: {difference}; "
                "use another --workdir, or the config it was made with"
            )


def _fixed_again(old: Any, path: pathlib.Path) -> Any:
    """Returns the fixed part of a stored config; a version that this program cannot read is refused."""
    try:
        return config.fixed_part(config.build(RunConfig, old))
    except config.ConfigError as error:
        raise InputError(f"{path}: written by another version of the program ({error})") from None
