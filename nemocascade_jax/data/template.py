"""Chat templates that a checkpoint ships (Jinja), with the same promises as ChatML in `chat.py`.

A template returns one string, so typed special tokens have to be told from written ones: before
rendering, every special token that stands in a message is broken by a mark, which is taken out of
the text again after the string has been cut at its special tokens. Text is then encoded as always.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

import jinja2
import jinja2.sandbox

from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.records import Message

OPEN = "<think>"
ASSISTANT_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # code points that are no characters


def render_prompt(
    messages: Sequence[Message], tokenizer: Tokenizer, *, thinking: bool
) -> list[int]:
    """Returns the ids of a conversation followed by the template's generation prompt."""
    mark, turns = _break_specials(messages, tokenizer)
    text = _render(turns, tokenizer, prompt=True, thinking=thinking)
    return _encode(text, tokenizer, mark)


def render_conversation(
    messages: Sequence[Message], tokenizer: Tokenizer
) -> tuple[list[int], list[bool]]:
    """Returns the ids and which of them the assistant produced.

    A turn counts where the rendering that ends with it is how the whole begins, so nothing was cut
    from it, and begins with the generation prompt; it ends with its first stop token.
    """
    mark, turns = _break_specials(messages, tokenizer)
    whole = _render(turns, tokenizer, prompt=False, thinking=True)
    tokens: list[int] = []
    produced: list[bool] = []
    done = 0
    for index, message in enumerate(messages):
        found = _turn(turns, index, whole, tokenizer) if message.role == "assistant" else None
        if found is None:
            continue
        for start, end, flag in ((done, found[0], False), (*found, True)):
            tokens += _encode(whole[start:end], tokenizer, mark)
            produced += [flag] * (len(tokens) - len(produced))
        done = found[1]
    if not done:
        raise InputError(
            "chat: the tokenizer's chat template renders no assistant turn of this conversation the way "
            "its generation prompt begins one, so none can be supervised; check the template"
        )
    tokens += _encode(whole[done:], tokenizer, mark)
    return tokens, produced + [False] * (len(tokens) - len(produced))


@functools.cache
def opened(tokenizer: Tokenizer, *, thinking: bool) -> str:
    """Returns the reasoning tag that the generation prompt leaves open, "" where it opens none."""
    turns = [{"role": "user", "content": "x"}]
    text = _render(turns, tokenizer, prompt=True, thinking=thinking)
    found = re.search(f"{OPEN}\\s*$", text)
    return found[0] if found else ""


def _turn(
    turns: list[dict[str, str]], index: int, whole: str, tokenizer: Tokenizer
) -> tuple[int, int] | None:
    """Returns where a turn's produced text starts and ends, None where it does not count."""
    upto = _render(turns[: index + 1], tokenizer, prompt=False, thinking=True)
    if not whole.startswith(upto):  # rendered otherwise when it was the last turn
        return None
    reasons = OPEN in turns[index]["content"]
    for thinking in (reasons, not reasons):
        head = _render(turns[:index], tokenizer, prompt=True, thinking=thinking)
        if upto.startswith(head):
            break
    else:
        return None
    names = [name for name, number in tokenizer.specials.items() if number in tokenizer.stop_ids]
    stop = re.compile("|".join(map(re.escape, names)) or "$^").search(upto, len(head))
    return len(head), stop.end() if stop else len(upto)


def _break_specials(
    messages: Sequence[Message], tokenizer: Tokenizer
) -> tuple[str, list[dict[str, str]]]:
    """Puts a mark into each special token that stands in a message; the assistant's tags stay."""
    typed = "".join(message.content for message in messages)
    mark = next((mark for mark in MARKS if mark not in typed), None)
    if mark is None:
        raise InputError("chat: a message holds all 32 code points from U+FDD0 on; remove one")
    turns = []
    for message in messages:
        tags = ASSISTANT_TAGS if message.role == "assistant" else ()
        names = [name for name in tokenizer.specials if name not in tags]
        cut = _any_of(names).sub(lambda found: found[0][0] + mark + found[0][1:], message.content)
        turns.append({"role": message.role, "content": cut})
    return mark, turns


def _any_of(names: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "$^")


def _encode(text: str, tokenizer: Tokenizer, mark: str) -> list[int]:
    """Returns the ids of a rendered string, in which every special token was written as one."""
    ids: list[int] = []
    position = 0
    for found in _any_of(list(tokenizer.specials)).finditer(text):
        ids += tokenizer.encode(text[position : found.start()].replace(mark, ""))
        ids.append(tokenizer.specials[found[0]])
        position = found.end()
    return ids + tokenizer.encode(text[position:].replace(mark, ""))


def _render(
    turns: Sequence[dict[str, str]], tokenizer: Tokenizer, *, prompt: bool, thinking: bool
) -> str:
    assert tokenizer.chat_template is not None
    try:
        return _compile(tokenizer.chat_template).render(
            messages=list(turns),
            tools=None,
            add_generation_prompt=prompt,
            enable_thinking=thinking,
            **tokenizer.names,
        )
    except jinja2.TemplateError as error:
        raise InputError(f"chat: the tokenizer's chat template refuses the row: {error}") from None


@functools.cache
def _compile(source: str) -> jinja2.Template:
    # No `strftime_now`: templates that know the date would render another prompt every day.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, **{"ensure_ascii": False, **options}
    )
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _refuse(message: str) -> Any:
    raise jinja2.TemplateError(message)
