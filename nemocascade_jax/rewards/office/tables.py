"""The office as plain data, what every table can do, and when two offices are the same.

A table is a tuple of records, a record maps column to text; nothing is changed in place, so a state is
kept by keeping it, and replaying the calls of a trajectory gives the same state again.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

Record = Mapping[str, str]
Table = tuple[Record, ...]

ID_DIGITS = 8
LARGEST_PAGE = 100  # records
CASE_COUNTS = ("status", "list_name", "board")  # every other column is compared in lower case
COMPARED = ("emails", "events", "plots", "tasks", "customers")


class ToolError(Exception):
    """What a tool answers instead of a result; the model reads it and may try again."""


class Office(NamedTuple):
    """A state of the office. `visits`, `directory` and `now` never change."""

    emails: Table
    events: Table
    plots: Table
    tasks: Table
    customers: Table
    visits: Table
    directory: tuple[str, ...]
    now: str


def same_state(one: Office, other: Office) -> bool:
    """Returns whether the five tables are equal, in order, by the rule of letters (paper 2.6)."""
    return all(_same_table(getattr(one, name), getattr(other, name)) for name in COMPARED)


def _same_table(one: Table, other: Table) -> bool:
    if len(one) != len(other):
        return False
    # Records that no call touched are the very same object.
    return all(a is b or _folded(a) == _folded(b) for a, b in zip(one, other, strict=True))


def _folded(record: Record) -> dict[str, str]:
    return {key: text if key in CASE_COUNTS else text.lower() for key, text in record.items()}


def find(table: Table, column: str, number: str, what: str) -> Record:
    """Returns the record whose id is `number`."""
    for record in table:
        if record[column] == number:
            return record
    raise ToolError(f"{what} not found.")


def field_of(record: Record, field: str) -> dict[str, str]:
    """Returns one field of a record by its name."""
    if field not in record:
        raise ToolError(f"Field {field!r} not found. Fields: {', '.join(record)}.")
    return {field: record[field]}


def add(table: Table, record: Record) -> Table:
    """Returns the table with one more record at its end."""
    return (*table, record)


def next_id(table: Table, column: str) -> str:
    """Returns the id of the next record: one more than the largest."""
    return str(max((int(record[column]) for record in table), default=0) + 1).zfill(ID_DIGITS)


def without(table: Table, gone: Record) -> Table:
    """Returns the table without one of its records."""
    return tuple(record for record in table if record is not gone)


def changed(table: Table, old: Record, field: str, value: str) -> Table:
    """Returns the table with one field of one record set."""
    new = {**old, field: value}
    return tuple(new if record is old else record for record in table)


def page_of(records: list[Record], name: str, page: int, page_size: int) -> dict[str, Any]:
    """Returns one page of what a search found; a page past the end is the last one."""
    if not records:
        raise ToolError(f"No {name} found.")
    if not 0 < page_size <= LARGEST_PAGE:
        raise ToolError(f"page_size must lie between 1 and {LARGEST_PAGE}.")
    pages = -(-len(records) // page_size)
    page = min(max(page, 1), pages)
    shown = records[(page - 1) * page_size : page * page_size]
    about = {"page": page, "page_size": page_size, "total_pages": pages}
    return {name: shown, "pagination": {f"total_{name}": len(records), **about}}


def has(record: Record, column: str, text: str) -> bool:
    """Returns whether a column holds a text, without regard to case."""
    return text.lower() in record[column].lower()


def moment(text: str, name: str) -> datetime.datetime:
    """Returns a date, or a date and a time, as a moment."""
    try:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise ToolError(
            f"Invalid {name}: {text[:40]!r}. Expected YYYY-MM-DD HH:MM:SS or YYYY-MM-DD."
        ) from None


def one_of(value: str, allowed: tuple[str, ...], name: str) -> None:
    """Raises ToolError unless the value is one of those that a column can have."""
    if value not in allowed:
        raise ToolError(f"{name} not valid. Choose one of: {', '.join(allowed)}.")
