"""Rows made by a program, one file a domain, with a train and a held-out split that never meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from nemocascade_jax.rows.generators import choice, instruction, math, structure
from nemocascade_jax.rows.records import Conversation, Row


class Generator(NamedTuple):
    """Two views of one stream of prompts; both take (split, count, seed)."""

    rows: Callable[[str, int, int], Iterator[Row]]
    conversations: Callable[[str, int, int], Iterator[Conversation]]


# Demonstrations come from a writer who forgets 3 of 10 constraints, so that SFT on them leaves
# something for RL to learn; the writer of "instruction_exact" never forgets one. Those of the other
# domains slip too, least in math, which no RL stage trains.
GENERATORS: dict[str, Generator] = {
    "instruction": Generator(instruction.generate, partial(instruction.demonstrations, slip=0.3)),
    "instruction_exact": Generator(
        instruction.generate, partial(instruction.demonstrations, slip=0.0)
    ),
    "instruction_single": Generator(
        partial(instruction.generate, wanted=(1,)),
        partial(instruction.demonstrations, wanted=(1,), slip=0.3),
    ),
    "math": Generator(math.generate, partial(math.demonstrations, slip=0.15)),
    "choice": Generator(choice.generate, partial(choice.demonstrations, slip=0.4)),
    "structure": Generator(structure.generate, partial(structure.demonstrations, slip=0.5)),
}
