"""What README tells a new user to do works as written."""

import json
import os
import re
import shutil
import subprocess
import sys


def blocks(root, language):
    return re.findall(rf"```{language}\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)


def test_a_reward_is_added_with_the_two_edits_of_readme(root, tmp_path):
    shutil.copytree(
        root / "nemocascade_jax",
        tmp_path / "nemocascade_jax",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(root / "launch", tmp_path / "launch")
    verifier, entry = blocks(root, "python")
    rewards = tmp_path / "nemocascade_jax" / "rewards"
    (rewards / "rhyme.py").write_text(verifier)
    table = (rewards / "__init__.py").read_text()
    table = table.replace(
        "from nemocascade_jax.rewards import (",
        "from nemocascade_jax.rewards import (\n    rhyme,",
        1,
    )
    (rewards / "__init__.py").write_text(table.rstrip().removesuffix("}") + entry + "}\n")
    row = json.loads(blocks(root, "json")[0])
    answers = ["The dog waits for the train.", "The dog waits.", ""]
    rows = [json.dumps(row | {"completion": answer}) for answer in answers]
    bad = json.dumps(
        {key: value for key, value in row.items() if key != "ending"} | {"completion": "x"}
    )
    (tmp_path / "rows.jsonl").write_text("\n".join([*rows, bad]) + "\n")
    done = subprocess.run(
        [
            sys.executable,
            "launch/score.py",
            "--rows=rows.jsonl",
            "--out=scores.jsonl",
            "--workers=1",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    scores = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [score["reward"] for score in scores] == [1.0, 0.0, 0.0, None]
    assert [score["status"] for score in scores] == ["ok", "ok", "ok", "failed"]
    assert "field ending" in scores[3]["reason"]


def test_every_command_of_readme_exists(root):
    for name in re.findall(r"launch/(\w+)\.py", (root / "README.md").read_text()):
        assert (root / "launch" / f"{name}.py").is_file(), name
