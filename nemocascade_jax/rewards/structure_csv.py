"""CSV as RFC 4180 has it, read as the rows of an array or as the one row of an object.

The header names the columns, in any order; without rows it must name exactly the schema's. A cell
whose column is an array or an object holds JSON; an empty cell without quotes is null where the
column may be null.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from nemocascade_jax.rewards.structure_formats import Unreadable, check_size, read_json
from nemocascade_jax.rewards.structure_guide import Guide, Place, scalars


class Cell(NamedTuple):
    text: str
    quoted: bool


def read_csv(text: str, guide: Guide) -> Any:
    """Returns the rows of a table, or its only row where the schema asks for an object."""
    check_size(text)
    header, *records = split_cells(text)
    names = [cell.text for cell in header]
    if len(set(names)) < len(names):
        raise Unreadable("a CSV column is there twice")
    listed = "array" in guide.kinds(guide.root())
    if not listed and len(records) != 1:
        raise Unreadable(f"{len(records)} CSV rows for one object")
    if not records and set(names) != guide.names(guide.at_index(guide.root(), 0)):
        raise Unreadable("the CSV header does not name the columns of the schema")
    rows = []
    for index, record in enumerate(records):
        if len(record) != len(names):
            raise Unreadable(f"CSV row {index + 1} has {len(record)} cells, not {len(names)}")
        place = guide.at_index(guide.root(), index) if listed else guide.root()
        pairs = zip(names, record, strict=True)
        rows.append({name: _value(cell, guide, guide.at_name(place, name)) for name, cell in pairs})
    return rows if listed else rows[0]


def split_cells(text: str) -> list[list[Cell]]:
    """Returns the cells of each line; stray quotes and blank lines are Unreadable."""
    lines: list[list[Cell]] = [[]]
    at = 0
    while True:
        match = CELL.match(text, at)
        if match is None:
            raise Unreadable(f"not CSV: a stray quote or line end in line {len(lines)}")
        quoted, plain, end = match.groups()
        whole = plain if quoted is None else quoted.replace('""', '"')
        lines[-1].append(Cell(whole, quoted is not None))
        at = match.end()
        if end == ",":
            continue
        if lines[-1] == [Cell("", False)]:
            raise Unreadable(f"not CSV: line {len(lines)} is blank")
        if at == len(text):
            return lines
        lines.append([])


def _value(cell: Cell, guide: Guide, place: Place) -> Any:
    return guide.chosen(_readings(cell, guide.kinds(place)), place)


def _readings(cell: Cell, kinds: set[str]) -> Iterator[Any]:
    """Yields what a cell may stand for, its text last."""
    if not cell.text and not cell.quoted:
        yield None
    if kinds & {"array", "object"} and cell.text[:1] in ("[", "{"):
        with contextlib.suppress(Unreadable):  # then it is a text like any other
            yield read_json(cell.text)
    yield from scalars(cell.text)
    yield cell.text


CELL = re.compile(r'(?:"((?:[^"]|"")*+)"|([^",\r\n]*+))(,|\r?\n|\Z)')
