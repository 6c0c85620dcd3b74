"""Distinct prompts of one split, for every generator: a prompt's text alone decides its split."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from nemocascade_jax.rows.records import RowError

T = TypeVar("T", bound=tuple[Any, ...])

SPLITS = ("train", "heldout")
HELDOUT_SHARE = 8  # one prompt in so many is held out
PATIENCE = 1000  # draws in a row without a new prompt, after which there are no more


def split_of(prompt: str) -> str:
    """Returns the split a prompt belongs to; it depends on the text alone, so splits never meet."""
    return "heldout" if zlib.crc32(prompt.encode()) % HELDOUT_SHARE == 0 else "train"


def distinct(
    name: str, draw: Callable[[random.Random], T], split: str, count: int, seed: int
) -> Iterator[T]:
    """Yields `count` drawn tuples whose first entry, the prompt, is new and of `split`.

    The same on every machine. Raises RowError when the generator has no more prompts to give.
    """
    if split not in SPLITS:
        raise RowError(f"{name} prompts: split {split!r} is none of {SPLITS}")
    rng = random.Random(f"{name} {split} {seed}")
    seen: set[str] = set()
    vain = 0
    while len(seen) < count:
        drawn = draw(rng)
        if drawn[0] in seen or split_of(drawn[0]) != split:
            vain += 1
            if vain == PATIENCE:
                raise RowError(
                    f"{name} prompts: only {len(seen)} distinct {split} prompts came up, "
                    f"count is {count}; lower `count`"
                )
            continue
        vain = 0
        seen.add(drawn[0])
        yield drawn


def check_slip(name: str, slip: float) -> None:
    """Raises RowError unless `slip`, the rate of a demonstrator's mistakes, is a share."""
    if not 0 <= slip <= 1:
        raise RowError(f"{name} demonstrations: slip {slip} is not between 0 and 1")


def file_object(
    index: int, prompt: str, agent: str, dataset: str, /, **fields: Any
) -> dict[str, Any]:
    """Returns one line of a published file: the prompt, who grades it, the grader's fields (paper 6.1)."""
    return {
        "id": index,
        "responses_create_params": {"input": [{"role": "user", "content": prompt}], "tools": []},
        "agent_ref": {"type": "responses_api_agents", "name": agent},
        "dataset": dataset,
        **fields,
    }
