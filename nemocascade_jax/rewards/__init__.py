"""Verifiers by the agent that rows name; they run in worker processes and never import jax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nemocascade_jax.rewards import (
    choice,
    instruction,
    language,
    math,
    structure,
    symbols,
    tool_calls,
    workplace,
)
from nemocascade_jax.rows.messages import ParsedTurn
from nemocascade_jax.rows.records import Reward, Row, Score
from nemocascade_jax.rows.schema import UnknownRow


def reward_for(row: Row) -> Reward:
    """Returns the verifier of the row's agent; an agent without one raises UnknownRow."""
    if row.agent not in REWARDS:
        known = ", ".join(sorted(REWARDS))
        raise UnknownRow(
            f"{row.where}: field agent_ref.name: row {row.id!r} asks for {row.agent!r}, which no "
            f"environment here knows; known: {known}"
        )
    return REWARDS[row.agent]


def check_row(row: Row) -> None:
    """Raises RowError for a row that no verifier knows or whose fault shows without an answer."""
    reward_for(row).check(row)


def methods() -> dict[str, str]:
    """Returns what grades here where packages are optional, for a run's record: scores depend on it."""
    return {"sentences": language.splitter_name(), "expressions": symbols.method_name()}


def warm() -> None:
    """Loads what verifiers load at their first row, so that no row's time limit pays for it."""
    language.warm()
    math.warm()


# Of domains that call tools: the verdict on turns that are taken apart already, in their order.
TURN_SCORES: dict[str, Callable[[Row, Sequence[ParsedTurn]], Score]] = {
    workplace.AGENT: workplace.score_turns,
    "structured_outputs_simple_agent": structure.score_turns,
    **dict.fromkeys(tool_calls.COMPARISONS, tool_calls.score_turns),
}

REWARDS: dict[str, Reward] = {
    "instruction_following_simple_agent": Reward(
        "instruction_following", instruction.check, instruction.score
    ),
    "math_with_judge_simple_agent": Reward("math", math.check, math.score),
    "mcqa_simple_agent": Reward("multiple_choice", choice.check, choice.score),
    "structured_outputs_simple_agent": Reward(
        "structured_output", structure.check, structure.score
    ),
    workplace.AGENT: Reward("workplace_assistant", workplace.check, workplace.score),
    **dict.fromkeys(
        tool_calls.COMPARISONS, Reward("tool_calls", tool_calls.check, tool_calls.score)
    ),
}
