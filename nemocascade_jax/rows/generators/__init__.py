"""Rows made by a program, one file a domain, with a train and a held-out split that never meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from nemocascade_jax.rows.generators import instruction
from nemocascade_jax.rows.records import Conversation, Row


class Generator(NamedTuple):
    """Two views of one stream of prompts; both take (split, count, seed)."""

    rows: Callable[[str, int, int], Iterator[Row]]
    conversations: Callable[[str, int, int], Iterator[Conversation]]


GENERATORS: dict[str, Generator] = {
    # The demonstrations of "instruction" come from a writer who forgets 3 of 10 constraints, so
    # that SFT on them leaves something for RL to learn; "instruction_exact" never forgets one.
    "instruction": Generator(instruction.generate, instruction.forgetful(0.3)),
    "instruction_exact": Generator(instruction.generate, instruction.forgetful(0.0)),
}
