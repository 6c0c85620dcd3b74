"""Every command from outside: exit codes, one line for a fault, nothing imported that is not needed."""

import json
import subprocess
import sys
import time
import zipfile

import pytest

MICRO = "--config=configs/cascade.py:micro"


def launch(root, name, *args, **kwargs):
    return subprocess.run(
        [sys.executable, f"launch/{name}.py", *map(str, args)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=240,
        **kwargs,
    )


def commands(root):
    return sorted(
        p.stem for p in (root / "launch").glob("*.py") if "\n    command.run(main)" in p.read_text()
    )


def test_help_answers_without_jax(root):
    for name in commands(root):
        program = (
            "import runpy, sys; sys.path.insert(0, 'launch'); sys.argv = ['launch/NAME.py', '--help']\n"
            "try:\n    runpy.run_path('launch/NAME.py', run_name='__main__')\n"
            "except SystemExit as end:\n    print('EXIT', end.code, 'jax' in sys.modules)"
        ).replace("NAME", name)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=root, capture_output=True, text=True
        )
        assert done.stdout.endswith("EXIT 0 False\n"), (
            name,
            done.stdout[-500:],
            done.stderr[-500:],
        )
        assert "flags:" in done.stdout


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("show_config", ["--config=configs/cascad.py"], "did you mean 'cascade.py'?"),
        (
            "show_config",
            [MICRO, "--config.stages.sft.optim.lrr=1"],
            "config.stages.sft.optim.lrr: unknown key; did you mean 'lr'?",
        ),
        ("show_config", [MICRO, "--orgins"], "--orgins: unknown flag; did you mean --origins?"),
        ("show_config", [MICRO, "extra"], "'extra': unexpected argument"),
        ("show_config", [MICRO, "--config.seed"], "--config.seed: no value"),
        ("show_config", [], "--config: missing"),
        ("run", [MICRO], "--workdir: missing"),
        (
            "run",
            [MICRO, "--workdir=W", "--config.stages.sft.steps=2.5"],
            "config.stages.sft.steps: expected int at least 1, got '2.5'",
        ),
        ("run", [MICRO, "--workdir=W", "--config.tokenizer=nowhere"], "nowhere"),
        (
            "run",
            [MICRO, "--workdir=W", "--config.stages.sft.parent=multi_rl"],
            "the parents go in a circle: sft <- multi_rl <- if_rl <- sft",
        ),
        (
            "run",
            [MICRO, "--workdir=W", "--config.stages.mopd.teachers.math=no/folder"],
            "config.stages.mopd.teachers.math: no/folder: no such folder",
        ),
        (
            "run",
            [MICRO, "--workdir=W", "--config.stages.mopd.data.math.generator=choice"],
            "teachers.math: no row of the stage's data is of this domain",
        ),
        ("run", [MICRO, "--workdir=W", "--config.model.vocab_size=100"], "vocab_size is 100"),
        ("run", [MICRO, "--workdir=W", "--config.init=nowhere"], "nowhere"),
        ("show_batch", [MICRO, "--stage=sfd", "--out=W"], "no stage 'sfd'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_before_any_device_work(root, tmp_path, name, args, said):
    began = time.perf_counter()
    done = launch(root, name, *[arg.replace("=W", f"={tmp_path}/w") for arg in args])
    seconds = time.perf_counter() - began
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "w").exists()
    assert seconds < 20  # 3 s on an idle machine; tests share theirs


def test_malformed_row_is_named_with_file_and_line(root, tmp_path):
    good = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    lines = [json.dumps(good)] * 16 + ['{"messages": [{"role": "user", "content": null}]}']
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    source = "--config.stages.sft.data.math"
    done = launch(
        root,
        "run",
        MICRO,
        f"--workdir={tmp_path}/w",
        f"{source}.kind=jsonl",
        f"{source}.path={path}",
        f"{source}.generator=None",
        f"{source}.count=None",
    )
    assert done.returncode == 2
    assert f"{path}:17" in done.stderr
    assert "content" in done.stderr
    assert done.stderr.count("\n") == 1


def test_workdir_of_another_config_is_refused(root, tmp_path):
    (tmp_path / "w").mkdir()
    shown = json.loads(launch(root, "show_config", MICRO).stdout)
    shown["stages"]["sft"]["optim"]["lr"] = 0.5
    (tmp_path / "w" / "config.json").write_text(json.dumps(shown))
    done = launch(root, "run", MICRO, f"--workdir={tmp_path}/w")
    assert done.returncode == 2
    assert "config.stages.sft.optim.lr: 0.5 there, 0.006 here" in done.stderr
    assert done.stderr.count("\n") == 1


def test_show_config_prints_what_overrides_say(root):
    done = launch(root, "show_config", MICRO, "--config.stages.if_rl.sampling.top_k=7")
    assert json.loads(done.stdout)["stages"]["if_rl"]["sampling"]["top_k"] == 7
    done = launch(root, "show_config", MICRO, "--config.seed=3", "--origins")
    shown = json.loads(done.stdout)
    assert shown["seed"]["value"] == 3
    assert shown["seed"]["from"].startswith("--config.seed=3 (over configs/")


@pytest.mark.slow
def test_the_wheel_has_one_top_level_name(root, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--quiet",
            "--wheel-dir",
            tmp_path,
            ".",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {
        "nemocascade_jax"
    }
    for inside in (
        "configs/cascade.py",
        "kernels/__init__.py",
        "assets/tokenizer.model",
        "rewards/worker.py",
    ):
        assert f"nemocascade_jax/{inside}" in names
