"""Domains of several turns; each environment follows `rows.records.Environment`."""

from __future__ import annotations

from collections.abc import Callable

from nemocascade_jax.environments.office import OfficeAssistant
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.records import Environment, Row


def has_environment(row: Row) -> bool:
    """Returns whether the row's answers may take several turns."""
    return row.agent in ENVIRONMENTS


def start_environment(row: Row) -> Environment:
    """Returns a fresh environment for one trajectory of the row."""
    if not has_environment(row):
        known = ", ".join(ENVIRONMENTS)
        raise InputError(
            f"{row.where}: {row.agent} has no environment of several turns; known: {known}"
        )
    return ENVIRONMENTS[row.agent]()


ENVIRONMENTS: dict[str, Callable[[], Environment]] = {
    "workplace_assistant_simple_agent": OfficeAssistant,
}
