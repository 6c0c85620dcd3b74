import collections
import importlib.util
import json
import math
import pathlib
import random

import pytest

from nemocascade_jax.errors import InputError
from nemocascade_jax.rows import curriculum
from nemocascade_jax.rows.curriculum import Trials
from nemocascade_jax.rows.records import RowError

_path = pathlib.Path(__file__).resolve().parents[1] / "tools" / "curriculum.py"
_spec = importlib.util.spec_from_file_location("curriculum_tool", _path)
tool = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tool)


def _score(key, reward, status="ok", **more):
    return {"index": more.pop("index", 0), "id": key, "reward": reward, "status": status, **more}


def _choose(rewards, key="a", keep_never=0.1, seed=0):
    return curriculum.choose(Trials(tuple(rewards)), key, keep_never=keep_never, seed=seed)


@pytest.mark.parametrize(
    ("rewards", "choice"),
    [
        ([1.0], "always"),
        ([1.0] * 16, "always"),
        ([1.0] * 15 + [0.0], "kept"),
        ([0.0] * 15 + [1.0], "kept"),
        ([0.5, 0.5], "kept"),
        ([1.0, 0.9999], "kept"),
        ([], "unscored"),
    ],
)
def test_only_what_is_always_solved_is_surely_dropped(rewards, choice):
    assert _choose(rewards) == choice


def test_a_tenth_of_the_never_solved_stays_and_always_the_same_tenth():
    """Over 20,000 keys the share is within four standard errors; a key's lot is its own."""
    keys = [f"row-{number}" for number in range(20_000)]
    kept = {key for key in keys if _choose([0.0] * 16, key) == "kept"}
    assert abs(len(kept) - 2_000) < 4 * math.sqrt(20_000 * 0.1 * 0.9)
    shuffled = random.Random(0).sample(keys, 5_000)
    assert {key for key in shuffled if _choose([0.0], key) == "kept"} == kept & set(shuffled)
    other = {key for key in keys if _choose([0.0], key, seed=1) == "kept"}
    assert len(kept & other) < 300
    assert _choose([0.0], keep_never=0.0) == "never"
    assert _choose([0.0], keep_never=1.0) == "kept"


def test_trials_leave_the_graders_faults_out():
    scores = [
        ("s:1", _score("a", 0.0)),
        ("s:2", _score("a", None, "failed")),
        ("s:3", _score(7, 1.0)),
        ("s:4", _score("a", 1)),
        ("s:5", _score("c", None, "timeout")),
    ]
    trials = curriculum.collect_trials(scores, ["a", "7", "c", "d"], "id")
    assert trials == [Trials((0.0, 1.0), 1), Trials((1.0,)), Trials((), 1), Trials()]
    assert [one.rate for one in trials] == [0.5, 1.0, None, None]


def test_trials_join_by_index_where_ids_repeat():
    scores = [("s:1", _score("a", 1.0, index=1)), ("s:2", _score("a", 0.0, index=0))]
    trials = curriculum.collect_trials(scores, ["a", "a"], "index")
    assert [one.rewards for one in trials] == [(0.0,), (1.0,)]
    with pytest.raises(RowError, match="rows 0 and 1 have the id 'a'.*join by index"):
        curriculum.collect_trials(scores, ["a", "a"], "id")


@pytest.mark.parametrize(
    ("score", "by", "problem"),
    [
        (_score("z", 1.0), "id", "s:3: field id: 'z' is none of the 2 rows"),
        (_score("a", 1.0, index=2), "index", "s:3: field index: 2 is none of the 2 rows"),
        (_score("a", 1.0, index=-1), "index", "-1 is none"),
        (_score("a", None), "id", "status 'ok' with reward None"),
        (_score("a", True), "id", "status 'ok' with reward True"),
        (_score("a", 1.0, "fine"), "id", "status 'fine'"),
        ({"reward": 1.0, "status": "ok"}, "id", "field id: None"),
    ],
)
def test_score_that_belongs_nowhere_is_refused(score, by, problem):
    with pytest.raises(RowError) as caught:
        curriculum.collect_trials([("s:3", score)], ["a", "b"], by)
    assert problem in str(caught.value)


RATES = [level / 16 for level in range(1, 16) for _ in range(40 if level < 8 else 10)]
KEYS = [str(number) for number in range(len(RATES))]


def _order(seed=0, centres=(0.9, 0.1), width=0.1):
    return curriculum.curriculum_order(
        RATES, KEYS, count=len(KEYS), centres=centres, width=width, seed=seed
    )


def test_order_has_every_row_once_and_depends_on_the_seed():
    order = _order()
    assert sorted(order) == list(range(len(RATES)))
    assert order == _order()
    assert order != _order(seed=1)


def test_order_goes_from_easy_to_hard():
    rates = [RATES[index] for index in _order()]
    parts = [rates[start : start + 40] for start in range(0, len(rates), 40)]
    means = [sum(part) / len(part) for part in parts]
    assert means[0] > 0.75
    assert means[-1] < 0.35
    backwards = [RATES[index] for index in _order(centres=(0.1, 0.9))]
    assert sum(backwards[:40]) / 40 < 0.25


def test_draws_follow_the_gaussian_whatever_the_rows_number():
    """First draws of many seeds against the weights written out, within four standard errors."""
    rates = [0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0]
    keys = [*"abcdefgh"]
    draws = collections.Counter(
        rates[
            curriculum.curriculum_order(
                rates, keys, count=1, centres=(0.5, 0.5), width=0.25, seed=seed
            )[0]
        ]
        for seed in range(4000)
    )
    # distances 1, 0 and 2 widths: exp(-1/2), 1, exp(-2)
    weights = {0.25: math.exp(-0.5), 0.5: 1.0, 1.0: math.exp(-2)}
    for rate, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(draws[rate] / 4000 - share) < 4 * math.sqrt(share * (1 - share) / 4000)


def test_far_centre_and_thin_width_still_draw():
    assert curriculum.gaussian_weights([0.0, 0.5], 1.0, 1e-3) == [0.0, 1.0]


# --- the command ----------------------------------------------------------------------------------


def _files(tmp_path, rows, *scores):
    paths = [tmp_path / "rows.jsonl"] + [tmp_path / f"s{n}.jsonl" for n in range(len(scores))]
    for path, lines in zip(paths, (rows, *scores), strict=True):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + "\n")
    flags = ["--rows", str(paths[0]), "--scores", *map(str, paths[1:])]
    return [*flags, "--out", str(tmp_path / "out.jsonl")]


def test_command_keeps_lines_as_they_stand_and_prints_the_table(tmp_path):
    rows = ['{"id":"a",  "x": 1.0}', '{"uuid": "b"}', '{"x": "é"}', '{"id": 9}', '{"id": "e"}']
    first = [_score("a", 0.0), _score("b", 1.0), _score(2, 1.0), _score(9, None, "failed")]
    second = [_score("a", 1.0), _score("b", 1.0), _score(2, None, "timeout"), _score(2, 0.9)]
    words = _files(tmp_path, rows, first, second) + ["--unscored", str(tmp_path / "apart.jsonl")]
    text = tool.run(tool.read_flags(words))
    assert (tmp_path / "out.jsonl").read_text() == rows[0] + "\n" + rows[2] + "\n"
    assert (tmp_path / "apart.jsonl").read_text() == rows[3] + "\n" + rows[4] + "\n"
    counted = [line.split() for line in text.splitlines()]
    assert ["0.4", "to", "0.6", "1", "1", "0"] in counted
    assert ["0.8", "to", "1.0", "1", "1", "0"] in counted
    assert ["always", "1", "0", "1"] in counted
    assert ["no", "valid", "score", "2", "0", "2"] in counted
    assert ["all", "5", "2", "3"] in counted
    assert "\n6 valid scores, 2 failed or timed out and not counted\n2 rows written" in text


def test_command_orders_by_difficulty(tmp_path):
    rows = [{"id": number} for number in range(30)]
    scores = [_score(n, reward) for n in range(30) for reward in [1.0] * (n % 3 + 1) + [0.0]]
    words = [*_files(tmp_path, rows, scores), "--order", "gaussian", "--width", "0.01"]
    words += ["--centres", "0.75", "0.5"]

    def levels(*more):
        tool.run(tool.read_flags([*words, *more]))
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        return [json.loads(line)["id"] for line in lines]

    assert sorted(levels()) == list(range(30))
    some = [number % 3 for number in levels("--count", "12")]
    # Rates 3/4, 2/3 and 1/2: the centre is nearest to the first for 2 draws, to the last for 4.
    assert some == [2] * 2 + [1] * 6 + [0] * 4
    assert [number % 3 for number in levels("--count", "3")] == [2, 1, 0]
    with pytest.raises(InputError, match="--count: 3 has no effect"):
        tool.run(tool.read_flags([*_files(tmp_path, rows, scores), "--count", "3"]))


@pytest.mark.parametrize(
    ("rows", "scores", "problem"),
    [
        ([{"id": "a"}], [_score("z", 1.0)], "s0.jsonl:1: field id: 'z'"),
        ([{"id": "a"}], [_score("a", 1.0)], "no row is kept"),
        ([{"id": "a"}, "{"], [_score("a", 1.0)], "rows.jsonl:2: field (line): broken JSON"),
        ([{"id": "a"}], ["[]"], "s0.jsonl:1: field (line): expected a JSON object"),
        ([{"id": 1}, {"x": 1}], [_score(1, 1.0)], "rows 0 and 1 have the id '1'"),
    ],
)
def test_command_refuses_in_one_line_and_writes_nothing(
    tmp_path, monkeypatch, capsys, rows, scores, problem
):
    monkeypatch.setattr("sys.argv", ["curriculum.py", *_files(tmp_path, rows, scores)])
    with pytest.raises(SystemExit) as caught:
        tool.main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()
