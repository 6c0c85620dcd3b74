"""What a chat template is given: messages and tools as plain values, typed special tokens broken."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.messages import function_of
from nemocascade_jax.rows.records import Message

ASSISTANT_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # code points that are no characters


class Values(NamedTuple):
    """The variables of a rendering; `mark` stands inside every special token that was typed."""

    turns: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    options: Mapping[str, Any]
    mark: str

    def first(self, count: int) -> Values:
        return self._replace(turns=self.turns[:count])


def break_specials(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> Values:
    """Returns messages and tools with a mark in each special token but the assistant's own tags.

    An assistant's tags are markup in its text and its reasoning; in the arguments of a call they are
    text, as everything is in a tool's definition and its results.
    """
    turns = [_turn(message) for message in messages]
    listed = [_tool(tool, index) for index, tool in enumerate(tools)]
    mark = _unused(repr((turns, listed)))
    everywhere = any_of(tuple(tokenizer.specials))
    outside = any_of(tuple(name for name in tokenizer.specials if name not in ASSISTANT_TAGS))
    broken = []
    for turn in turns:
        own = outside if turn["role"] == "assistant" else everywhere
        broken.append(
            {
                key: _broken(value, everywhere if key == "tool_calls" else own, mark)
                for key, value in turn.items()
            }
        )
    return Values(broken, _broken(listed, everywhere, mark) or None, options, mark)


@functools.lru_cache(maxsize=64)
def any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    """Returns a pattern that finds each of the names, the longest that fits."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "$^")


def _turn(message: Message) -> dict[str, Any]:
    """Returns a message in the form templates know; what it lacks is undefined there."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                **({"id": call.id} if call.id else {}),
                "function": {"name": call.name, "arguments": _plain(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return turn


def _tool(tool: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Returns a tool in the nested form, whichever it came in."""
    function = {key: value for key, value in function_of(tool).items() if key != "type"}
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InputError(
            f"chat: tools[{index}]: name is {function.get('name')!r}, expected the function's name"
        )
    return {"type": "function", "function": _plain(function)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _unused(typed: str) -> str:
    found = next((m for m in MARKS if m not in typed and f"\\u{ord(m):04x}" not in typed), None)
    if found is None:
        raise InputError("chat: a message holds all 32 code points from U+FDD0 on; remove one")
    return found


def _broken(value: Any, names: re.Pattern[str], mark: str) -> Any:
    if isinstance(value, str):
        return names.sub(lambda found: found[0][0] + mark + found[0][1:], value)
    if isinstance(value, dict):
        return {
            _broken(key, names, mark): _broken(entry, names, mark) for key, entry in value.items()
        }
    return [_broken(entry, names, mark) for entry in value] if isinstance(value, list) else value
