"""Shipped templates: tools, calls and reasoning as they expect them; masks; turns that go on."""

import dataclasses
import json

import jinja2
import pytest
import tokenizers

from nemocascade_jax.data import template
from nemocascade_jax.data.compatible import refuse_other_ids, refuse_other_prompts
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.records import Message, Row, ToolCall

TINY = load_tokenizer("tiny")

# Turns behind the last user turn show their reasoning; older ones where KEEPS says so.
THINKER = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}<|im_start|>assistant
{% set reasoning = m.reasoning_content if m.reasoning_content is defined else '' %}
{%- set content = m.content %}
{%- if '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last or KEEPS %}{{ '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}{% endif %}
{{- content }}
{%- for call in m.tool_calls %}{{ '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% elif m.role == 'tool' %}
{%- if not loop.previtem or loop.previtem.role != 'tool' %}<|im_start|>user
{% endif %}<tool_response>
{{ m.content }}
</tool_response>
{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
STRIPS = THINKER.replace("KEEPS", "false")
KEEPS = THINKER.replace("KEEPS", "true")
ASKS = THINKER.replace("KEEPS", "truncate_history_thinking == false")
# The prompt opens the reasoning where there is any, and is bare where there is none.
OPENS = KEEPS.replace("if not enable_thinking", "if enable_thinking")
OPENS = OPENS.replace("'<think>\\n\\n</think>\\n\\n'", "'<think>\\n'")
NEEDS_A_TURN = "{{ raise_exception('no turn') if not messages }}"

CALL = Message("assistant", "", "look", (ToolCall("find", {"key": "a", "n": 2}),))
LOOP = (Message("user", "Q"), CALL, Message("tool", "41"), Message("tool", "42"))
ANSWER = Message("assistant", "A2", "so")
AGAIN = Message("user", "And?")


def with_template(source: str):
    return dataclasses.replace(TINY, chat_template=source)


def shown(tokens: list[int]) -> str:
    return TINY.decode(tokens, specials=True)


def plainly(source: str, **variables: object) -> str:
    """The same template rendered by Jinja alone, as a second way to its text."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    return environment.from_string(source).render(**variables)


def runs_of(tokens: list[int], produced: list[bool]) -> list[tuple[int, str]]:
    """Where each run of counted tokens starts, and its text."""
    starts = [i for i, flag in enumerate(produced) if flag and not (i and produced[i - 1])]
    runs = []
    for start in starts:
        end = produced.index(False, start) if False in produced[start:] else len(produced)
        runs.append((start, shown(tokens[start:end])))
    return runs


LOOK = (
    '<think>\nlook\n</think>\n\n\n<tool_call>\n{"name": "find", "arguments": {"key": "a", "n": 2}}\n'
    "</tool_call><|im_end|>"
)
SO = "<think>\nso\n</think>\n\nA2<|im_end|>"


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (STRIPS, (*LOOP, ANSWER), {1: LOOK, 4: SO}),
        (STRIPS, (*LOOP, ANSWER, AGAIN, ANSWER), {6: SO}),
        (KEEPS, (*LOOP, ANSWER, AGAIN, ANSWER), {1: LOOK, 4: SO, 6: SO}),
        # without reasoning a turn is begun by the prompt of the other mode, and loses it in history
        (STRIPS, (AGAIN, Message("assistant", "A")), {1: "A<|im_end|>"}),
        (STRIPS, (AGAIN, Message("assistant", "A"), AGAIN, ANSWER), {3: SO}),
        (KEEPS, (AGAIN, Message("assistant", "A"), AGAIN, ANSWER), {1: "A<|im_end|>", 3: SO}),
        (NEEDS_A_TURN + KEEPS, (ANSWER, AGAIN, ANSWER), {2: SO}),
        (OPENS, (AGAIN, ANSWER), {1: SO.removeprefix("<think>\n")}),
    ],
)
def test_turns_count_exactly_where_they_stand_as_produced(source, messages, expected):
    """A turn counts if its row begins, id for id, with the prompt that it was produced from."""
    tokenizer = with_template(source)
    tokens, produced = template.render_conversation(messages, tokenizer)
    runs = runs_of(tokens, produced)
    assert [text for _, text in runs] == list(expected.values())
    for (start, _), index in zip(runs, expected, strict=True):
        thinking = messages[index].reasoning is not None
        prompt = template.render_prompt(messages[:index], tokenizer, thinking=thinking)
        assert tokens[:start] == prompt


def test_options_are_variables_of_the_template():
    tokenizer = with_template(ASKS)
    messages = (AGAIN, ANSWER, AGAIN, ANSWER)
    for kept in (True, False):
        options = {"truncate_history_thinking": not kept}
        tokens, produced = template.render_conversation(messages, tokenizer, options=options)
        assert len(runs_of(tokens, produced)) == 1 + kept
        prompt = template.render_prompt(messages[:3], tokenizer, thinking=True, options=options)
        assert tokens[: len(prompt)] == prompt
    budget = with_template("{{ reasoning_budget }}{{ messages | length }}")
    options = {"reasoning_budget": 7, "messages": "x"}  # what is ours cannot be replaced
    assert shown(template.render_prompt((AGAIN,), budget, thinking=True, options=options)) == "71"


def test_messages_and_tools_have_the_form_templates_know():
    """Calls as mappings, reasoning apart, absent keys undefined, tools nested, no tools none."""
    call = ToolCall("f", {"a": {"b": (1, None)}}, "id7")
    messages = (AGAIN, Message("assistant", "x", "r", (call, ToolCall("g", {}))))
    source = "{{ messages | tojson }}{{ tools | tojson }}"
    text = shown(template.render_prompt(messages, with_template(source), thinking=True))
    function = {"name": "f", "arguments": {"a": {"b": [1, None]}}}
    calls = [
        {"type": "function", "id": "id7", "function": function},
        {"type": "function", "function": {"name": "g", "arguments": {}}},
    ]
    turn = {"role": "assistant", "content": "x", "reasoning_content": "r", "tool_calls": calls}
    assert text == json.dumps([{"role": "user", "content": "And?"}, turn]) + "null"
    inner = {"name": "f", "strict": True}
    for tool in ({"type": "function", **inner}, {"type": "function", "function": inner}, inner):
        ids = template.render_prompt((AGAIN,), with_template(source), thinking=True, tools=[tool])
        expected = json.dumps([{"type": "function", "function": inner}])
        assert shown(ids).endswith("]" + expected)
    with pytest.raises(InputError, match=r"tools\[0\]: name is None"):
        template.render_prompt((AGAIN,), with_template(source), thinking=True, tools=[{"a": 1}])


def test_json_filter_takes_its_options_and_escapes_no_markup():
    for given in ("", "(indent=2)", "(sort_keys=true)", "(separators=(',', ':'))", "(true)"):
        source = "{{ {'b': '<é>', 'a': [1, none]} | tojson" + given + " }}"
        text = shown(template.render_prompt((AGAIN,), with_template(source), thinking=True))
        options = {
            "(indent=2)": {"indent": 2},
            "(sort_keys=true)": {"sort_keys": True},
            "(separators=(',', ':'))": {"separators": (",", ":")},
            "(true)": {"ensure_ascii": True},
        }.get(given, {})
        assert text == json.dumps({"b": "<é>", "a": [1, None]}, **{"ensure_ascii": False} | options)


@pytest.mark.parametrize("source", [KEEPS, KEEPS.replace("tojson", "tojson(ensure_ascii=True)")])
def test_typed_special_tokens_stay_text_in_every_field(source):
    """Names, descriptions, keys, arguments and results write the text of a special token, not its id."""
    typed = "<|im_end|>\n<think></tool_call><tool_response>"

    def rendered(word: str) -> tuple[str, list[int]]:
        parameters = {"type": "object", "properties": {word: {"description": word, "enum": [word]}}}
        tools = [{"name": word, "description": word, "parameters": parameters, word: word}]
        call = ToolCall(word, {word: {word: [word]}}, word)
        messages = (
            Message("user", word),
            Message("assistant", "", word.replace("<think></tool_call>", ""), (call,)),
            Message("tool", word),
            ANSWER,
        )
        tokens, _ = template.render_conversation(messages, with_template(source), tools=tools)
        return shown(tokens), [n for n in tokens if n in TINY.specials.values()]

    (text, specials), (plain, expected) = rendered(typed), rendered("x")
    assert specials == expected
    assert text.count("<|im_end|>") == specials.count(11) + plain.count("x")
    assert "\ufdd0" not in text.encode().decode("unicode_escape")


def test_marked_text_reads_as_without_marks():
    """What ids spell is what Jinja alone makes of the same values, typed special tokens included."""
    typed = "a<|im_end|>b \\ufdd0 \ufdd0 <tool_call>"
    messages = (Message("user", typed), *LOOP[1:3], Message("tool", typed), ANSWER)
    turns = [
        {"role": "user", "content": typed},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "look",
            "tool_calls": [{"function": {"name": "find", "arguments": {"key": "a", "n": 2}}}],
        },
        {"role": "tool", "content": "41"},
        {"role": "tool", "content": typed},
        {"role": "assistant", "content": "A2", "reasoning_content": "so"},
    ]
    tool = {"type": "function", "function": {"name": "find", "description": typed}}
    tokens, _ = template.render_conversation(messages, with_template(STRIPS), tools=[tool])
    assert shown(tokens) == plainly(STRIPS, messages=turns, tools=[tool])


def test_generation_blocks_are_their_content():
    source = (
        "{% for m in messages %}{{ m.role }}:\n{% if m.role == 'assistant' %}\n{% generation %}\n"
        "{{ m.content }}{{ eos_token }}\n{% endgeneration %}\n{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:\n{% endif %}"
    )
    bare = source.replace("{% generation %}\n", "").replace("{% endgeneration %}\n", "")
    messages = (AGAIN, Message("assistant", "A"))
    found = [template.render_conversation(messages, with_template(s)) for s in (source, bare)]
    assert found[0] == found[1]
    assert [text for _, text in runs_of(*found[0])] == ["A<|im_end|>"]


def test_a_template_that_asks_for_the_date_is_refused_unless_it_has_its_own():
    ask = with_template("{{ strftime_now('%d %b %Y') }}")
    with pytest.raises(InputError, match=r"strftime_now.*write a date into the template"):
        template.render_prompt((AGAIN,), ask, thinking=True)
    source = (
        "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}July 2024{% endif %}"
    )
    ids = template.render_prompt((AGAIN,), with_template(source), thinking=True)
    assert shown(ids) == "July 2024"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{% for %}", "template, line 2: "),
        ("{{ messages[0].content + 1 }}", "refuses the row: TypeError: "),
        ("{{ messages[7].content }}", "refuses the row: list object has no element 7"),
        ("{{ undefined_thing | tojson }}", "refuses the row: TypeError: "),
        ("{{ 1 // 0 }}", "refuses the row: ZeroDivisionError: "),
        ("{{ messages.append(1) }}", "refuses the row: .*unsafe|refuses the row: .*not safely"),
    ],
)
def test_faults_of_a_template_are_one_line(source, message):
    with pytest.raises(InputError, match=message) as caught:
        template.render_prompt((AGAIN,), with_template(source), thinking=True)
    assert "\n" not in str(caught.value)


TOOL_ANSWERS = (Message("tool", "<|im_end|>"), Message("tool", "42"))


@pytest.mark.parametrize(
    ("source", "before", "answers", "thinking"),
    [
        (STRIPS, (AGAIN, CALL), TOOL_ANSWERS, True),
        (STRIPS, (*LOOP, CALL), TOOL_ANSWERS, True),
        (KEEPS, (AGAIN, ANSWER), (AGAIN,), True),
        (KEEPS, (*LOOP, ANSWER), (AGAIN, AGAIN), True),
        (KEEPS, (AGAIN, Message("assistant", "A")), (AGAIN,), False),
    ],
)
def test_prompt_turn_and_continuation_are_the_next_prompt(source, before, answers, thinking):
    """Prompt, sampled ids and continuation are, id for id, what the whole conversation renders to."""
    tokenizer = with_template(source)
    tools = [{"name": "find"}]
    prompt = template.render_prompt(before[:-1], tokenizer, thinking=thinking, tools=tools)
    tokens, produced = template.render_conversation(before, tokenizer, tools=tools)
    end = max(index for index, flag in enumerate(produced) if flag) + 1
    sampled = tokens[len(prompt) : end]
    more = template.render_continuation(before, answers, tokenizer, thinking=thinking, tools=tools)
    whole = template.render_prompt((*before, *answers), tokenizer, thinking=thinking, tools=tools)
    assert sampled[-1] == 11
    assert prompt + sampled + more == whole


def test_continuation_does_not_depend_on_what_was_sampled():
    """A turn that no prompt would render, since it was sampled; only its calls are looked at."""
    tokenizer = with_template(OPENS.replace("m.content }}\n</tool", "loop.index0 }}\n</tool"))
    odd = Message("assistant", "</think> no beginning <|im_end|>  \n\n", None, CALL.tool_calls)
    found = [
        template.render_continuation((AGAIN, turn), TOOL_ANSWERS, tokenizer, thinking=True)
        for turn in (odd, CALL)
    ]
    assert found[0] == found[1]
    names = KEEPS.replace("{{ m.content }}\n</tool", "{{ messages[1].tool_calls[0].id }}\n</tool")
    turn = Message("assistant", "", "r", (ToolCall("find", {}, "id7"),))
    more = template.render_continuation(
        (AGAIN, turn), TOOL_ANSWERS[:1], with_template(names), thinking=True
    )
    assert "<tool_response>\nid7\n</tool_response>" in shown(more)


def test_continuation_is_refused_where_earlier_turns_are_rewritten():
    tokenizer = with_template(STRIPS)
    with pytest.raises(
        InputError, match="rewrites earlier turns when role 'user' follows"
    ) as caught:
        template.render_continuation((AGAIN, ANSWER), (AGAIN,), tokenizer, thinking=True)
    assert "\n" not in str(caught.value)
    dropped = with_template(
        STRIPS.replace("{%- if loop.index0 > ns.last or false %}", "{%- if loop.last %}")
    )
    with pytest.raises(InputError, match="rewrites earlier turns when role 'tool' follows"):
        template.render_continuation((AGAIN, CALL), TOOL_ANSWERS, dropped, thinking=True)


@pytest.mark.parametrize(
    "source",
    [
        STRIPS.replace("{%- endfor %}<|im_end|>", "{%- endfor %}"),  # no stop token ends the turn
        KEEPS.replace("\\n\\n</think>", "\\n-\\n</think>"),  # the prompt begins no turn
        KEEPS.replace("{%- endfor %}<|im_end|>", "{%- endfor %}<|im_end|> and more"),
    ],
)
def test_continuation_is_refused_where_a_turn_is_not_as_its_prompt(source):
    with pytest.raises(InputError, match="renders an assistant turn otherwise"):
        template.render_continuation(
            (AGAIN, Message("assistant", "A")), (AGAIN,), with_template(source), thinking=False
        )


def test_begin_of_text_is_there_once(tmp_path):
    """A tokenizer.json that prepends `<s>` and a template that writes it: one, everywhere (T14)."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<unk>", "<s>", "</s>"]
    model = tokenizers.models.BPE({name: i for i, name in enumerate([*names, *letters])}, [])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(names)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": source}))
    tokenizer = load_tokenizer(str(tmp_path))
    messages = (Message("user", "a<s>b"), Message("assistant", "c"))
    prompt = template.render_prompt(messages[:1], tokenizer, thinking=True)
    tokens, produced = template.render_conversation(messages, tokenizer)
    more = template.render_continuation(messages, messages[:1], tokenizer, thinking=True)
    assert (prompt[0], prompt.count(1), tokens.count(1), more.count(1)) == (1, 1, 1, 0)
    assert tokens[: len(prompt)] == prompt
    assert produced == [False] * len(prompt) + [True, True]
    assert tokenizer.encode_prompt("a<s>b").count(1) == 1


ROWS = [
    Row("r1", "agent", (AGAIN,), {}, "rows.jsonl:1"),
    Row("r2", "agent", LOOP, {}, "rows.jsonl:2", tools=({"name": "find", "description": "d"},)),
]


def test_a_teacher_that_lists_tools_otherwise_is_refused():
    """Rows without tools agree; the one with tools shows the difference before any update."""
    student = with_template(STRIPS)
    refuse_other_ids(student, with_template(KEEPS), "teacher")
    refuse_other_prompts(student, with_template(KEEPS), ROWS, "teacher", thinking=True)
    other = with_template(STRIPS.replace("{{ tool | tojson }}", "{{ tool.function | tojson }}"))
    refuse_other_prompts(student, other, ROWS[:1], "teacher", thinking=True)
    with pytest.raises(InputError, match="teacher: .* renders rows.jsonl:2 otherwise from token"):
        refuse_other_prompts(student, other, ROWS, "teacher", thinking=True)


def test_a_teacher_whose_template_fails_on_a_row_is_named():
    fails = with_template("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + STRIPS)
    with pytest.raises(InputError, match="^teacher: .*rows.jsonl:2: .* refuses the row: no tools"):
        refuse_other_prompts(with_template(STRIPS), fails, ROWS, "teacher", thinking=True)
