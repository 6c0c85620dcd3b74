"""sample.py: what comes out for each kind of row, and what is refused before any device work."""

import math

import numpy as np
import pytest
from crafted import tiny_config, unigram_params
from model_folders import read_rows, run_command, write_hf, write_rows

from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.formats.model_folder import load_model
from nemocascade_jax.rows.records import Message, ToolCall
from tolerances import SAMPLER_GAP

TINY = load_tokenizer("tiny")
KEYS = [
    "id",
    "sample",
    "prompt_tokens",
    "completion_tokens",
    "logprobs",
    "text",
    "finish_reason",
    "stop",
    "weights",
]
# p at T = 1 of a, b, c and the end of a turn: 1/2, 1/4, 1/8, 1/8; at T = 2 they go as the roots.
LETTERS = [*(TINY.encode(letter)[0] for letter in "abc"), TINY.special("<|im_end|>")]
ROOTS = [math.sqrt(p) for p in (1 / 2, 1 / 4, 1 / 8, 1 / 8)]
GOLDEN = {number: math.log(r / sum(ROOTS)) for number, r in zip(LETTERS, ROOTS, strict=True)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    cfg = tiny_config("-", vocab_size=520)
    probs = [0.0] * cfg.vocab_size
    for number, p in zip(LETTERS, (1 / 2, 1 / 4, 1 / 8, 1 / 8), strict=True):
        probs[number] = p
    folder = tmp_path_factory.mktemp("sample") / "model"
    return write_hf(folder, cfg, unigram_params(cfg, probs), TINY)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A folder without a tokenizer."""
    cfg = tiny_config("-")
    return write_hf(tmp_path_factory.mktemp("bare") / "model", cfg, unigram_params(cfg))


ROWS = [
    {"id": "chat", "messages": [{"role": "user", "content": "Say bb."}]},
    {"prompt": "Say bb: "},
    {"id": "ids", "prompt_tokens": [5, 6, 7]},
    {
        "id": "tools",
        "tools": [{"type": "function", "name": "find", "strict": None}],
        "messages": [
            {"role": "user", "content": "Mail?"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "plan",
                "tool_calls": [{"function": {"name": "find", "arguments": '{"n": 2}'}}],
            },
            {"role": "tool", "content": "none"},
            {"role": "user", "content": "Sure?"},
        ],
    },
]
COMMON = {
    "num_samples": 12,
    "max_new_tokens": 20,
    "temperature": 2.0,
    "seed": 1,
    "stop": ["bb", "bba"],
    "max_seq_len": 800,
    "truncate_history_thinking": False,
    "reasoning_budget": 9,
}


@pytest.fixture(scope="module")
def lines(model):
    out = model.parent / "out.jsonl"
    rows = write_rows(model.parent / "rows.jsonl", ROWS)
    done = run_command("sample", model=model, prompts=rows, out=out, **COMMON)
    assert done.returncode == 0, done.stderr
    assert "48/48 samples" in done.stderr
    return read_rows(out)


def test_lines_come_in_order_with_all_keys(model, lines):
    """Twelve lines a row, in order, with its prompt's ids and the digest of the weights."""
    assert [(row["id"], row["sample"]) for row in lines] == [
        (name, number) for name in ("chat", 1, "ids", "tools") for number in range(12)
    ]
    assert all(list(row) == KEYS for row in lines)
    asked = [Message("user", "Say bb.\n\n{thinking token budget: 9}")]
    assert lines[0]["prompt_tokens"] == chat.render_prompt(asked, TINY, thinking=True)
    assert lines[12]["prompt_tokens"] == TINY.encode("Say bb: ")
    assert lines[24]["prompt_tokens"] == [5, 6, 7]
    call = Message("assistant", "", "plan", (ToolCall("find", {"n": 2}),))
    talk = [Message("user", "Mail?"), call, Message("tool", "none"), Message("user", "Sure?")]
    options = chat.Options(truncate_history_thinking=False, reasoning_budget=9)
    assert lines[36]["prompt_tokens"] == chat.render_prompt(
        talk, TINY, thinking=True, tools=[{"name": "find"}], options=options
    )
    assert {row["weights"] for row in lines} == {weights_digest(load_model(str(model)).params)}


def test_logprobs_are_those_of_the_tempered_distribution(lines):
    """T07: at T = 2 the four ids have the log-probs of the roots of their probabilities."""
    for row in lines:
        golden = [GOLDEN[number] for number in row["completion_tokens"]]
        np.testing.assert_allclose(row["logprobs"], golden, *SAMPLER_GAP)


def test_text_ends_at_the_stop_and_ids_stay(lines):
    """T08: 'bb' over two tokens and the end of a turn stop a row; ids and log-probs keep the stop."""
    for row in lines:
        ids, end = row["completion_tokens"], LETTERS[3]
        assert "bb" not in row["text"]
        if row["stop"] == "<|im_end|>":
            assert (ids[-1], row["text"]) == (end, TINY.decode(ids[:-1]))
        elif row["stop"] == "bb":
            assert row["text"] + "bb" == TINY.decode(ids)
        else:
            assert (row["stop"], row["finish_reason"], len(ids)) == (None, "length", 20)
        assert end not in ids[:-1]
        assert (row["finish_reason"] == "stop") == (row["stop"] is not None)
    assert {"bb", "<|im_end|>"} <= {row["stop"] for row in lines}


def test_seed_and_ignore_eos_arrive(model, lines):
    """Another seed draws other tokens; with ignore_eos and no --stop every row has all 20."""
    rows, out = model.parent / "rows.jsonl", model.parent / "other.jsonl"
    flags = COMMON | {"seed": 2, "ignore_eos": True, "stop": []}
    done = run_command("sample", model=model, prompts=rows, out=out, **flags)
    assert done.returncode == 0, done.stderr
    other = read_rows(out)
    assert {(len(row["completion_tokens"]), row["finish_reason"]) for row in other} == {
        (20, "length")
    }
    firsts = [[row["completion_tokens"][0] for row in found] for found in (lines, other)]
    assert firsts[0] != firsts[1]
    assert len({tuple(row["completion_tokens"]) for row in other}) == 48


@pytest.mark.slow
def test_batches_do_not_change_the_samples(model, lines):
    """The same command in batches of twelve rows writes the same ids."""
    rows, out = model.parent / "rows.jsonl", model.parent / "again.jsonl"
    done = run_command("sample", model=model, prompts=rows, out=out, **COMMON, batch_rows=12)
    assert done.returncode == 0, done.stderr
    again = [row["completion_tokens"] for row in read_rows(out)]
    assert again == [row["completion_tokens"] for row in lines]


def test_token_rows_without_a_tokenizer_have_no_text(bare, tmp_path):
    """Text is null, the stop id is the number that generation_config gives."""
    (bare / "generation_config.json").write_text('{"eos_token_id": [0]}')
    rows, out = (
        write_rows(tmp_path / "rows.jsonl", [{"prompt_tokens": [1, 2]}]),
        tmp_path / "out.jsonl",
    )
    done = run_command(
        "sample", model=bare, prompts=rows, out=out, max_new_tokens=3, temperature=0.0
    )
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(out)
    assert (row["completion_tokens"], row["text"]) == ([0], None)
    assert (row["finish_reason"], row["stop"]) == ("stop", 0)


@pytest.mark.parametrize(
    ("row", "flags", "said"),
    [
        (
            {"prompt_tokens": [1] * 9},
            {"max_seq_len": 16, "max_new_tokens": 8},
            "9 prompt tokens and --max_new_tokens 8 are 17, --max_seq_len is 16",
        ),
        ({"prompt_tokens": []}, {}, "field prompt_tokens: empty"),
        ({"prompt_tokens": [64]}, {}, "entry 0 is 64, the vocabulary's ids are 0 to 63"),
        ({"prompt": "a"}, {}, "has no tokenizer, give prompt_tokens"),
        ({"text": "a"}, {}, "exactly one of prompt, messages, prompt_tokens, it has 0"),
        ({"prompt_tokens": [1]}, {"stop": "a"}, "no tokenizer, so there is no text"),
        ({"prompt_tokens": [1]}, {"top_p": 0.0}, "--top_p: 0.0; must be above 0"),
        ({"prompt_tokens": [1]}, {"temprature": 1}, "did you mean --temperature?"),
    ],
)
def test_bad_input_is_refused_before_any_device_work(bare, tmp_path, row, flags, said):
    """One line with file, line, field and limit, exit code 2, no output."""
    rows = write_rows(tmp_path / "rows.jsonl", [row])
    out = tmp_path / "out.jsonl"
    chosen = {"max_new_tokens": 4} | flags
    done = run_command("sample", model=bare, prompts=rows, out=out, **chosen)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr
    assert "field" not in said or f"{rows}:1" in done.stderr
    assert not list(tmp_path.glob("*out*"))


def test_bad_message_names_its_place(model, tmp_path):
    """A role that is none of the known ones."""
    messages = [{"role": "robot", "content": "a"}]
    rows = write_rows(tmp_path / "rows.jsonl", [{"messages": messages}])
    done = run_command("sample", model=model, prompts=rows, out=tmp_path / "out.jsonl")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{rows}:1: field messages[0].role: 'robot' is none of system" in done.stderr
