"""The records that carry a row of data from its file to its score."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from nemocascade_jax.errors import InputError

FinishReason = Literal["stop", "length", "tool"]
Status = Literal["ok", "failed", "timeout"]


class RowError(InputError):
    """A row that cannot be used: names the file, the line, the field, and shows a good example."""


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """One call of a tool; arguments are JSON values by name."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclasses.dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    `content` holds inline reasoning where there is any, unless `reasoning` holds it apart.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclasses.dataclass(frozen=True)
class Conversation:
    """An SFT example: `messages` holds at least one assistant turn (paper 6.2)."""

    messages: tuple[Message, ...]
    domain: str
    where: str  # "file:line" or "generator:split:index", for messages to people
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Row:
    """A prompt with what its verifier needs (paper 6.1).

    `fields` are the verifier's own keys (for example `instruction_id_list`), nulls stripped.
    """

    id: str
    agent: str  # agent_ref.name: routes the verifier and the MOPD teacher
    messages: tuple[Message, ...]
    fields: Mapping[str, Any]
    where: str
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a grader sees: the assistant message by the chat borders, `<think>` put back in front."""

    text: str
    finish_reason: FinishReason = "stop"


@dataclasses.dataclass(frozen=True)
class Score:
    """A grader's verdict: a number, or the grader's own failure, never both.

    `reward` is None exactly when `status` is not "ok". The answer's fault is a reward of 0 with a
    `reason`; the system's fault is `failed` or `timeout` (never a zero).
    """

    reward: float | None
    status: Status
    reason: str = ""
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if (self.reward is None) == (self.status == "ok"):
            raise ValueError(f"Score: reward {self.reward} does not go with status {self.status!r}")


class Reward(NamedTuple):
    """A single-turn verifier. Both functions are pure and run in worker processes without jax."""

    domain: str  # short name in metrics, tables and ledgers
    check: CheckRow  # raises RowError for a fault that can be seen without an answer
    score: ScoreRow


class CheckRow(Protocol):
    def __call__(self, row: Row) -> None: ...


class ScoreRow(Protocol):
    def __call__(self, row: Row, completion: Completion) -> Score: ...


class Environment(Protocol):
    """A domain of several turns; one object serves one trajectory."""

    def reset(self, row: Row) -> tuple[Message, ...]:
        """Returns the messages the policy starts from."""
        ...

    def step(self, turn: Completion) -> tuple[Message, ...]:
        """Takes one assistant turn; returns what the world answers, empty when the episode is over."""
        ...

    def score(self, trajectory: tuple[Message, ...]) -> Score:
        """Grades the finished trajectory."""
        ...
