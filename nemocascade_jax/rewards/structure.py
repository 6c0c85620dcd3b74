"""The structured-output verifier: the whole answer is strict JSON that fits the row's schema.

The schema of the row (`schema_str`) is first made strict (paper 2.6). Nothing is repaired and no
fence is taken off; a key that is there twice, NaN and Infinity are not JSON.
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any

from nemocascade_jax.rewards import schemas
from nemocascade_jax.rows.messages import split_reasoning
from nemocascade_jax.rows.records import Completion, Row, RowError, Score

LONGEST = 200_000  # characters of an answer, and of a schema
DIGITS = 300  # of a whole number: more do not fit a float
GOOD = (
    '{"schema_str": "{\\"type\\": \\"object\\", \\"properties\\": {\\"age\\": {\\"type\\": '
    '\\"integer\\"}}}", "schema_type": "json"}'
)


class NotJson(ValueError):
    """Text that is not one strict JSON value; says why."""


def check(row: Row) -> None:
    """Raises RowError for a schema that no answer can be held against."""
    _validator(row)


def score(row: Row, completion: Completion) -> Score:
    """Pays 1 for an answer that is JSON and fits; `parts` says whether it was JSON at all."""
    validator = _validator(row)
    try:
        value = read_json(split_reasoning(completion.text)[1].strip())
    except NotJson as problem:
        return _zero(str(problem), 0.0)
    try:
        error = next(validator.iter_errors(value), None)
    except RecursionError:
        return _zero("nested too deep to be checked", 1.0)
    except ArithmeticError as problem:
        return _zero(f"a number that cannot be checked: {problem}", 1.0)
    if error is not None:
        return _zero(f"does not fit {error.validator or 'false'!r} at {error.json_path}", 1.0)
    return Score(1.0, "ok", "", {"format": 1.0, "correct": 1.0})


def read_json(text: str) -> Any:
    """Returns the value of one JSON text; what not every reader of JSON would take raises NotJson."""
    if not text:
        raise NotJson("empty answer")
    if len(text) > LONGEST:
        raise NotJson(f"{len(text)} characters, at most {LONGEST} are read")
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_whole,
            parse_float=_finite,
        )
    except RecursionError:
        raise NotJson("JSON nested too deep") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg} at character {error.pos}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise NotJson("not strict JSON: a key is there twice")
    return table


def _no_constant(word: str) -> Any:
    raise NotJson(f"not JSON: {word}")


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise NotJson(f"a number of {len(digits)} digits, at most {DIGITS} are read")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotJson("a number too large to be read")
    return value


def _zero(reason: str, form: float) -> Score:
    shown = reason if len(reason) <= 200 else f"{reason[:197]}..."
    plain = shown.encode("ascii", "backslashreplace").decode()
    return Score(0.0, "ok", plain, {"format": form, "correct": 0.0})


def _validator(row: Row) -> Any:
    """Returns the validator of the row's schema made strict."""
    for field, known in (("schema_type", "json"), ("response_mode", "text")):
        value = row.fields.get(field, known)
        if value != known:
            raise _bad(row, field, f"{value!r} is not graded here, only {known!r} is")
    text = row.fields.get("schema_str")
    if not isinstance(text, str):
        problem = "missing" if text is None else f"expected text, got {type(text).__name__}"
        raise _bad(row, "schema_str", problem)
    found, problem = _compiled(text)
    if problem:
        raise _bad(row, "schema_str", problem)
    return found


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[Any, str]:
    """Returns (the validator, what is wrong with the schema)."""
    try:
        return schemas.validator(read_json(text)), ""
    except NotJson as problem:
        return None, str(problem).replace("empty answer", "empty")
    except schemas.BadSchema as problem:
        return None, " ".join(str(problem).split())


def _bad(row: Row, field: str, problem: str) -> RowError:
    return RowError(f"{row.where}: field {field}: {problem}; a good row: {GOOD}")
