import json
import subprocess
import sys

import pytest

from nemocascade_jax.rewards.pool import ROOT
from nemocascade_jax.rows.generators import instruction

AGENT = {"name": "instruction_following_simple_agent"}
ROW = {
    "id": 7,
    "prompt": "Describe rain. Use no commas.",
    "instruction_id_list": ["punctuation:no_comma"],
    "kwargs": [None],
    "responses_create_params": {"input": "Describe rain. Use no commas."},
    "agent_ref": AGENT,
}


def _score(tmp_path, lines, *flags: str) -> tuple[subprocess.CompletedProcess, list[dict] | None]:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(x if isinstance(x, str) else json.dumps(x) + "\n" for x in lines))
    command = [
        sys.executable,
        "launch/score.py",
        "--rows",
        rows,
        "--out",
        out,
        "--workers=0",
        *flags,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not out.exists():
        return done, None
    return done, [json.loads(line) for line in out.read_text().splitlines()]


def test_score_writes_one_line_a_row_in_order(tmp_path):
    response = {
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "a, b"}]}]
    }
    wrong = {**ROW, "kwargs": [], "completion": "rain"}
    bare = {
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
        "uuid": "u",
        "completion": "",
    }
    nameless = {key: value for key, value in ROW.items() if key != "id"}
    lines = [
        {**ROW, "completion": "rain falls"},
        {**ROW, "response": response},
        wrong,
        bare,
        {**nameless, "completion": "<think>a, b</think>rain"},
    ]
    done, out = _score(tmp_path, lines)
    assert done.returncode == 0, done.stderr
    assert [list(line) for line in out] == [
        ["index", "id", "reward", "status", "reason", "seconds"]
    ] * 5
    assert [line["index"] for line in out] == [0, 1, 2, 3, 4]
    assert [line["id"] for line in out] == [7, 7, 7, "u", 4]
    assert [line["reward"] for line in out] == [1.0, 0.0, None, 0.0, 1.0]
    assert [line["status"] for line in out] == ["ok", "ok", "failed", "ok", "ok"]
    assert "field kwargs" in out[2]["reason"]
    assert "rows/s" in done.stdout
    assert "instruction_following: 4 rows, mean reward 0.5000, failed 0" in done.stdout
    assert [
        path.name for path in tmp_path.iterdir() if path.name not in ("rows.jsonl", "out.jsonl")
    ] == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            {
                **ROW,
                "agent_ref": {"name": "mystery"},
                "instruction_id_list": None,
                "completion": "x",
            },
            "unknown agent 'mystery'",
        ),
        (
            {"instance": {}, "mode": "eval", "id": "s9", "completion": "x"},
            "row 's9' asks for 'swerl_gen_simple_agent'",
        ),
        (ROW, "field completion: the row needs one of"),
        ({**ROW, "completion": "x", "response": {}}, "field completion: the row needs one of"),
        ({**ROW, "completion": None}, "field completion: expected text, got NoneType"),
        ({**ROW, "response": {"text": "x"}}, "field response.output"),
        ('{"id": 1\n', "broken JSON"),
    ],
)
def test_score_refuses_bad_input_in_one_line(tmp_path, line, problem):
    done, out = _score(tmp_path, [{**ROW, "completion": "rain"}, line])
    assert (done.returncode, out) == (2, None)
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path}/rows.jsonl:2: " in done.stderr
    assert problem in done.stderr


def test_score_skips_and_counts_unknown_rows_when_told(tmp_path):
    unknown = {"instance": {}, "mode": "eval", "completion": "x"}
    lines = [unknown, {**ROW, "completion": "rain"}, unknown]
    done, out = _score(tmp_path, lines, "--skip_unknown")
    assert done.returncode == 0, done.stderr
    assert [(line["index"], line["reward"]) for line in out] == [(1, 1.0)]
    assert "2 rows skipped" in done.stdout


def test_score_with_workers_gives_the_same_file(tmp_path):
    rows = instruction.prompts("train", 40, 6)
    talks = instruction.demonstrations("train", 40, 6, 0.5)
    lines = [
        {**instruction.file_object(prompt, tasks, index), "completion": talk.messages[-1].content}
        for index, ((prompt, _, tasks), talk) in enumerate(zip(rows, talks, strict=True))
    ]
    outs = []
    for flag in ("--workers=0", "--workers=1"):
        done, out = _score(tmp_path, lines, flag)
        assert done.returncode == 0, done.stderr
        outs.append([{**line, "seconds": 0} for line in out])
    assert outs[0] == outs[1]
    assert {line["reward"] for line in outs[0]} == {0.0, 1.0}


def test_score_helps_without_jax():
    code = (
        "import runpy, sys; sys.argv = ['score.py', '--help']\n"
        "sys.path[:0] = ['launch', '.']\n"
        "try: runpy.run_path('launch/score.py', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, 'jax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False"
    assert "--skip_unknown" in done.stdout
