"""Conversations as token ids with the borders of what the assistant produced (paper 1.4).

Ids are joined from parts: special tokens by their id, text by `encode`; a rendered string is never
read back. What a user types as `<|im_end|>` or `<think>` stays text. In assistant turns the think
and tool-call tags are markup and become their ids, since that is how they are produced.

The mask: an assistant turn counts from the first token after its generation prompt to `<|im_end|>`
inclusive; `<think>\\n` and `<think></think>` belong to the prompt, the newline after `<|im_end|>` to
the world. A turn counts only if it is rendered as it was produced: one before the last user turn
that loses its reasoning does not, nor does one whose tags stand where no prompt puts them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nemocascade_jax.data import template
from nemocascade_jax.data.packing import Example
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.records import Conversation, Message, Row

START, END = "<|im_start|>", "<|im_end|>"
OPEN, CLOSE = "<think>", "</think>"
ASSISTANT_MARKUP = re.compile("(</?(?:think|tool_call)>)")


class Part(NamedTuple):
    """A stretch of a rendering; `markup` says that it is one special token, not text."""

    text: str
    markup: bool = False


class Span(NamedTuple):
    """Parts that are encoded together, all produced by the assistant or none of them."""

    parts: list[Part]
    produced: bool


class Rendered(NamedTuple):
    """A conversation as ids; `produced[i]` says that the assistant produced token i."""

    tokens: list[int]
    produced: list[bool]


def render_row(row: Row, tokenizer: Tokenizer, *, thinking: bool) -> list[int]:
    """Returns the prompt ids of a row."""
    if row.tools:
        raise InputError(
            f"{row.where}: row {row.id!r} lists {len(row.tools)} tools, which the chat rendering of "
            "single-turn domains does not write; use rows without tools"
        )
    with _named(row.where):
        return render_prompt(row.messages, tokenizer, thinking=thinking)


def render_example(conversation: Conversation, tokenizer: Tokenizer) -> Example:
    """Returns an SFT example ready for packing."""
    with _named(conversation.where):
        rendered = render_conversation(conversation.messages, tokenizer)
    return Example(rendered.tokens, rendered.produced, conversation.where)


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def render_prompt(
    messages: Sequence[Message], tokenizer: Tokenizer, *, thinking: bool
) -> list[int]:
    """Returns the ids of a conversation followed by the generation prompt.

    A template shipped with the tokenizer is rendered instead of ChatML (`data/template.py`).
    """
    _check(messages)
    if tokenizer.chat_template is not None:
        return template.render_prompt(messages, tokenizer, thinking=thinking)
    spans = [*_spans(messages), Span([*_head("assistant"), *_opening(thinking)], False)]
    return _encode(spans, tokenizer).tokens


def render_conversation(messages: Sequence[Message], tokenizer: Tokenizer) -> Rendered:
    """Returns a whole conversation and its mask, by the rule at the head of this module."""
    _check(messages)
    if tokenizer.chat_template is not None:
        return Rendered(*template.render_conversation(messages, tokenizer))
    return _encode(_spans(messages), tokenizer)


def render_text(messages: Sequence[Message]) -> str:
    """Returns the ChatML string of a conversation, for people to read."""
    return "".join(part.text for span in _spans(messages) for part in span.parts)


def assistant_text(completion_ids: Sequence[int], tokenizer: Tokenizer, *, thinking: bool) -> str:
    """Returns the assistant message that a grader gets.

    The stop token is cut, and the `<think>` that the prompt had opened is put back in front. The
    `<think></think>` of a prompt without thinking stays out.
    """
    ids = list(completion_ids)
    if ids and ids[-1] in tokenizer.stop_ids:
        ids.pop()
    return opened(tokenizer, thinking=thinking) + tokenizer.decode(ids, specials=True)


def opened(tokenizer: Tokenizer, *, thinking: bool) -> str:
    """Returns the reasoning tag that a generation prompt ends with, "" where it opens none."""
    if tokenizer.chat_template is not None:
        return template.opened(tokenizer, thinking=thinking)
    return OPEN + "\n" if thinking else ""


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise InputError("chat: a conversation without messages; give at least one turn")
    if messages[0].role == "tool":
        raise InputError("chat: the first message has role 'tool', which answers no assistant turn")


def _head(role: str) -> list[Part]:
    return [Part(START, True), Part(role + "\n")]


def _opening(thinking: bool) -> list[Part]:
    return [Part(OPEN, True), Part("\n") if thinking else Part(CLOSE, True)]


def _spans(messages: Sequence[Message]) -> list[Span]:
    """Lays out the turns; the system turn is written even where it is empty."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    last_user = users[-1] if users else -1
    spans = []
    if messages[0].role != "system":
        spans.append(Span([*_head("system"), Part(END, True), Part("\n")], False))
    for index, message in enumerate(messages):
        if message.role == "assistant":
            spans += _assistant_spans(message.content, keep_reasoning=index > last_user)
        elif message.role == "tool":
            spans.append(Span(_tool_parts(messages, index), False))
        else:
            parts = [*_head(message.role), Part(message.content), Part(END, True), Part("\n")]
            spans.append(Span(parts, False))
    return spans


def _tool_parts(messages: Sequence[Message], index: int) -> list[Part]:
    """Writes a tool's result; consecutive results share one user turn, there is no tool role."""
    first = messages[index - 1].role != "tool"
    last = index + 1 == len(messages) or messages[index + 1].role != "tool"
    parts = _head("user") if first else []
    parts += [Part("<tool_response>", True), Part("\n" + messages[index].content + "\n")]
    parts += [Part("</tool_response>", True), Part("\n")]
    return parts + ([Part(END, True), Part("\n")] if last else [])


def _assistant_spans(content: str, *, keep_reasoning: bool) -> list[Span]:
    """Splits a turn at the end of its generation prompt."""
    rendered = content if OPEN in content or CLOSE in content else OPEN + CLOSE + content
    cut = rendered
    if not keep_reasoning and CLOSE in rendered:
        cut = OPEN + CLOSE + rendered.rpartition(CLOSE)[2]
    start = re.match(f"{OPEN}(?:{CLOSE}|\n|)", cut)
    if cut != rendered or start is None:
        parts = [*_head("assistant"), *_markup(cut), Part(END, True), Part("\n")]
        return [Span(parts, False)]
    return [
        Span([*_head("assistant"), *_markup(start[0])], False),
        Span([*_markup(cut[start.end() :]), Part(END, True)], True),
        Span([Part("\n")], False),
    ]


def _markup(text: str) -> list[Part]:
    """Tells the tags of an assistant turn from its text."""
    pieces = ASSISTANT_MARKUP.split(text)
    return [Part(piece, index % 2 == 1) for index, piece in enumerate(pieces) if piece]


def _encode(spans: Sequence[Span], tokenizer: Tokenizer) -> Rendered:
    """Encodes text between special tokens in one go, but never across the border of the mask."""
    if tokenizer.special(START) is None or tokenizer.special(END) is None:
        raise InputError(
            f"chat: the tokenizer has no {START} and {END} and ships no chat template; put "
            "chat_template.jinja beside it, or use rows with `prompt` or `prompt_tokens`"
        )
    tokens: list[int] = []
    produced: list[bool] = []
    text = ""
    for index, span in enumerate(spans):
        for part in span.parts:
            number = tokenizer.special(part.text) if part.markup else None
            if number is None:
                text += part.text
                continue
            tokens += [*tokenizer.encode(text), number]
            text = ""
        if index + 1 == len(spans) or spans[index + 1].produced != span.produced:
            tokens += tokenizer.encode(text)
            text = ""
        produced += [span.produced] * (len(tokens) - len(produced))
    return Rendered(tokens, produced)
