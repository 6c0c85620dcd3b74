"""The main command from outside: signals, kills, and a disk that refuses to hold the run."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
from test_cascade import SMALL

SMALL_FLAGS = [f"--config.{key}={value}" for key, value in SMALL.items()] + [
    "--config.mesh.data=1",
    "--config.stages.if_rl.overlong=keep",
]


def command(workdir, *more):
    flags = ["--config=configs/cascade.py:micro", f"--workdir={workdir}", *SMALL_FLAGS, *more]
    return [sys.executable, "launch/run.py", *flags]


def environment(tmp_path):
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def wait_for(path, seconds=120):
    until = time.monotonic() + seconds
    while not (path.is_file() and path.stat().st_size):
        assert time.monotonic() < until, f"{path} was not written"
        time.sleep(0.05)


def test_sigterm_saves_and_the_same_command_continues(root, tmp_path):
    flags = ["--config.order=sft", "--config.stages.sft.steps=120"]
    workdir = tmp_path / "w"
    run = subprocess.Popen(
        command(workdir, *flags),
        cwd=root,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(workdir / "01_sft" / "metrics.jsonl")
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 143, said
    assert "stopped by SIGTERM, state saved" in said.splitlines()[-1]
    steps = len((workdir / "01_sft" / "metrics.jsonl").read_text().splitlines())
    assert (workdir / "01_sft" / "checkpoints" / str(steps)).is_dir()
    again = subprocess.Popen(
        command(workdir, *flags),
        cwd=root,
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    )
    _, said = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert f"sft: resuming at step {steps}" in said
    lines = (workdir / "01_sft" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["progress/step"] for line in lines] == list(range(1, 121))


def test_a_file_size_limit_is_one_line(root, tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    done = subprocess.run(
        command(tmp_path / "w"),
        cwd=root,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        preexec_fn=small_files,
        timeout=240,
    )
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "checkpoint" in last
    assert str(tmp_path) in last
    assert "Traceback" not in done.stderr
    finished = [
        path.name for path in (tmp_path / "w").glob("01_sft/checkpoints/*") if path.name.isdigit()
    ]
    assert finished == []  # complete or absent


@pytest.mark.slow
def test_a_killed_run_equals_one_that_was_not(root, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "tools/kill_run.py", "--config=configs/cascade.py:micro"),
            *(f"--out={tmp_path}", "--kills=3", "--", *SMALL_FLAGS),
        ],
        cwd=root,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal byte for byte" in done.stdout
