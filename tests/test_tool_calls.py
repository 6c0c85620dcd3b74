"""Tool calls in the chat format: written, read back, listed, masked, and gone on with by ids."""

import dataclasses
import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.messages import parse_turn, write_calls
from nemocascade_jax.rows.records import Message, RowError, ToolCall
from nemocascade_jax.rows.schema import parse_conversation, parse_row
from nemocascade_jax.rows.turns import read_turns

TINY = load_tokenizer("tiny")
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": " Finds mail. ",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "what to look for"},
                "limit": {"type": "integer", "minimum": 1},
                "exact": {"type": "boolean"},
                "score": {"type": "number"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "by": {"anyOf": [{"type": "object"}, {"type": "null"}]},
                "order": {"type": "string", "enum": ["old", "new"]},
            },
            "additionalProperties": False,
            "required": ["text"],
        },
        "strict": False,
    },
}
CALL = ToolCall("find", {"text": "rain", "limit": 3})
WRITTEN = (
    "<tool_call>\n<function=find>\n<parameter=text>\nrain\n</parameter>\n"
    "<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>\n"
)
LISTED = (
    "<tools>\n<function>\n<name>find</name>\n<description>Finds mail.</description>\n<parameters>\n"
    "<parameter>\n<name>text</name>\n<type>string</type>\n"
    "<description>what to look for</description>\n</parameter>\n"
    "<parameter>\n<name>limit</name>\n<type>integer</type>\n<minimum>1</minimum>\n</parameter>\n"
    "<parameter>\n<name>exact</name>\n<type>boolean</type>\n</parameter>\n"
    "<parameter>\n<name>score</name>\n<type>number</type>\n</parameter>\n"
    '<parameter>\n<name>tags</name>\n<type>array</type>\n<items>{"type": "string"}</items>\n'
    "</parameter>\n"
    '<parameter>\n<name>by</name>\n<anyOf>[{"type": "object"}, {"type": "null"}]</anyOf>\n'
    "</parameter>\n"
    '<parameter>\n<name>order</name>\n<type>string</type>\n<enum>["old", "new"]</enum>\n'
    "</parameter>\n"
    '<additionalProperties>False</additionalProperties>\n<required>["text"]</required>\n'
    "</parameters>\n<strict>False</strict>\n</function>\n</tools>"
)

word = st.text("abc <>\n", max_size=8).filter(lambda text: "<" not in text)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("ab\n", max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("k", max_size=2), inner),
    max_leaves=4,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": word,
        "limit": st.integers(),
        "exact": st.booleans(),
        "score": st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(json_value, max_size=2),
        "by": st.none() | st.dictionaries(st.text("k", max_size=2), json_value, max_size=2),
    },
)
calls = st.lists(st.builds(ToolCall, st.just("find"), arguments), min_size=1, max_size=3)


def shown(ids):
    return TINY.decode(ids, specials=True)


def test_calls_are_written_in_the_published_form():
    assert write_calls([CALL]) == WRITTEN
    odd = ToolCall("f", {"a": True, "b": None, "c": {"x": [1, "é"]}})
    inside = "".join(
        f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in zip("ab", ("True", "None"), strict=True)
    )
    assert inside + '<parameter=c>\n{"x": [1, "é"]}\n</parameter>' in write_calls([odd])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(calls, st.text("ab ", max_size=5))
def test_written_calls_are_read_back_with_their_types(made, said):
    text = f"<think>\nplan\n</think>\n{said}\n{write_calls(made)}"
    turn = parse_turn(text, [TOOL])
    assert list(turn.calls) == made
    assert turn.faults == ()
    assert turn.reasoning == "plan"
    assert turn.content == said.strip()
    assert parse_turn(text, [TOOL["function"]]).calls == turn.calls  # the flat form of the tool


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<tool_call>\n<function=f>\n</function>", "never closed"),
        ("hello </tool_call>", "closes nothing"),
        ('<tool_call>{"name": "f"}</tool_call>', "holds no <function=NAME>"),
        ("<tool_call><function=></function></tool_call>", "without its name"),
        ("<tool_call><function=f><parameter=a>1</function></tool_call>", "never closed"),
        ("<tool_call><function=f><parameter=>1</parameter></function></tool_call>", "name"),
        (
            "<tool_call><function=f><parameter=a>1</parameter><parameter=a>1</parameter>"
            "</function></tool_call>",
            "twice",
        ),
        ("<tool_call><function=f> and <parameter=a>1</parameter></function></tool_call>", "text"),
    ],
)
def test_a_call_that_cannot_be_read_is_a_fault(text, fault):
    turn = parse_turn(text, [TOOL])
    assert turn.calls == ()
    assert any(fault in said for said in turn.faults)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("score", "1e999", "1e999"),
        ("score", "NaN", "NaN"),
        ("score", "-2", -2),
        ("limit", "2.5", "2.5"),
        ("limit", "true", "true"),
        ("limit", " 7 ", 7),
        ("exact", "True", True),
        ("exact", "1", "1"),
        ("tags", "[NaN]", "[NaN]"),
        ("tags", '["\\ud800"]', '["\\ud800"]'),
        ("tags", '{"a": 1}', '{"a": 1}'),
        ("tags", "[" * 101 + "]" * 101, "[" * 101 + "]" * 101),
        ("by", "None", None),
        ("by", "null", None),
        ("by", "[]", "[]"),
        ("text", "null", "null"),
        ("text", " a\n", " a\n"),
        ("unknown", "3", "3"),
    ],
)
def test_an_argument_that_is_not_of_its_type_stays_text(key, text, value):
    written = f"<tool_call>\n<function=find>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    (call,) = parse_turn(written, [TOOL]).calls
    assert call.arguments == {key: value}
    assert type(call.arguments[key]) is type(value)


BEGIN, END = "<tool_call><function=find>", "</function></tool_call>"
PIECES = [f"{BEGIN}<parameter=by>", f"</parameter>{END}", BEGIN, END, "<tool_call>", "</tool_call>"]
PIECES += ["<think>", "</think>", "<function=", "</function>", "<parameter=tags>", "</parameter>"]
PIECES += ["[", "{}", ">", "<", "=", "\n", " a"]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_any_text_is_taken_apart(text):
    """Never an error; what calls is written again and read back as the same calls."""
    turn = parse_turn(text, [TOOL])
    odd = {"name": "find", "parameters": {"properties": {"by": {"anyOf": 1}, "tags": 2}}}
    assert len(parse_turn(text, [odd]).calls) == len(turn.calls)
    assert parse_turn(write_calls(turn.calls), [TOOL]).calls == turn.calls
    opened = text.rpartition("</think>")[2]
    assert bool(turn.calls or turn.faults) <= ("tool_call>" in opened)


def test_calls_in_reasoning_call_nothing():
    inside = f"<think>\n{WRITTEN}\n</think>\nDone."
    assert parse_turn(inside) == (WRITTEN.strip(), "Done.", (), ())
    assert parse_turn(f"<think>\n{WRITTEN}").calls == ()
    assert parse_turn(f"<think>\nx\n</think>\n{WRITTEN}").calls[0].arguments["limit"] == "3"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 90_000,
        "<tool_call><function=find>" + "<parameter=a>" * 80_000 + "</function></tool_call>",
        f"<tool_call><function=find><parameter=by>{'[' * 10**6}</parameter></function></tool_call>",
        f"<tool_call><function=find><parameter=limit>{'9' * 10**6}</parameter></function></tool_call>",
        "<tool_call></tool_call>" * 40_000,
    ],
)
def test_hostile_turns_take_linear_time(text):
    began = time.process_time()
    parse_turn(text, [TOOL])
    assert time.process_time() - began < 3


def test_tools_are_listed_in_the_system_turn():
    talk = (Message("system", "Be brief."), Message("user", "Mail?"))
    text = chat.render_text(talk, tools=[TOOL])
    head = "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou have access to the following functions:\n\n"
    assert text.startswith(head + LISTED)
    assert text == chat.render_text(talk, tools=[TOOL["function"]])
    bare = chat.render_text(talk[1:], tools=[TOOL])
    assert bare.startswith("<|im_start|>system\n# Tools\n\n")
    with pytest.raises(InputError, match=r"tools\[0\]: name is None"):
        chat.render_text(talk, tools=[{"type": "function", "function": {}}])


def test_what_a_tool_says_empty_is_listed_empty():
    """The tags of parameters are always there; a key that is absent has none."""
    said = {"enum": [], "description": " ", "type": ["string", "null"], "default": True}
    tools = [
        {"name": "f"},
        {"name": "g", "description": "", "parameters": {"properties": {"a": said}, "required": []}},
    ]
    text = chat.render_text([Message("user", "u")], tools=tools)
    assert (
        "<tools>\n<function>\n<name>f</name>\n<parameters>\n</parameters>\n</function>\n"
        "<function>\n<name>g</name>\n<description></description>\n<parameters>\n<parameter>\n"
        "<name>a</name>\n<type>['string', 'null']</type>\n<description></description>\n"
        "<enum>[]</enum>\n<default>True</default>\n</parameter>\n<required>[]</required>\n"
        "</parameters>\n</function>\n</tools>\n\n"
    ) in text


def test_tags_that_tools_and_arguments_hold_stay_text():
    """The same special ids as with letters in their place (T14)."""

    def specials(word: str) -> list[int]:
        tool = {"name": word, "description": word, "parameters": {"properties": {word: {}}}}
        turn = Message("assistant", "", "plan", (ToolCall(word, {word: word}),))
        rendered = chat.render_conversation(
            [Message("user", "u"), turn, Message("tool", word)], TINY, tools=[tool]
        )
        assert TINY.decode(rendered.tokens, specials=True).count(word) >= 7
        return [number for number in rendered.tokens if number in TINY.specials.values()]

    assert specials("<think></think><tool_call></tool_call><|im_end|>") == specials("word")


@pytest.mark.parametrize(
    ("turn", "in_history", "as_last"),
    [
        (Message("assistant", "", None, (CALL,)), "<think></think>\n", "<think></think>\n"),
        (
            Message("assistant", "Now.", None, (CALL,)),
            "<think></think>Now.\n",
            "<think></think>Now.\n",
        ),
        (
            Message("assistant", " Now. ", "plan", (CALL,)),
            "<think></think>Now.\n",
            "<think>\nplan\n</think>\n Now.\n",
        ),
        (
            Message("assistant", "", "plan", (CALL,)),
            "<think></think>\n",
            "<think>\nplan\n</think>\n",
        ),
        (
            Message("assistant", " Now.", "  ", (CALL,)),
            "<think></think>Now.\n",
            "<think></think> Now.\n",
        ),
        (
            Message("assistant", "Now<think>x", None, (CALL,)),
            "<think></think>Now\n",
            "Now<think>x\n",
        ),
    ],
)
def test_turns_with_calls_are_rendered_by_the_table(turn, in_history, as_last):
    start, end = "<|im_start|>assistant\n", "<|im_end|>\n"
    last = chat.render_text([Message("user", "u"), turn])
    assert last.endswith(start + as_last + WRITTEN + end)
    old = [Message("user", "u"), turn, Message("user", "v")]
    assert start + in_history + WRITTEN + end in chat.render_text(old)
    kept = chat.Options(truncate_history_thinking=False)
    assert start + as_last + WRITTEN + end in chat.render_text(old, options=kept)


def test_the_call_is_part_of_what_the_assistant_produced():
    turn = Message("assistant", "", "plan", (CALL,))
    talk = [Message("user", "u"), turn, Message("tool", "none")]
    rendered = chat.render_conversation(talk, TINY, tools=[TOOL])
    made = [t for t, made in zip(rendered.tokens, rendered.produced, strict=True) if made]
    assert shown(made) == f"plan\n</think>\n{WRITTEN}<|im_end|>"


def test_a_call_that_history_trims_does_not_count():
    """A turn counts while it stands as it was produced: the space in front of it is cut later."""
    talk = [Message("user", "u"), Message("assistant", " Now.", None, (CALL,))]
    assert any(chat.render_conversation(talk, TINY).produced)
    later = [*talk, Message("user", "v"), Message("assistant", "A")]
    rendered = chat.render_conversation(later, TINY)
    made = [t for t, made in zip(rendered.tokens, rendered.produced, strict=True) if made]
    assert shown(made) == "A<|im_end|>"


def test_the_budget_is_said_behind_the_last_user_turn():
    talk = [Message("user", "u"), Message("assistant", "a"), Message("user", "v")]
    ids = chat.render_prompt(talk, TINY, thinking=True, options=chat.Options(reasoning_budget=64))
    assert "v\n\n{thinking token budget: 64}<|im_end|>" in shown(ids)
    assert "u<|im_end|>" in shown(ids)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(word, min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    calls,
    st.sampled_from([("tool",), ("tool", "tool"), ("user",), ("tool", "user")]),
)
def test_prompt_turn_and_continuation_are_the_next_prompt(said, thinking, asks, made, roles):
    before = [Message("user", said[0])]
    reasoning = "plan" if thinking else None
    turn = Message("assistant", "" if asks else "Hm.", reasoning, tuple(made))
    answers = [Message(role, said[-1]) for role in roles]
    kept = chat.Options(truncate_history_thinking=False)
    prompt = chat.render_prompt(before, TINY, thinking=thinking, tools=[TOOL], options=kept)
    sampled = chat.render_conversation([*before, turn], TINY, tools=[TOOL], options=kept)
    produced = [t for t, made in zip(sampled.tokens, sampled.produced, strict=True) if made]
    behind = chat.render_continuation([*before, turn], answers, TINY, thinking=thinking)
    whole = chat.render_prompt(
        [*before, turn, *answers], TINY, thinking=thinking, tools=[TOOL], options=kept
    )
    assert prompt + produced + behind == whole


def test_a_turn_goes_on_behind_answers_only():
    talk = [Message("user", "u"), Message("assistant", "a")]
    for answers in ([], [Message("assistant", "b")], [Message("system", "s")]):
        with pytest.raises(InputError, match="tool results or user turns"):
            chat.render_continuation(talk, answers, TINY, thinking=True)
    with pytest.raises(InputError, match="behind an assistant's, not 'user'"):
        chat.render_continuation(talk[:1], talk[:1], TINY, thinking=True)


# Results have to answer calls, as several shipped templates insist.
STRICT = (
    "{% for m in messages %}{% if m.role == 'tool' and loop.previtem.role == 'assistant' and "
    "not loop.previtem.tool_calls %}{{ raise_exception('no call') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_calls | length }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_calls_in_the_text_of_sampled_turns_are_calls_for_a_template():
    """A call that cannot be read has a result too, so it counts as one."""
    shipped = dataclasses.replace(TINY, chat_template=STRICT)
    called = Message("assistant", "", "plan", (CALL,))
    sampled = [Message("assistant", f"<think>\nplan\n</think>\n{text}") for text in (WRITTEN, "x")]
    start, answers = [Message("user", "u")], [Message("tool", "1"), Message("tool", "2")]
    expected = "\n<|im_start|>tool\n10<|im_end|>\n<|im_start|>tool\n20<|im_end|>\n"
    for first, last in itertools.product([called, *sampled], repeat=2):
        before = [*start, first, answers[0], last]
        ids = chat.render_continuation(before, answers, shipped, thinking=True)
        assert shown(ids) == expected + "<|im_start|>assistant\n"
    with pytest.raises(InputError, match="no call"):
        chat.render_prompt([*start, sampled[0], *answers], shipped, thinking=True)


def test_chat_and_responses_forms_are_the_same_turns():
    written = json.dumps(CALL.arguments)
    chat_form = [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "plan",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "find", "arguments": written}}
            ],
        },
        {"role": "tool", "content": "none", "tool_call_id": "c1"},
    ]
    items = [
        {"role": "user", "content": "u"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "plan"}]},
        {"type": "function_call", "name": "find", "arguments": written, "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "none"},
    ]
    turns = read_turns(chat_form, "r:1", "input")
    assert turns[1] == Message("assistant", "", "plan", (ToolCall("find", CALL.arguments, "c1"),))
    assert read_turns(items, "r:1", "input") == turns
    row = {"responses_create_params": {"input": items, "tools": [TOOL]}, "agent_ref": {"name": "x"}}
    parsed = parse_row(row, "r:1", known=("x",))
    assert parsed.messages == turns
    assert parsed.tools == (TOOL,)
    row["responses_create_params"]["instructions"] = "Be brief."
    assert parse_row(row, "r:1", known=("x",)).messages == (Message("system", "Be brief."), *turns)
    assert parse_conversation({"messages": chat_form, "tools": [TOOL]}, "r:1").tools == (TOOL,)


@pytest.mark.parametrize("text", [[], [{"type": "summary_text", "text": "plan"}]])
def test_reasoning_items_open_the_turn_behind_them(text):
    """Also where they say nothing, as hidden reasoning does."""
    item = {"type": "reasoning", "summary": text, "encrypted_content": "x"}
    said = {"type": "message", "role": "assistant", "content": "Two."}
    call = {"type": "function_call", "name": "find", "arguments": "{}"}
    reasoning = "plan" if text else None
    (turn,) = read_turns([item, said, call], "r:1", "input")
    assert turn == Message("assistant", "Two.", reasoning, (ToolCall("find", {}),))
    (turn,) = read_turns([item, call], "r:1", "input")
    assert turn == Message("assistant", "", reasoning, (ToolCall("find", {}),))


def test_calls_behind_a_message_are_of_its_turn():
    call = {"type": "function_call", "name": "find", "arguments": "{}"}
    items = [{"role": "assistant", "content": "Two."}, call, call]
    (turn,) = read_turns(items, "r:1", "input")
    assert turn == Message("assistant", "Two.", None, (ToolCall("find", {}),) * 2)
    apart = [{"role": "assistant", "content": "One."}, {"role": "assistant", "content": "Two."}]
    assert len(read_turns(apart, "r:1", "input")) == 2


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"role": "user", "content": "u", "tool_calls": [{"name": "f"}]}, "calls no tools"),
        ({"role": "assistant", "tool_calls": [{"name": 3}]}, "a name and arguments"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}, "not JSON"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[]"}]}, "an object"),
        ({"type": "function_call_output", "call_id": "c"}, "what the tool returned"),
        ({"type": "function_call", "name": "", "arguments": "{}"}, "a name and arguments"),
        ({"type": {}, "content": "u"}, "missing"),
        ({"role": "user", "content": "u", "reasoning_content": "r"}, "assistant's text"),
    ],
)
def test_broken_turns_name_the_field(entry, said):
    with pytest.raises(RowError, match=rf"r:1: field m\[0\].*{said}"):
        read_turns([entry], "r:1", "m")
