"""The structured-output verifier: the whole answer is one value of its format that fits the schema.

The schema of the row (`schema_str`) is first made strict (paper 2.6), the format is its
`schema_type`. Nothing is repaired and no fence is taken off. Where the `response_mode` is `tool_call`,
the value is what the answer's only call of a tool hands over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.rewards import schemas, structure_csv, structure_formats, structure_xml
from nemocascade_jax.rewards.structure_formats import Unreadable, read_json
from nemocascade_jax.rewards.structure_guide import Guide
from nemocascade_jax.rewards.tool_calls import read_turn
from nemocascade_jax.rows.messages import ParsedTurn, split_reasoning
from nemocascade_jax.rows.records import Completion, Row, RowError, Score

GOOD = (
    '{"schema_str": "{\\"type\\": \\"object\\", \\"properties\\": {\\"age\\": {\\"type\\": '
    '\\"integer\\"}}}", "schema_type": "json"}'
)


class Format(NamedTuple):
    """How texts of a format become values, and what the schema of such a row must be able to be."""

    read: Callable[[str, Guide], Any]
    blanks: str | None = None  # what may stand around the value, None for all white space
    typed: bool = True  # texts and numbers look different, so that there is one way to read a value
    kinds: frozenset[str] = frozenset()  # the JSON types that its documents can be, empty for all


def check(row: Row) -> None:
    """Raises RowError for a schema that no answer can be held against."""
    _target(row)


def score(row: Row, completion: Completion) -> Score:
    """Pays 1 for an answer that fits; `parts` says whether it was one value of its format at all."""
    if _by_call(row):
        return score_turns(row, [read_turn(completion.text, row.tools)])
    validator, form = _target(row)
    text = split_reasoning(completion.text)[1].strip(form.blanks)
    return _verdict(validator, _readings(text, validator, form))


def score_turns(row: Row, turns: Sequence[ParsedTurn]) -> Score:
    """Grades an answer that is taken apart already: its only call, or the text of its last turn."""
    validator, form = _target(row)
    if _by_call(row):
        return _verdict(validator, _payload(row, turns))
    if any(turn.calls or turn.faults for turn in turns):
        return _zero("a tool is called where a text was expected", 0.0)
    text = turns[-1].content.strip(form.blanks) if turns else ""
    return _verdict(validator, _readings(text, validator, form))


def _verdict(validator: Any, values: Iterator[Any]) -> Score:
    """Grades the values that an answer can be; one that fits is enough."""
    error: Any = None
    try:
        for value in values:
            error = next(validator.iter_errors(value), None)
            if error is None:
                return Score(1.0, "ok", "", {"format": 1.0, "correct": 1.0})
    except Unreadable as problem:
        return _zero(str(problem), 0.0)
    except RecursionError:
        return _zero("nested too deep to be checked", 1.0)
    except ArithmeticError as problem:
        return _zero(f"a number that cannot be checked: {problem}", 1.0)
    return _zero(f"does not fit {error.validator or 'false'!r} at {error.json_path}", 1.0)


def _payload(row: Row, turns: Sequence[ParsedTurn]) -> Iterator[Any]:
    """Yields the arguments of the only call, or the one argument that the row says holds the value."""
    fault = next((fault for turn in turns for fault in turn.faults), None)
    if fault is not None:
        raise Unreadable(f"cannot be read: {fault}")
    calls = [call for turn in turns for call in turn.calls]
    if len(calls) != 1:
        raise Unreadable(f"{len(calls)} calls where one was expected")
    name, key = row.fields.get("tool_name"), row.fields.get("tool_payload_key")
    if name is not None and calls[0].name != name:
        raise Unreadable(f"{calls[0].name[:60]} is called, not {name}")
    if key is None:
        yield dict(calls[0].arguments)
    elif set(calls[0].arguments) == {key}:
        yield calls[0].arguments[key]
    else:
        raise Unreadable(f"the call has other arguments than {key}")


def _readings(text: str, validator: Any, form: Format) -> Iterator[Any]:
    """Yields the values that a text can be: two where its places leave open what is meant."""
    value = form.read(text, Guide(validator))
    yield value
    if not form.typed:
        other = form.read(text, Guide(validator, text_first=True))
        if other != value:
            yield other


def _zero(reason: str, form: float) -> Score:
    shown = reason if len(reason) <= 200 else f"{reason[:197]}..."
    plain = shown.encode("ascii", "backslashreplace").decode()
    return Score(0.0, "ok", plain, {"format": form, "correct": 0.0})


def _target(row: Row) -> tuple[Any, Format]:
    """Returns the validator of the row's schema made strict, and the row's format."""
    mode = row.fields.get("response_mode", "text")
    if mode not in ("text", "tool_call"):
        raise _bad(row, "response_mode", f"{mode!r} is neither 'text' nor 'tool_call'")
    for key in ("tool_name", "tool_payload_key") if _by_call(row) else ():
        if not isinstance(row.fields.get(key, ""), str):
            raise _bad(row, key, f"expected text, got {type(row.fields[key]).__name__}")
    name = row.fields.get("schema_type", "json")
    if not isinstance(name, str) or name not in FORMATS:
        raise _bad(row, "schema_type", f"{name!r} is not graded here; known: {', '.join(FORMATS)}")
    if name == "yaml" and structure_formats.YAML_READER is None:
        raise _bad(row, "schema_type", "'yaml' needs PyYAML with libyaml, as its wheels have it")
    text = row.fields.get("schema_str")
    if not isinstance(text, str):
        problem = "missing" if text is None else f"expected text, got {type(text).__name__}"
        raise _bad(row, "schema_str", problem)
    found, problem = _compiled(text)
    if not problem and FORMATS[name].kinds:
        kinds = Guide(found).kinds(Guide(found).root())
        if kinds and not kinds & FORMATS[name].kinds:
            problem = f"asks for {' or '.join(sorted(kinds))}, which no {name} text is"
    if problem:
        raise _bad(row, "schema_str", problem)
    return found, FORMATS[name]


def _by_call(row: Row) -> bool:
    return row.fields.get("response_mode") == "tool_call"


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[Any, str]:
    """Returns (the validator, what is wrong with the schema)."""
    try:
        return schemas.validator(read_json(text)), ""
    except Unreadable as problem:
        return None, str(problem).replace("empty answer", "empty")
    except schemas.BadSchema as problem:
        return None, " ".join(str(problem).split())


def _bad(row: Row, field: str, problem: str) -> RowError:
    return RowError(f"{row.where}: field {field}: {problem}; a good row: {GOOD}")


def _unguided(read: Callable[[str], Any]) -> Callable[[str, Guide], Any]:
    return lambda text, guide: read(text)


FORMATS: dict[str, Format] = {
    "json": Format(_unguided(read_json)),
    # Blanks at the start of a line belong to YAML, blanks at its end to a CSV cell.
    "yaml": Format(_unguided(structure_formats.read_yaml), blanks="\r\n"),
    "toml": Format(_unguided(structure_formats.read_toml), kinds=frozenset({"object"})),
    "csv": Format(
        structure_csv.read_csv, "\r\n", typed=False, kinds=frozenset({"object", "array"})
    ),
    "xml": Format(structure_xml.read_xml, typed=False),
}
