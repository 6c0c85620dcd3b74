"""Turns of a conversation as rows write them: chat messages, and the items of the Responses API."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from nemocascade_jax.rows.messages import content_text, shown
from nemocascade_jax.rows.records import Message, RowError, ToolCall

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def read_turns(entries: Sequence[Any], where: str, field: str) -> tuple[Message, ...]:
    """Returns the messages of a list; items of the Responses API join the assistant turn they are of.

    Reasoning and calls that follow one another are one turn, as is a message with the calls behind it.
    """
    turns: list[Message] = []
    for index, entry in enumerate(entries):
        turn = _turn(entry, where, f"{field}[{index}]")
        if turns and _same_turn(turns[-1], turn, entry):
            turns[-1] = _joined(turns[-1], turn)
        else:
            turns.append(turn)
    return tuple(
        turn if turn.reasoning else dataclasses.replace(turn, reasoning=None) for turn in turns
    )


def _turn(entry: Any, where: str, field: str) -> Message:
    if not isinstance(entry, Mapping):
        raise _bad(where, field, f"expected {{role, content}}, got {shown(entry)}")
    kind = entry.get("type", "message")
    if isinstance(kind, str) and kind in ITEMS and "role" not in entry:
        return ITEMS[kind](entry, where, field)
    role = entry.get("role")
    if not isinstance(role, str) or role not in ROLES:
        problem = "missing" if role is None else f"{role!r} is none of {', '.join(ROLES)}"
        raise _bad(where, f"{field}.role", problem)
    calls = _calls(entry.get("tool_calls"), where, f"{field}.tool_calls")
    if calls and role != "assistant":
        raise _bad(where, f"{field}.tool_calls", f"a turn of role {role!r} calls no tools")
    if entry.get("content") is None and not calls:
        problem = "null" if "content" in entry else "missing"
        raise _bad(where, f"{field}.content", problem)
    said = entry.get("content")
    content = "" if said is None else content_text(said, where, f"{field}.content")
    reasoning = entry.get("reasoning_content")
    if reasoning is None:
        reasoning = entry.get("reasoning")
    if reasoning is not None and (not isinstance(reasoning, str) or role != "assistant"):
        raise _bad(where, f"{field}.reasoning_content", "expected an assistant's text")
    return Message(ROLES[role], content, reasoning or None, calls)  # type: ignore[arg-type]


def _call_item(entry: Mapping[str, Any], where: str, field: str) -> Message:
    return Message("assistant", "", None, (_call(entry, where, field),))


def _result_item(entry: Mapping[str, Any], where: str, field: str) -> Message:
    said = entry.get("output")
    if said is None:
        raise _bad(where, f"{field}.output", "missing, expected what the tool returned")
    text = said if isinstance(said, str | list) else json.dumps(said, ensure_ascii=False)
    return Message("tool", content_text(text, where, f"{field}.output"))


def _reasoning_item(entry: Mapping[str, Any], where: str, field: str) -> Message:
    said = entry.get("content") or entry.get("summary") or []
    return Message("assistant", "", content_text(said, where, field))


def _calls(given: Any, where: str, field: str) -> tuple[ToolCall, ...]:
    if not given:
        return ()
    if not isinstance(given, list):
        raise _bad(where, field, f"expected a list of calls, got {shown(given)}")
    return tuple(_call(entry, where, f"{field}[{i}]") for i, entry in enumerate(given))


def _call(entry: Any, where: str, field: str) -> ToolCall:
    """Returns a call in the chat form (`function: {...}`) or the flat one."""
    inner = entry.get("function", entry) if isinstance(entry, Mapping) else entry
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
        raise _bad(where, field, "expected a call with a name and arguments")
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            raise _bad(where, f"{field}.arguments", "not JSON") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _bad(where, f"{field}.arguments", f"expected an object, got {shown(arguments)}")
    number = entry.get("call_id") or entry.get("id") or ""
    return ToolCall(name, arguments, str(number))


def _same_turn(before: Message, turn: Message, entry: Mapping[str, Any]) -> bool:
    """Says whether an item goes on with the assistant turn before it."""
    if before.role != "assistant" or turn.role != "assistant":
        return False
    if entry.get("type") == "function_call":
        return True
    opened = before.reasoning is not None and not before.content and not before.tool_calls
    return opened and turn.reasoning is None


def _joined(before: Message, turn: Message) -> Message:
    return dataclasses.replace(
        before,
        content=before.content + turn.content,
        tool_calls=before.tool_calls + turn.tool_calls,
    )


def _bad(where: str, field: str, problem: str) -> RowError:
    return RowError(f"{where}: field {field}: {problem}")


ITEMS = {
    "function_call": _call_item,
    "function_call_output": _result_item,
    "reasoning": _reasoning_item,
}
