"""The instruction-following verifier: checks every constraint of the row on the answer (paper 2.5).

The mode is the row's `grading_mode`: "binary" (the default) pays 1 only when every constraint
passes, "fraction" pays the share that passes. An answer that shows nothing, or only repeats the
prompt of a row that asks for no repetition, is 0 in both.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from nemocascade_jax.rewards.arguments import shows
from nemocascade_jax.rewards.constraints import CONSTRAINTS
from nemocascade_jax.rewards.ifbench import IFBENCH
from nemocascade_jax.rows.messages import split_reasoning
from nemocascade_jax.rows.records import Completion, Row, RowError, Score

MODES = ("binary", "fraction")
LONGEST = 400_000  # characters of an answer
REPEATING = ("copy:", "new:", "repeat:", "combination:repeat_prompt")  # ids that ask for the prompt
REGISTRY = {**CONSTRAINTS, **IFBENCH}  # 54 to train on and 58 to evaluate with
GOOD = (
    '{"instruction_id_list": ["punctuation:no_comma", "keywords:existence"], '
    '"kwargs": [null, {"keywords": ["cloud"]}]}'
)


class Wanted(NamedTuple):
    """One constraint of a row; `label` is its id, with #2, #3 where an id is there again."""

    label: str
    id: str
    kwargs: Mapping[str, Any]


def check(row: Row) -> None:
    """Raises RowError for an unknown id, a wrong argument, or an empty list of constraints."""
    wanted(row)


def score(row: Row, completion: Completion) -> Score:
    """Grades the text after the reasoning; `parts` holds 1 or 0 for each constraint."""
    tasks, mode = wanted(row)
    answer = split_reasoning(completion.text)[1].strip()
    problem = _no_answer(answer, row, tasks)
    if problem:
        return Score(0.0, "ok", problem, {task.label: 0.0 for task in tasks})
    parts = {task.label: float(REGISTRY[task.id].follows(answer, **task.kwargs)) for task in tasks}
    missed = [label for label, passed in parts.items() if not passed]
    share = 1.0 - len(missed) / len(parts)
    reward = share if mode == "fraction" else float(not missed)
    return Score(reward, "ok", f"not followed: {', '.join(missed)}" if missed else "", parts)


def _no_answer(answer: str, row: Row, tasks: list[Wanted]) -> str:
    """Returns why a text is none that constraints are checked on, "" for one that is."""
    if not shows(answer):
        return "empty answer"
    if len(answer) > LONGEST:
        return f"{len(answer)} characters, at most {LONGEST} are read"
    asked = [message.content for message in row.messages if message.role == "user"]
    prompt = asked[-1] if asked else str(row.fields.get("prompt", ""))
    if len(answer) < 4 * len(prompt) and _same_words(answer, prompt):
        repeats = any(task.id.startswith(REPEATING) for task in tasks)
        return "" if repeats else "the prompt repeated"
    return ""


def _same_words(one: str, other: str) -> bool:
    """Returns whether two texts have the same letters and digits in the same order, in any case."""
    left, right = ("".join(filter(str.isalnum, text.casefold())) for text in (one, other))
    return left == right != ""


def wanted(row: Row) -> tuple[list[Wanted], str]:
    """Returns the row's constraints with typed arguments, and its grading mode."""
    mode = row.fields.get("grading_mode", "binary")
    if mode not in MODES:
        raise _bad(row, "grading_mode", f"{mode!r} is none of {MODES}")
    names = row.fields.get("instruction_id_list")
    if not isinstance(names, list) or not names:
        problem = "missing" if names is None else "expected a list of constraint ids, not empty"
        raise _bad(row, "instruction_id_list", problem)
    given = row.fields.get("kwargs")
    if not isinstance(given, list) or len(given) != len(names):
        length = f"{len(given)}" if isinstance(given, list) else "no list"
        problem = f"expected one entry for each of the {len(names)} constraints, got {length}"
        raise _bad(row, "kwargs", problem)
    tasks = []
    for index, (name, kwargs) in enumerate(zip(names, given, strict=True)):
        if not isinstance(name, str) or name not in REGISTRY:
            raise _bad(row, f"instruction_id_list[{index}]", _unknown("constraint", name, REGISTRY))
        again = names[:index].count(name)
        label = f"{name}#{again + 1}" if again else name
        tasks.append(Wanted(label, name, _arguments(row, index, name, kwargs)))
    return tasks, mode


def _arguments(row: Row, index: int, name: str, given: Any) -> dict[str, Any]:
    field = f"kwargs[{index}]"
    if given is not None and not isinstance(given, Mapping):
        raise _bad(row, field, f"expected an object or null, got {given!r}")
    values = {key: value for key, value in (given or {}).items() if value is not None}
    constraint = REGISTRY[name]
    for key in values:
        if key not in constraint.arguments:
            problem = _unknown(f"argument of {name}", key, constraint.arguments)
            raise _bad(row, f"{field}.{key}", problem)
    read = {}
    for key, argument in constraint.arguments.items():
        if key not in values:
            raise _bad(row, f"{field}.{key}", f"missing, {name} needs {argument.expected}")
        read[key] = argument.read(values[key])
        if read[key] is None:
            problem = f"{name} needs {argument.expected}, got {values[key]!r}"
            raise _bad(row, f"{field}.{key}", problem)
    problem = constraint.relate(**read) if constraint.relate else ""
    if problem:
        raise _bad(row, field, f"{name}: {problem}")
    return read


def _unknown(what: str, name: Any, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"
    return f"unknown {what} {name!r}, {hint}"


def _bad(row: Row, field: str, problem: str) -> RowError:
    return RowError(f"{row.where}: field {field}: {problem}; a good row: {GOOD}")
