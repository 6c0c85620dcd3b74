"""Conversations as token ids with the borders of what the assistant produced (paper 1.4).

Ids are joined from parts: special tokens by their id, text by `encode`; a rendered string is never
read back. What a user types as `<|im_end|>` or `<think>` stays text. In assistant turns the think
and tool-call tags are markup and become their ids, since that is how they are produced.

An assistant turn is trimmed; one with tool calls is its text, a line break, and the calls
(`rows/messages.py`).

The mask: an assistant turn counts from the first token after its generation prompt to `<|im_end|>`
inclusive; `<think>\\n` and `<think></think>` belong to the prompt, the newline after `<|im_end|>` to
the world. A turn counts only if it is rendered as it was produced: one before the last user turn
that loses its reasoning does not, nor does one whose tags stand where no prompt puts them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.data import template, tool_listing
from nemocascade_jax.data.packing import Example
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.messages import CALL_CLOSE, CALL_OPEN, write_calls
from nemocascade_jax.rows.records import Conversation, Message, Row, ToolCall

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


class Options(NamedTuple):
    """What a conversation may ask of its rendering; a shipped template gets them as variables."""

    truncate_history_thinking: bool = True  # turns before the last user turn lose their reasoning
    reasoning_budget: int | None = None  # thinking tokens, said at the end of the last user turn


Tools = Sequence[Mapping[str, Any]]
PLAIN = Options()


class Rendered(NamedTuple):
    """A conversation as ids; `produced[i]` says that the assistant produced token i."""

    tokens: list[int]
    produced: list[bool]


def render_row(
    row: Row, tokenizer: Tokenizer, *, thinking: bool, options: Options = PLAIN
) -> list[int]:
    """Returns the prompt ids of a row, its tools listed in the system turn."""
    with _named(row.where):
        return render_prompt(
            row.messages, tokenizer, thinking=thinking, tools=row.tools, options=options
        )


def render_example(conversation: Conversation, tokenizer: Tokenizer) -> Example:
    """Returns an SFT example ready for packing."""
    with _named(conversation.where):
        rendered = render_conversation(conversation.messages, tokenizer, tools=conversation.tools)
    return Example(rendered.tokens, rendered.produced, conversation.where)


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def render_prompt(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    thinking: bool,
    tools: Tools = (),
    options: Options = PLAIN,
) -> list[int]:
    """Returns the ids of a conversation followed by the generation prompt.

    A template shipped with the tokenizer is rendered instead of ChatML (`data/template.py`).
    """
    _check(messages)
    if tokenizer.chat_template is not None:
        return template.render_prompt(
            messages, tokenizer, thinking=thinking, tools=tools, options=_variables(options)
        )
    spans = [*_spans(messages, tools, options), _generation_prompt(thinking)]
    return _encode(spans, tokenizer).tokens


def render_conversation(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    tools: Tools = (),
    options: Options = PLAIN,
) -> Rendered:
    """Returns a whole conversation and its mask, by the rule at the head of this module."""
    _check(messages)
    if tokenizer.chat_template is not None:
        return Rendered(
            *template.render_conversation(
                messages, tokenizer, tools=tools, options=_variables(options)
            )
        )
    return _encode(_spans(messages, tools, options), tokenizer)


def render_continuation(
    before: Sequence[Message],
    answers: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    thinking: bool,
    tools: Tools = (),
) -> list[int]:
    """Returns the ids behind an assistant turn that ended in its stop token, up to the next turn.

    `before` ends with that turn, `answers` are tool results or user turns. What was sampled is never
    rendered again: prompt, sampled ids and continuation are together the prompt of the next turn, as
    rendered with all reasoning kept.
    """
    _check(before)
    if before[-1].role != "assistant":
        raise InputError(f"chat: a turn goes on behind an assistant's, not {before[-1].role!r}")
    if not answers or any(message.role not in ("tool", "user") for message in answers):
        raise InputError("chat: a turn goes on behind tool results or user turns, nothing else")
    if tokenizer.chat_template is not None:
        options = _variables(Options(truncate_history_thinking=False))
        return template.render_continuation(
            before, answers, tokenizer, thinking=thinking, tools=tools, options=options
        )
    spans = [
        Span([Part("\n")], False),
        *_turns(answers, Options(truncate_history_thinking=False)),
        _generation_prompt(thinking),
    ]
    return _encode(spans, tokenizer).tokens


def _variables(options: Options) -> dict[str, Any]:
    return {name: value for name, value in options._asdict().items() if value is not None}


def render_text(messages: Sequence[Message], *, tools: Tools = (), options: Options = PLAIN) -> str:
    """Returns the ChatML string of a conversation, for people to read."""
    return "".join(part.text for span in _spans(messages, tools, options) for part in span.parts)


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


def _generation_prompt(thinking: bool) -> Span:
    opening = [Part(OPEN, True), Part("\n") if thinking else Part(CLOSE, True)]
    return Span([*_head("assistant"), *opening], False)


def _spans(messages: Sequence[Message], tools: Tools, options: Options) -> list[Span]:
    """Lays out the turns; the system turn is written even where it is empty."""
    given = messages[0].role == "system"
    system = Part(messages[0].content if given else "")
    parts = [*_head("system"), system]
    if tools:
        border, listing = "\n\n" if system.text else "", tool_listing.list_tools(tools)
        parts += [Part(border + listing), *_markup(tool_listing.INSTRUCTION)]
    parts += [Part(END, True), Part("\n")]
    return [Span(parts, False), *_turns(messages[1:] if given else messages, options)]


def _turns(messages: Sequence[Message], options: Options) -> list[Span]:
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    last_user = users[-1] if users else -1
    spans = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            kept = index > last_user or not options.truncate_history_thinking
            spans += _assistant_spans(message, keep_reasoning=kept)
        elif message.role == "tool":
            spans.append(Span(_tool_parts(messages, index), False))
        else:
            content = message.content
            if index == last_user and options.reasoning_budget is not None:
                content += f"\n\n{{thinking token budget: {options.reasoning_budget}}}"
            parts = [*_head(message.role), Part(content), Part(END, True), Part("\n")]
            spans.append(Span(parts, False))
    return spans


def _tool_parts(messages: Sequence[Message], index: int) -> list[Part]:
    """Writes a tool's result; consecutive results share one user turn, there is no tool role."""
    first = index == 0 or messages[index - 1].role != "tool"
    last = index + 1 == len(messages) or messages[index + 1].role != "tool"
    parts = _head("user") if first else []
    parts += [Part("<tool_response>", True), Part("\n" + messages[index].content + "\n")]
    parts += [Part("</tool_response>", True), Part("\n")]
    return parts + ([Part(END, True), Part("\n")] if last else [])


def _assistant_spans(message: Message, *, keep_reasoning: bool) -> list[Span]:
    """Splits a turn at the end of its generation prompt; it counts if rendered as produced."""
    whole = _with_reasoning(message)
    kept = whole.strip()
    cut = kept if keep_reasoning else _without_reasoning(whole, calls=bool(message.tool_calls))
    calls = [part for call in message.tool_calls for part in _call_parts(call)]
    border = [Part("\n")] if calls else []
    start = re.match(f"{OPEN}(?:{CLOSE}|\n|)", cut)
    if cut != kept or start is None:
        parts = [*_head("assistant"), *_markup(cut), *border, *calls, Part(END, True), Part("\n")]
        return [Span(parts, False)]
    return [
        Span([*_head("assistant"), *_markup(start[0])], False),
        Span([*_markup(cut[start.end() :]), *border, *calls, Part(END, True)], True),
        Span([Part("\n")], False),
    ]


def _with_reasoning(message: Message) -> str:
    """Returns a turn's text behind its reasoning; where there is none, behind an empty pair of tags."""
    if message.reasoning is not None and message.reasoning.strip():
        return f"{OPEN}\n{message.reasoning}\n{CLOSE}\n{message.content}"
    tagged = OPEN in message.content or CLOSE in message.content
    return message.content if tagged else OPEN + CLOSE + message.content


def _without_reasoning(text: str, *, calls: bool) -> str:
    """Returns what history keeps of a turn; in front of calls not even the break behind the tag."""
    _, closed, after = text.rpartition(CLOSE)
    if calls:
        return OPEN + CLOSE + (after if closed else text.partition(OPEN)[0]).strip()
    return (OPEN + CLOSE + after if closed and OPEN in text else text).strip()


def _call_parts(call: ToolCall) -> list[Part]:
    """Writes a call; its own tags are markup, tags in its arguments are text."""
    body = write_calls([call]).removeprefix(CALL_OPEN).removesuffix(CALL_CLOSE + "\n")
    return [Part(CALL_OPEN, True), Part(body), Part(CALL_CLOSE, True), Part("\n")]


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
