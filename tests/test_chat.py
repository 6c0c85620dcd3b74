"""Rendering of conversations, the border of what the assistant produced, and shipped templates."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.records import Conversation, Message, Row

TINY = load_tokenizer("tiny")
SYSTEM = "<|im_start|>system\n<|im_end|>\n"
TURN = "<|im_start|>assistant\n"
THOUGHT = "<think>\nplan\n</think>\nA1"

# What the toy template below does in words: begin of text, then ROLE: TEXT and an end token.
TOY = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
THINKER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in m.content and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def talk(*contents: str) -> tuple[Message, ...]:
    """A conversation of user and assistant turns in alternation."""
    return tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(contents))


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def shown(tokens: list[int]) -> str:
    return TINY.decode(tokens, specials=True)


def counted(rendered: chat.Rendered) -> list[str]:
    """The runs of tokens that the mask counts, as text."""
    runs: list[list[int]] = []
    before = False
    for token, produced in zip(rendered.tokens, rendered.produced, strict=True):
        if produced and not before:
            runs.append([])
        if produced:
            runs[-1].append(token)
        before = produced
    return [shown(run) for run in runs]


def with_template(source: str):
    return dataclasses.replace(TINY, chat_template=source)


@pytest.mark.parametrize(("thinking", "ending"), [(True, "<think>\n"), (False, "<think></think>")])
def test_prompt_ends_with_the_opening_of_its_mode(thinking, ending):
    tokens = chat.render_prompt(talk("Hi"), TINY, thinking=thinking)
    assert shown(tokens) == SYSTEM + user("Hi") + TURN + ending
    assert tokens.count(12) == 1
    assert tokens.count(13) == (not thinking)


def test_system_turn_is_written_once():
    tokens = chat.render_prompt((Message("system", "Be kind."), *talk("Hi")), TINY, thinking=True)
    assert shown(tokens).startswith("<|im_start|>system\nBe kind.<|im_end|>\n" + user("Hi"))
    assert shown(tokens).count("system") == 1


@pytest.mark.parametrize(
    ("turn", "in_history", "as_last"),
    [
        # the newline after the old tag survives when reasoning is cut
        (THOUGHT, "<think></think>\nA1", THOUGHT),
        ("A1", "<think></think>A1", "<think></think>A1"),
        ("<think></think>A1", "<think></think>A1", "<think></think>A1"),
        (
            "<think>\na</think>b</think>\n\nA1",
            "<think></think>\n\nA1",
            "<think>\na</think>b</think>\n\nA1",
        ),
        # what stands around a turn is trimmed, reasoning that nothing opened stays
        ("A1 \n", "<think></think>A1", "<think></think>A1"),
        ("\nplan</think>A1", "plan</think>A1", "plan</think>A1"),
        (
            "<think>\np\n</think>\n<tool_call>\nx\n</tool_call>\n",
            "<think></think>\n<tool_call>\nx\n</tool_call>",
            "<think>\np\n</think>\n<tool_call>\nx\n</tool_call>",
        ),
    ],
)
def test_assistant_turn_rendering_table(turn, in_history, as_last):
    """Paper 1.4: what stands before the last user turn loses its reasoning."""
    last = chat.render_conversation(talk("Q", turn), TINY)
    assert shown(last.tokens) == SYSTEM + user("Q") + TURN + as_last + "<|im_end|>\n"
    history = chat.render_conversation(talk("Q", turn, "R", "B"), TINY)
    expected = SYSTEM + user("Q") + TURN + in_history + "<|im_end|>\n" + user("R")
    assert shown(history.tokens) == expected + TURN + "<think></think>B<|im_end|>\n"
    assert shown(history.tokens) == chat.render_text(talk("Q", turn, "R", "B"))


def test_mask_starts_after_the_prompt_and_ends_with_the_turn():
    """The opening and the newline after the turn belong to the prompt and to the world."""
    assert counted(chat.render_conversation(talk("Q", "A1"), TINY)) == ["A1<|im_end|>"]
    thought = chat.render_conversation(talk("Q", THOUGHT), TINY)
    assert counted(thought) == ["plan\n</think>\nA1<|im_end|>"]
    assert not thought.produced[-1]
    assert shown(thought.tokens[-1:]) == "\n"
    assert thought.tokens[-2] == 11


def test_mask_counts_turns_rendered_as_they_were_produced():
    """Reasoning that history loses takes its turn out of the mask; later and plain turns stay."""
    rendered = chat.render_conversation(talk("Q", THOUGHT, "R", "B", "S", THOUGHT), TINY)
    assert counted(rendered) == ["B<|im_end|>", "plan\n</think>\nA1<|im_end|>"]
    loop = (*talk("Q", THOUGHT), Message("tool", "42"), Message("assistant", THOUGHT))
    assert len(counted(chat.render_conversation(loop, TINY))) == 2


@pytest.mark.parametrize("turn", ["plan</think>A", "Well <think>x</think> A"])
def test_mask_leaves_out_turns_that_no_prompt_begins(turn):
    rendered = chat.render_conversation(talk("Q", turn), TINY)
    assert not any(rendered.produced)
    assert shown(rendered.tokens).endswith(TURN + turn + "<|im_end|>\n")


def test_tool_results_share_one_user_turn():
    messages = (*talk("Q", "A"), Message("tool", "1"), Message("tool", "2"), Message("user", "R"))
    tokens = chat.render_prompt(messages, TINY, thinking=False)
    results = "".join(f"<tool_response>\n{text}\n</tool_response>\n" for text in "12")
    expected = (
        SYSTEM + user("Q") + TURN + "<think></think>A<|im_end|>\n" + user(results) + user("R")
    )
    assert shown(tokens) == expected + TURN + "<think></think>"
    assert (tokens.count(16), tokens.count(17)) == (2, 2)


def test_typed_special_tokens_stay_text_everywhere():
    """Same ids for typed text in SFT rows and prompts; only the assistant's tags are markup (T14)."""
    typed = "<|im_end|>\n<|im_start|>assistant\n<think><tool_response>"
    prompt = chat.render_prompt(talk(typed), TINY, thinking=False)
    assert [prompt.count(number) for number in (10, 11, 12, 16)] == [3, 2, 1, 0]
    row = chat.render_conversation(talk(typed, "a<|im_end|>b<tool_call>"), TINY)
    assert row.tokens[: len(prompt)] == prompt
    assert [row.tokens.count(number) for number in (10, 11, 12, 14)] == [3, 3, 1, 1]
    assert counted(row) == ["a<|im_end|>b<tool_call><|im_end|>"]


@given(st.lists(st.text(max_size=8), min_size=2, max_size=5), st.text(max_size=8), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_prompt_is_a_prefix_of_the_conversation(contents, reasoning, thinking):
    """What the sampler sees is, id for id, how the trained row begins."""
    contents = contents[: len(contents) // 2 * 2]
    contents[-1] = f"<think>\n{reasoning}\n</think>\nB" if thinking else "B"
    messages = talk(*contents)
    prompt = chat.render_prompt(messages[:-1], TINY, thinking=thinking)
    row = chat.render_conversation(messages, TINY)
    assert row.tokens[: len(prompt)] == prompt
    assert all(row.produced[len(prompt) : -1])
    assert not row.produced[len(prompt) - 1]
    completion = row.tokens[len(prompt) : -1]
    said = chat.assistant_text(completion, TINY, thinking=thinking)
    assert said == TINY.decode(TINY.encode(contents[-1]))


def test_grader_text_cuts_the_stop_and_restores_the_opened_tag():
    ids = [*TINY.encode("plan\n"), 13, *TINY.encode("\nA1"), 11]
    assert chat.assistant_text(ids, TINY, thinking=True) == "<think>\nplan\n</think>\nA1"
    assert chat.assistant_text([*TINY.encode("A1"), 2], TINY, thinking=False) == "A1"
    assert chat.assistant_text(TINY.encode("A1"), TINY, thinking=False) == "A1"
    assert chat.assistant_text([11], TINY, thinking=False) == ""
    assert chat.assistant_text([11, 11], TINY, thinking=False) == "<|im_end|>"
    assert chat.assistant_text([], TINY, thinking=True) == "<think>\n"


def test_shipped_template_that_writes_begin_of_text_writes_it_once():
    """A tokenizer that prepends and a template that writes: one id 1 in prompts and rows (T14)."""
    tokenizer = dataclasses.replace(with_template(TOY), adds_bos=True)
    prompt = chat.render_prompt(talk("<s> Hi "), tokenizer, thinking=True)
    row = chat.render_conversation(talk("<s> Hi ", "A1"), tokenizer)
    assert prompt[0] == 1
    assert (prompt.count(1), row.tokens.count(1)) == (1, 1)
    assert row.tokens[: len(prompt)] == prompt
    assert shown(prompt) == "<s>user: <s> Hi<|im_end|>\nassistant: "
    assert counted(row) == ["A1<|im_end|>"]
    bare = dataclasses.replace(tokenizer, chat_template=TOY.removeprefix("{{ bos_token }}"))
    assert 1 not in chat.render_prompt(talk("Hi"), bare, thinking=True)


def test_shipped_template_counts_turns_that_its_prompt_begins():
    tokenizer = with_template(THINKER)
    rendered = chat.render_conversation(talk("Q", THOUGHT, "<think>R", THOUGHT), tokenizer)
    assert counted(rendered) == ["plan\n</think>\nA1<|im_end|>"]
    assert rendered.tokens.count(12) == 1
    assert chat.opened(tokenizer, thinking=True) == "<think>\n"
    assert chat.opened(tokenizer, thinking=False) == ""
    plain = chat.render_conversation(talk("Q", "A", "R", "B"), tokenizer)
    assert counted(plain) == ["A<|im_end|>", "B<|im_end|>"]


def test_shipped_template_that_never_matches_its_prompt_is_refused():
    source = "{% if add_generation_prompt %}x{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(InputError, match="renders no assistant turn"):
        chat.render_conversation(talk("Q", "A"), with_template(source))


def test_template_errors_name_the_row():
    conversation = Conversation(talk("Q", "A"), "chat", "rows.jsonl:7")
    tokenizer = with_template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"rows.jsonl:7: .* refuses the row: roles must alternate"):
        chat.render_example(conversation, tokenizer)


def test_nameless_tools_and_tokenizers_without_chat_are_refused():
    row = Row("r1", "agent", talk("Q"), {}, "rows.jsonl:3", tools=({"name": ""},))
    with pytest.raises(InputError, match=r"rows.jsonl:3: chat: tools\[0\]: name is ''"):
        chat.render_row(row, TINY, thinking=True)
    with pytest.raises(InputError, match=r"ships no chat template"):
        chat.render_prompt(talk("Q"), dataclasses.replace(TINY, specials={}), thinking=True)
    with pytest.raises(InputError, match="without messages"):
        chat.render_prompt((), TINY, thinking=True)


def test_think_tags_a_tokenizer_lacks_are_text():
    specials = {name: number for name, number in TINY.specials.items() if "think" not in name}
    tokenizer = dataclasses.replace(TINY, specials=specials)
    tokens = chat.render_prompt(talk("Q"), tokenizer, thinking=False)
    assert not {12, 13} & set(tokens)
    assert tokenizer.decode(tokens).endswith("assistant\n<think></think>")
