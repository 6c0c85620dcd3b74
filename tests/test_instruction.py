import dataclasses
import importlib.util
import subprocess
import sys

import pytest

from nemocascade_jax.rewards import REWARDS, check_row, instruction, language, methods
from nemocascade_jax.rewards.pool import ROOT
from nemocascade_jax.rows.generators import instruction as generator
from nemocascade_jax.rows.records import Completion, Message, Row, RowError

AGENT = "instruction_following_simple_agent"


def _row(ids: object, kwargs: object, **fields) -> Row:
    fields = {"instruction_id_list": ids, "kwargs": kwargs, **fields}
    return Row("1", AGENT, (), {k: v for k, v in fields.items() if v is not ...}, "rows.jsonl:3")


BOTH = ["punctuation:no_comma", "keywords:existence"], [None, {"keywords": ["cloud"]}]


def _reward(row: Row, text: str) -> float | None:
    return instruction.score(row, Completion(text)).reward


@pytest.mark.parametrize(
    ("text", "binary", "fraction"),
    [("a cloud", 1.0, 1.0), ("a, cloud", 0.0, 0.5), ("a, b", 0.0, 0.0), ("", 0.0, 0.0)],
)
def test_binary_needs_all_and_fraction_pays_the_share(text, binary, fraction):
    assert _reward(_row(*BOTH), text) == binary
    assert _reward(_row(*BOTH, grading_mode="fraction"), text) == fraction


def test_parts_name_each_constraint_and_the_reason_the_missed():
    ids = ["keywords:existence", "keywords:existence"]
    row = _row(ids, [{"keywords": ["sun"]}, {"keywords": ["rain"]}])
    score = instruction.score(row, Completion("sun"))
    assert score.parts == {"keywords:existence": 1.0, "keywords:existence#2": 0.0}
    assert score.reason == "not followed: keywords:existence#2"


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "<think>a cloud", "<think>x</think> ", "a cloud<think>"]
    + ["\u200b", "\ufeff \u2060", "\u3164\u2800", "\x00", "\u0301"],
)
@pytest.mark.parametrize("mode", ["binary", "fraction"])
def test_empty_answer_is_zero_even_where_nothing_is_asked_for(text, mode):
    row = _row(["punctuation:no_comma"], [None], grading_mode=mode)
    assert _reward(row, text) == 0.0


@pytest.mark.parametrize("answer", ["{}", "  {}\n", '"{}"', "```\n{}\n```", "<<{}>>."])
def test_prompt_repeated_is_no_answer_unless_it_is_asked_for(answer):
    prompt = Message("user", "Write about a cloud")
    row = dataclasses.replace(_row(*BOTH), messages=(prompt,))
    score = instruction.score(row, Completion(answer.format(prompt.content)))
    assert (score.reward, score.reason) == (0.0, "the prompt repeated")
    assert _reward(_row(*BOTH, prompt=prompt.content), answer.format(prompt.content)) == 0.0
    assert _reward(row, f"{prompt.content} in the sky") == 1.0
    ids = ["copy:copy", "combination:repeat_prompt"]
    row = dataclasses.replace(
        _row(ids, [{"prompt_to_repeat": prompt.content}] * 2), messages=(prompt,)
    )
    assert _reward(row, prompt.content) == 1.0


def test_answer_is_read_up_to_a_length():
    row = _row(["punctuation:no_comma"], [None])
    assert _reward(row, "x" * instruction.LONGEST) == 1.0
    assert _reward(row, "x" * (instruction.LONGEST + 1)) == 0.0


def test_reasoning_is_not_graded():
    row = _row(["punctuation:no_comma"], [{}])
    assert _reward(row, "<think>one, two</think>\none") == 1.0
    assert _reward(row, "<think>one</think>\none, two") == 0.0


@pytest.mark.parametrize(
    ("ids", "kwargs", "problem"),
    [
        ([], [], "field instruction_id_list: expected a list of constraint ids, not empty"),
        (..., [], "field instruction_id_list: missing"),
        (["punctuation:no_comma"], ..., "field kwargs: expected one entry for each of the 1"),
        (["punctuation:no_comma"], [], "field kwargs: expected one entry for each of the 1"),
        (
            ["punctuation:no_commas"],
            [{}],
            "unknown constraint 'punctuation:no_commas', did you mean 'punctuation:no_comma'?",
        ),
        ([3], [{}], "field instruction_id_list[0]: unknown constraint 3"),
        (["keywords:existence"], [None], "field kwargs[0].keywords: missing"),
        (
            ["keywords:existence"],
            [{"keywords": []}],
            "kwargs[0].keywords: keywords:existence needs a list",
        ),
        (["keywords:existence"], [{"keywords": "rain"}], "needs a list of texts"),
        (
            ["keywords:existence"],
            [{"keywords": ["a"], "keyword": "b"}],
            "field kwargs[0].keyword: unknown argument",
        ),
        (["keywords:existence"], ["rain"], "field kwargs[0]: expected an object or null"),
        (
            ["keywords:frequency"],
            [{"keyword": "a", "frequency": 2, "relation": "at most"}],
            "kwargs[0].relation: keywords:frequency needs 'less than' or 'at least', got 'at most'",
        ),
        (["count:lowercase_counting"], [{"N": -1}], "needs a whole number, 0 or more"),
        (["count:lowercase_counting"], [{"N": 2.5}], "needs a whole number, 0 or more"),
        (["count:lowercase_counting"], [{"N": True}], "needs a whole number, 0 or more"),
        (["language:response_language"], [{"language": "english"}], "needs one of af ar"),
        (
            ["new:copy_span_idx"],
            [{"n_start": 9, "n_end": 4, "prompt_to_repeat": "Write it."}],
            "field kwargs[0]: new:copy_span_idx: characters 9 to 4",
        ),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
            "nth_paragraph 3 is more than num_paragraphs 2",
        ),
    ],
)
def test_fault_of_a_row_shows_without_an_answer(ids, kwargs, problem):
    row = _row(ids, kwargs)
    with pytest.raises(RowError) as caught:
        check_row(row)
    assert str(caught.value).startswith("rows.jsonl:3: ")
    assert problem in str(caught.value)
    with pytest.raises(RowError):
        instruction.score(row, Completion("anything"))


def test_unknown_grading_mode_is_refused():
    with pytest.raises(RowError, match="grading_mode: 'half' is none of"):
        check_row(_row(*BOTH, grading_mode="half"))


def test_arguments_of_other_shapes_are_read():
    row = _row(
        ["count:lowercase_counting", "last_word:last_word_answer"],
        [{"N": 2.0}, {"last_word": ["rain"]}],
    )
    assert _reward(row, "the rain") == 1.0


def test_careful_demonstrations_follow_every_constraint():
    rows = generator.generate("train", 2000, 0)
    talks = generator.demonstrations("train", 2000, 0, slip=0.0)
    ids = set()
    for row, talk in zip(rows, talks, strict=True):
        assert row.messages == talk.messages[:1]
        ids |= set(row.fields["instruction_id_list"])
        score = instruction.score(row, Completion(talk.messages[-1].content))
        assert score.reward == 1.0, (row.messages, talk.messages[-1], score.reason)
    assert len(ids) >= 20


def test_forgetful_demonstrations_leave_something_to_learn():
    def mean(slip: float) -> float:
        rows = generator.generate("heldout", 400, 1)
        talks = generator.demonstrations("heldout", 400, 1, slip)
        pairs = zip(rows, talks, strict=True)
        return sum(_reward(row, talk.messages[-1].content) for row, talk in pairs) / 400

    assert mean(1.0) == 0.0
    assert 0.35 < mean(0.3) < 0.65


def test_two_processes_give_equal_scores():
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from nemocascade_jax.rewards import instruction as i\n"
        "from nemocascade_jax.rows.generators import instruction as g\n"
        "from nemocascade_jax.rows.records import Completion as C\n"
        "rows = list(g.generate('train', 60, 3))\n"
        "texts = [t.messages[-1].content for t in g.demonstrations('train', 60, 3, 0.5)]\n"
        "texts = [t[:n % 60 + 1] for n, t in enumerate(texts)] + texts\n"
        "print([i.score(r, C(t)) for r, t in zip(rows + rows, texts)])\n"
        "assert 'jax' not in sys.modules\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert "reward=1.0" in runs[0]
    assert "reward=0.0" in runs[0]


def test_rewards_table_names_its_domains():
    assert REWARDS[AGENT].domain == "instruction_following"


def test_methods_name_what_is_optional(monkeypatch):
    named = methods()
    assert named["sentences"] in ("nltk-punkt", "rules")
    assert named["expressions"].split()[0] in ("math-verify", "text")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    language._splitter.cache_clear()
    assert methods() == {"sentences": "rules", "expressions": "text"}
    language._splitter.cache_clear()


def test_rewards_load_their_libraries_late():
    code = (
        "import sys, nemocascade_jax.rewards, nemocascade_jax.rewards.pool\n"
        "print(sorted({'jax', 'nltk', 'langdetect', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
