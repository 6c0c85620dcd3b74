"""The workplace assistant as an environment: calls of the assistant's turns, answers of the tools (2.6)."""

from __future__ import annotations

from nemocascade_jax.rewards import workplace
from nemocascade_jax.rewards.office.tables import Office
from nemocascade_jax.rewards.office.tools import call_tool, definitions
from nemocascade_jax.rewards.tool_calls import read_turn
from nemocascade_jax.rows.records import Completion, Message, Row, Score


class OfficeAssistant:
    """One trajectory in the office; `office` is the state after the turns so far.

    The state is plain data and a function of the row and the calls, so a trajectory is replayed from
    its messages. What a turn gets wrong is answered as text, and the episode goes on.
    """

    def __init__(self) -> None:
        self.row: Row
        self.office: Office

    def reset(self, row: Row) -> tuple[Message, ...]:
        """Returns the messages the policy starts from."""
        self.row, self.office = row, workplace.starting_office(row)
        return row.messages

    def step(self, turn: Completion) -> tuple[Message, ...]:
        """Returns one answer a call and one a call that cannot be read; none when nothing is called."""
        parsed = read_turn(turn.text, definitions())
        answers = []
        for call in parsed.calls:
            answer = call_tool(self.office, call)
            self.office = answer.office
            answers.append(Message("tool", answer.text))
        return (*answers, *(Message("tool", f"Error: {fault}") for fault in parsed.faults))

    def score(self, trajectory: tuple[Message, ...]) -> Score:
        """Grades the calls of all assistant turns behind the prompt, and what the last one says."""
        said = trajectory[len(self.row.messages) :]
        turns = [read_turn(one.content, definitions()) for one in said if one.role == "assistant"]
        return workplace.score_turns(self.row, turns)
