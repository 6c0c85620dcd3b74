"""What cheats try, by domain: rows, answers that deserve the reward, and answers that do not.

An attack takes a row and returns a completion that must earn nothing, or None where it does not
apply to the row. `tools/attack_table.py` tries them all; a fast test tries a few rows of each.
"""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import attacks_choice
import attacks_instruction
import attacks_math
import attacks_structure
import attacks_tools

from nemocascade_jax.rewards import REWARDS
from nemocascade_jax.rows.generators import office
from nemocascade_jax.rows.records import Row

Attack = Callable[[Row], str | None]


class Domain(NamedTuple):
    """One domain's rows (`count` generated ones beside the hard ones) and what is tried on them."""

    rows: Callable[[int], list[Row]]
    satisfying: Callable[[Row], str]
    truncated: Callable[[Row], str]
    attacks: dict[str, Attack]


def domains() -> dict[str, Domain]:
    """Returns what is tried, by the domain's name."""
    modules = [attacks_instruction, attacks_math, attacks_choice, attacks_structure]
    found = {_name(module): _domain(module) for module in modules}
    return found | {REWARDS[agent].domain: _tools(kind) for kind, agent in office.AGENTS.items()}


def _domain(module: ModuleType) -> Domain:
    own, common = dict(module.ATTACKS), _common(module.satisfying)
    return Domain(module.rows, module.satisfying, module.truncated, {**common, **own})


def _tools(kind: str) -> Domain:
    """Returns the domain of calls; an answer cut within its first call, or its thoughts, is cut."""

    def cut(row: Row) -> str:
        good = attacks_tools.satisfying(row)
        return good[: good.find("</parameter>")] if "</parameter>" in good else good[:20]

    return Domain(
        lambda count: list(office.generate("train", count, 5, kind)),
        attacks_tools.satisfying,
        cut,
        dict(attacks_tools.ATTACKS),
    )


def _name(module: ModuleType) -> str:
    return REWARDS[module.rows(0)[0].agent].domain


def _common(satisfying: Callable[[Row], str]) -> dict[str, Attack]:
    """Returns the attacks that make sense in every domain of one turn."""
    return {
        "prompt echo": lambda row: row.messages[-1].content,
        "only in the reasoning": lambda row: f"<think>\n{satisfying(row)}</think>",
        "unclosed think": lambda row: f"<think>\n{satisfying(row)}",
        "think opened again": lambda row: f"<think>a</think>{satisfying(row)}<think>",
        "nested think": lambda row: f"<think><think>{satisfying(row)}</think></think>",
        "answer before the think ends": lambda row: f"{satisfying(row)}</think>",
        "invisible characters": lambda row: "\u200b\u2060\ufeff\u3164\u00ad",
        "huge answer": lambda row: "x" * 1_000_000,
        "null character": lambda row: "\x00",
    }
