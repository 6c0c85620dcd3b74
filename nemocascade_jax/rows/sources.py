"""Rows of a configured source, a file or a generator; bad rows stop it or are counted."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Iterator
from typing import Any, Literal, NamedTuple

from nemocascade_jax.config import SourceConfig
from nemocascade_jax.rows import schema
from nemocascade_jax.rows.generators import GENERATORS
from nemocascade_jax.rows.records import Conversation, Row, RowError
from nemocascade_jax.rows.released import parse_released
from nemocascade_jax.rows.schema import parse_conversation, parse_row, read_jsonl

__all__ = ["SOURCES", "Loaded", "load_rows", "parse_conversation", "parse_row", "read_jsonl"]

Kind = Literal["row", "conversation"]


class Loaded(NamedTuple):
    """`rows` in file order, and one line of text for each row that was skipped."""

    rows: list[Row] | list[Conversation]
    skipped: list[str]


def load_rows(
    source: SourceConfig,
    kind: Kind,
    check: Callable[[Row], None] | None = None,
    *,
    known: Container[str] = (),
) -> Loaded:
    """Returns the rows of one source; `check` refuses RL rows whose fault shows without an answer.

    `known` are the agents that have a verifier.

    `on_bad_row="refuse"` raises at the first bad row; "skip" leaves it out and says why, and raises
    only when no row, or fewer than `source.count`, is left.
    """
    rows: list = []
    skipped: list[str] = []
    entries = SOURCES[source.kind](source, kind, known)
    for parse in itertools.takewhile(lambda _: len(rows) != source.count, entries):
        try:
            row = parse()
            if isinstance(row, Row) and check is not None:
                check(row)
        except RowError as error:
            if source.on_bad_row == "refuse":
                raise
            skipped.append(str(error))
            continue
        rows.append(row)
    if not rows or (source.count is not None and len(rows) < source.count):
        wanted = "at least 1" if source.count is None else str(source.count)
        raise RowError(
            f"load_rows: {source.path or source.generator} gives {len(rows)} usable rows, "
            f"{len(skipped)} skipped, wanted {wanted}; lower `count` or mend the rows"
            + (f"; first skipped: {skipped[0]}" if skipped else "")
        )
    return Loaded(rows, skipped)


# Parsing happens when it is called, so it can be skipped.
Entry = Callable[[], "Row | Conversation"]


def jsonl(source: SourceConfig, kind: Kind, known: Container[str]) -> Iterator[Entry]:
    """Yields one parser a line of the file `source.path`."""
    row = functools.partial(parse_released, known=known)
    parse: Callable[..., Row | Conversation] = row if kind == "row" else parse_conversation
    good = schema.GOOD_ROW if kind == "row" else schema.GOOD_CONVERSATION
    for number, line in schema.read_lines(source.path or "", good):
        where = f"{source.path}:{number}"
        yield functools.partial(_parse, parse, line, where, good)


def generated(source: SourceConfig, kind: Kind, known: Container[str]) -> Iterator[Entry]:
    """Yields `source.count` rows of `source.generator`; they have no bad ones."""
    if source.generator not in GENERATORS:
        known = ", ".join(GENERATORS)
        raise RowError(f"load_rows: unknown generator {source.generator!r}; known: {known}")
    generator = GENERATORS[source.generator]
    make = generator.rows if kind == "row" else generator.conversations
    for row in make(source.split, source.count or 0, source.seed):
        yield functools.partial(_same, row)


def _parse(parse: Callable[..., Row | Conversation], line: bytes, where: str, good: str) -> Any:
    return parse(schema.parse_line(line, where, good), where)


def _same(row: Row | Conversation) -> Row | Conversation:
    return row


SOURCES: dict[str, Callable[[SourceConfig, Kind, Container[str]], Iterator[Entry]]] = {
    "jsonl": jsonl,
    "generated": generated,
}
