"""An assistant turn taken apart: its reasoning, its answer, its tool calls, the Responses API's wrapping.

A call is written `<tool_call>\\n<function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n</function>
\\n</tool_call>\\n`; mappings and lists as JSON, other values as Python's `str` (paper 1.4).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.rows.records import RowError, ToolCall

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
DEEPEST = 100  # levels of a JSON argument; Python's reader gives up some way beyond


class ParsedTurn(NamedTuple):
    """What an assistant turn says and does; a call that cannot be read is a fault, never an error."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]
    faults: tuple[str, ...]


def split_reasoning(text: str) -> tuple[str, str]:
    """Returns (reasoning, answer): the answer is what follows the last `</think>`.

    A `<think>` with no `</think>` after it is thinking that never ends: the answer is empty. A text
    without either tag is all answer.
    """
    before, _, after = text.rpartition(THINK_CLOSE)
    if THINK_OPEN in after:
        return text.rpartition(THINK_OPEN)[2], ""
    return before.removeprefix(THINK_OPEN), after


def parse_turn(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedTurn:
    """Returns an assistant message taken apart; what stands in its reasoning calls nothing.

    Arguments get the types that the tool's schema gives them; without one they stay text. The time is
    linear in the text.
    """
    reasoning, answer = split_reasoning(text)
    kept, calls, faults = [], [], []
    position = 0
    while (start := answer.find(CALL_OPEN, position)) >= 0:
        kept.append(answer[position:start])
        inside = start + len(CALL_OPEN)
        end = answer.find(CALL_CLOSE, inside)
        position = len(answer) if end < 0 else end + len(CALL_CLOSE)
        if end < 0:
            faults.append(f"a {CALL_OPEN} is never closed")
            break
        try:
            calls.append(_read_call(answer[inside:end], tools))
        except ValueError as error:
            faults.append(str(error))
    kept.append(answer[position:])
    if any(CALL_CLOSE in part for part in kept):
        faults.append(f"a {CALL_CLOSE} closes nothing")
    content = "".join(kept).strip() if calls or faults else answer.strip()
    return ParsedTurn(reasoning.strip(), content, tuple(calls), tuple(faults))


def write_calls(calls: Sequence[ToolCall]) -> str:
    """Returns calls as the assistant writes them."""
    return "".join(
        f"{CALL_OPEN}\n<function={call.name}>\n"
        + "".join(
            f"<parameter={name}>\n{_written(value)}\n</parameter>\n"
            for name, value in call.arguments.items()
        )
        + f"</function>\n{CALL_CLOSE}\n"
        for call in calls
    )


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a tool's function, in the nested form (`function: {...}`) or the flat one."""
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) else tool


def _written(value: Any) -> str:
    nested = isinstance(value, Mapping | list | tuple)
    return json.dumps(value, ensure_ascii=False) if nested else str(value)


def _read_call(body: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    """Returns the call between its tags; raises ValueError with what is wrong."""
    text = body.strip()
    if not text.startswith("<function=") or not text.endswith("</function>"):
        raise ValueError(f"a {CALL_OPEN} holds no <function=NAME> ... </function>")
    name, closed, rest = text.removeprefix("<function=").partition(">")
    if not closed or not name or "<" in name or "\n" in name:
        raise ValueError("a <function= is without its name")
    types = _argument_types(name, tools)
    arguments: dict[str, Any] = {}
    for key, value in _read_parameters(rest.removesuffix("</function>")):
        if key in arguments:
            raise ValueError(f"parameter {key[:40]!r} is there twice")
        arguments[key] = _typed(value, types.get(key, ()))
    return ToolCall(name, arguments)


def _read_parameters(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while (start := text.find("<parameter=", position)) >= 0:
        if text[position:start].strip():
            raise ValueError("text stands between the parameters of a call")
        begin = start + len("<parameter=")
        border = text.find(">", begin)
        end = text.find("</parameter>", border)
        if border < 0 or end < 0:
            raise ValueError("a <parameter= is never closed")
        key, value = text[begin:border], text[border + 1 : end].removeprefix("\n")
        if not key or "<" in key or "\n" in key:
            raise ValueError("a <parameter= is without its name")
        yield key, value.removesuffix("\n")
        position = end + len("</parameter>")
    if text[position:].strip():
        raise ValueError("text stands between the parameters of a call")


def _argument_types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Returns the JSON types that a tool's schema allows for each of its arguments."""
    for tool in tools:
        function = function_of(tool)
        if function.get("name") == name:
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            if isinstance(properties, Mapping):
                return {key: _types(entry) for key, entry in properties.items()}
    return {}


def _types(schema: Any) -> tuple[str, ...]:
    if not isinstance(schema, Mapping):
        return ()
    said = schema.get("type")
    own = (said,) if isinstance(said, str) else tuple(said) if isinstance(said, list) else ()
    options = [schema.get(key) for key in ("anyOf", "oneOf")]
    inner = [entry for option in options if isinstance(option, list) for entry in option]
    return own + tuple(kind for entry in inner for kind in _types(entry))


def _typed(text: str, types: Sequence[str]) -> Any:
    """Returns an argument's text as the first type it can be read as; text where none fits."""
    for kind in ("null", "boolean", "integer", "number", "array", "object"):
        if kind in types:
            found = READERS[kind](text.strip())
            if found is not UNREADABLE:
                return found
    return text


UNREADABLE = object()


def _read_null(text: str) -> Any:
    return None if text in ("null", "None") else UNREADABLE


def _read_boolean(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), UNREADABLE)


def _read_number(text: str, kinds: tuple[type, ...]) -> Any:
    if len(text) > 400:  # no number anyone means; reading one takes quadratic time
        return UNREADABLE
    value = _read_json(text)
    return value if type(value) in kinds else UNREADABLE


def _read_nested(text: str, kind: type) -> Any:
    if sum(map(text.count, "[{")) > DEEPEST and _depth(text) > DEEPEST:
        return UNREADABLE
    value = _read_json(text)
    return value if type(value) is kind else UNREADABLE


def _read_json(text: str) -> Any:
    """Returns a JSON value that can be written again: no NaN, no infinity, no half of a character."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return UNREADABLE
    return value


def _depth(text: str) -> int:
    depth = deepest = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        deepest = max(deepest, depth)
    return deepest


READERS: dict[str, Any] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "integer": lambda text: _read_number(text, (int,)),
    "number": lambda text: _read_number(text, (int, float)),
    "array": lambda text: _read_nested(text, list),
    "object": lambda text: _read_nested(text, dict),
}


def response_text(response: Any, where: str) -> str:
    """Returns the text of the last assistant message of an OpenAI Responses object.

    A response that holds no assistant message (only reasoning or tool calls), or one whose message
    is a refusal, is empty text.
    """
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise RowError(f"{where}: field response.output: expected a list of output items")
    texts = [""]
    for index, item in enumerate(output):
        if (
            item.get("type", "message") == "message"
            and item.get("role", "assistant") == "assistant"
        ):
            content = item.get("content")
            if isinstance(content, list):
                content = [part for part in content if _part_type(part) != "refusal"]
            texts.append(content_text(content, where, f"response.output[{index}].content"))
    return texts[-1]


def _part_type(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def content_text(content: Any, where: str, field: str) -> str:
    """Returns message content as text: a string, or a list of text parts joined as they stand."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(f"{where}: field {field}: expected text, got {shown(content)}")
    parts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise RowError(
                f"{where}: field {field}[{index}]: expected a text part, got {shown(part)}"
            )
        parts.append(text)
    return "".join(parts)


def shown(value: Any) -> str:
    """Returns a value of the wrong kind for an error's line."""
    return "null" if value is None else f"{str(value)[:60]!r} ({type(value).__name__})"
