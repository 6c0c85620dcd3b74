"""Chat templates that a checkpoint ships (Jinja), with the same promises as ChatML in `chat.py`.

A template returns one string, so typed special tokens have to be told from written ones: before
rendering, every special token that stands in a message or a tool is broken by a mark
(`data/template_values.py`), which is taken out of the text again after the string has been cut at its
special tokens. Text is then encoded as always.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nemocascade_jax.data.jinja import compile_template, render
from nemocascade_jax.data.template_values import Values, any_of, break_specials
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.messages import parse_turn
from nemocascade_jax.rows.records import Message, ToolCall

OPEN, CLOSE = "<think>", "</think>"
Tools = Sequence[Mapping[str, Any]]
NO_OPTIONS: Mapping[str, Any] = {}


def render_prompt(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    thinking: bool,
    tools: Tools = (),
    options: Mapping[str, Any] = NO_OPTIONS,
) -> list[int]:
    """Returns the ids of a conversation followed by the template's generation prompt.

    The template finds each of `options` as a variable of that name.
    """
    values = break_specials(messages, tools, options, tokenizer)
    return _encode(_prompt(values, tokenizer, thinking=thinking), tokenizer, values.mark)


def render_conversation(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    tools: Tools = (),
    options: Mapping[str, Any] = NO_OPTIONS,
) -> tuple[list[int], list[bool]]:
    """Returns the ids and which of them the assistant produced.

    A turn counts where the rendering that ends with it is how the whole begins, so nothing was cut
    from it, and begins with the generation prompt; it ends with its first stop token.
    """
    values = break_specials(messages, tools, options, tokenizer)
    whole = _text(values, tokenizer)
    tokens: list[int] = []
    produced: list[bool] = []
    done = 0
    for index, message in enumerate(messages):
        found = _turn(values, index, whole, tokenizer) if message.role == "assistant" else None
        if found is None:
            continue
        for start, end, flag in ((done, found[0], False), (*found, True)):
            tokens += _encode(whole[start:end], tokenizer, values.mark)
            produced += [flag] * (len(tokens) - len(produced))
        done = found[1]
    if not done:
        raise InputError(
            "chat: the tokenizer's chat template renders no assistant turn of this conversation the way "
            "its generation prompt begins one, so none can be supervised; check the template"
        )
    tokens += _encode(whole[done:], tokenizer, values.mark)
    return tokens, produced + [False] * (len(tokens) - len(produced))


def render_continuation(
    before: Sequence[Message],
    answers: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    thinking: bool,
    tools: Tools = (),
    options: Mapping[str, Any] = NO_OPTIONS,
) -> list[int]:
    """Returns the ids between the stop token of the turn that `before` ends with and the next turn.

    They are cut from the rendering of all messages, which has to begin with everything before them.
    What was sampled is not rendered: a short turn with the same tool calls stands for it.
    """
    assert before[-1].role == "assistant"
    content = f"{OPEN}\nr\n{CLOSE}\n\nx" if thinking else "x"
    *earlier, last = _with_calls([*before, answers[0]], tools)[:-1]
    turn = Message("assistant", content, None, last.tool_calls)
    values = break_specials((*earlier, turn, *answers), tools, options, tokenizer)
    head = _prompt(values.first(len(before) - 1), tokenizer, thinking=thinking)
    upto = _text(values.first(len(before)), tokenizer, thinking=thinking)
    whole = _prompt(values, tokenizer, thinking=thinking)
    stop = _stops(tokenizer).search(upto, len(head)) if upto.startswith(head) else None
    if stop is None or _stops(tokenizer).sub("", upto[stop.end() :]).strip():
        raise InputError(
            "chat: the tokenizer's chat template renders an assistant turn otherwise than from its "
            "generation prompt to a stop token, so no turn can follow a sampled one; check the template"
        )
    end = stop.end()
    if not whole.startswith(upto[:end]):
        place = _first_difference(whole, upto[:end])
        raise InputError(
            f"chat: the tokenizer's chat template rewrites earlier turns when role {answers[0].role!r} "
            f"follows (from {_shown(upto, place, values.mark)} to {_shown(whole, place, values.mark)}), so "
            "it cannot continue a sampled turn; use a template that keeps them, or single-turn rows"
        )
    return _encode(whole[end:], tokenizer, values.mark)


def _with_calls(messages: Sequence[Message], tools: Tools) -> list[Message]:
    """Gives a sampled turn that tool results follow the calls of its text: templates ask for them."""
    found = []
    for index, message in enumerate(messages):
        answered = index + 1 < len(messages) and messages[index + 1].role == "tool"
        if message.role == "assistant" and answered and not message.tool_calls:
            said = parse_turn(message.content, tools)
            calls = said.calls or (ToolCall("unreadable", {}),)
            reasoning = message.reasoning or said.reasoning or None
            message = Message("assistant", said.content, reasoning, calls)
        found.append(message)
    return found


@functools.cache
def opened(tokenizer: Tokenizer, *, thinking: bool) -> str:
    """Returns the reasoning tag that the generation prompt leaves open, "" where it opens none."""
    values = break_specials((Message("user", "x"),), (), {}, tokenizer)
    found = re.search(f"{OPEN}\\s*$", _prompt(values, tokenizer, thinking=thinking))
    return found[0] if found else ""


def _turn(values: Values, index: int, whole: str, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Returns where a turn's produced text starts and ends, None where it does not count."""
    if index == 0:  # no prompt leads to it
        return None
    upto = _text(values.first(index + 1), tokenizer)
    if not whole.startswith(upto):  # rendered otherwise when it was the last turn
        return None
    turn = values.turns[index]
    reasons = "reasoning_content" in turn or OPEN in turn["content"]
    for thinking in (reasons, not reasons):
        head = _prompt(values.first(index), tokenizer, thinking=thinking)
        if upto.startswith(head):
            break
    else:
        return None
    stop = _stops(tokenizer).search(upto, len(head))
    return len(head), stop.end() if stop else len(upto)


def _stops(tokenizer: Tokenizer) -> re.Pattern[str]:
    return any_of(
        tuple(name for name, number in tokenizer.specials.items() if number in tokenizer.stop_ids)
    )


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shown(text: str, place: int, mark: str) -> str:
    return repr(text[max(place - 12, 0) : place + 24].replace(mark, ""))


def _encode(text: str, tokenizer: Tokenizer, mark: str) -> list[int]:
    """Returns the ids of a rendered string, in which every special token was written as one."""
    ids: list[int] = []
    position = 0
    for found in any_of(tuple(tokenizer.specials)).finditer(text):
        ids += tokenizer.encode(text[position : found.start()].replace(mark, ""))
        ids.append(tokenizer.specials[found[0]])
        position = found.end()
    return ids + tokenizer.encode(text[position:].replace(mark, ""))


def _prompt(values: Values, tokenizer: Tokenizer, *, thinking: bool) -> str:
    return _render(values, tokenizer, add_generation_prompt=True, enable_thinking=thinking)


def _text(values: Values, tokenizer: Tokenizer, *, thinking: bool = True) -> str:
    return _render(values, tokenizer, add_generation_prompt=False, enable_thinking=thinking)


def _render(values: Values, tokenizer: Tokenizer, **switches: bool) -> str:
    assert tokenizer.chat_template is not None
    return render(
        compile_template(tokenizer.chat_template),
        {
            **values.options,
            **tokenizer.names,
            **switches,
            "messages": values.turns,
            "tools": values.tools,
        },
        values.mark,
    )
