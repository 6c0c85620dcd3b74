"""An assistant turn taken apart: its reasoning, its answer, the Responses API's wrapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemocascade_jax.rows.records import RowError

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


def split_reasoning(text: str) -> tuple[str, str]:
    """Returns (reasoning, answer): the answer is what follows the last `</think>`.

    A `<think>` with no `</think>` after it is thinking that never ends: the answer is empty. A text
    without either tag is all answer.
    """
    before, _, after = text.rpartition(THINK_CLOSE)
    if THINK_OPEN in after:
        return text.rpartition(THINK_OPEN)[2], ""
    return before.removeprefix(THINK_OPEN), after


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
        raise RowError(f"{where}: field {field}: expected text, got {_shown(content)}")
    parts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise RowError(
                f"{where}: field {field}[{index}]: expected a text part, got {_shown(part)}"
            )
        parts.append(text)
    return "".join(parts)


def _shown(value: Any) -> str:
    return "null" if value is None else f"{str(value)[:60]!r} ({type(value).__name__})"
