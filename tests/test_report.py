"""The report of a workdir: self-contained, safe, the same bytes again, and its numbers the ledger's."""

import dataclasses
import json
import math
import pathlib
import random
import re
import shutil
import subprocess
import sys

import pytest

from nemocascade_jax import report
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.report import samples, story

DOMAINS = ("instruction_following", "math", "multiple_choice", "structured_output")
ORDER = ("sft", "if_rl", "multi_rl", "mopd")
KINDS = {"sft": "sft", "if_rl": "grpo", "multi_rl": "grpo", "mopd": "mopd"}
STEPS = {"sft": 60, "if_rl": 12, "multi_rl": 12, "mopd": 8}
# Score of every domain (in the order of DOMAINS) after each stage.
AFTER = {
    "sft": (0.21, 0.71, 0.55, 0.60),
    "if_rl": (0.40, 0.31, 0.54, 0.58),
    "multi_rl": (0.38, 0.28, 0.69, 0.77),
    "mopd": (0.39, 0.69, 0.68, 0.76),
}
ERROR = 0.018
NASTY = (
    "</script><script>document.title = 'broken out'</script>",
    "<!-- <img src=x onerror=\"document.title='broken out'\"> -->",
    "It is 7 😀 and é, said \u2028 the bird.\n\nSecond paragraph & more.",
    "",
    "word " * 200,
    "The answer is \\boxed{42}.",
)


def write_workdir(root: pathlib.Path, stages=ORDER) -> pathlib.Path:
    """Writes a run of four stages and four domains: IF-RL costs math, MOPD wins it back."""
    rng = random.Random(0)
    _write(root / "config.json", _config())
    _write(root / "cascade.json", _ledger(stages))
    for number, stage in enumerate(ORDER, 1):
        if stage in stages:
            _write_stage(root / f"{number:02d}_{stage}", stage, rng)
    return root


def _write(path: pathlib.Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))


def _config() -> dict:
    stages = {
        name: {"kind": KINDS[name], "parent": None, "steps": STEPS[name]}
        | ({} if name == "sft" else {"max_sampler_gap": 1e-4, "rollouts_keep": "all"})
        | {"optim": {"lr": 6e-4, "frozen": ["router"]}}
        for name in ORDER
    }
    model = {"pattern": "ME*E", "vocab_size": 512, "width": 48}
    model["moe"] = {"experts": 4, "top_k": 2}
    about = {"seed": 3, "init": "scratch", "tokenizer": "tiny", "model": model}
    return about | {"order": list(ORDER), "stages": stages}


def _ledger(stages) -> dict:
    about = {"mode": "sampled", "rows": "selection", "seed": 3, "digest": "ab12"}
    ledger = {"version": 2, "order": list(ORDER), "stages": {}, "scores": [], "differences": []}
    ledger |= {"best": {}, "gates": [], "triggers": [], "teachers": {}, "recoveries": []}
    parent = None
    for stage in stages:
        entry = {"kind": KINDS[stage], "parent": parent, "start_digest": "00"}
        entry |= {"status": "done", "step": STEPS[stage], "digest": "ab12"}
        ledger["stages"][stage] = entry | {"counters": {"skipped_updates": 0, "dropped": 2}}
        for step in (STEPS[stage] // 2, STEPS[stage]):
            for place, domain in enumerate(DOMAINS):
                score = AFTER[stage][place] - (0.02 if step < STEPS[stage] else 0.0)
                one = {"stage": stage, "step": step, "domain": domain, **about}
                one |= {"score": score, "n": 512, "failed": 0, "standard_error": ERROR}
                ledger["scores"].append(one)
                if score > ledger["best"].get(domain, {"score": -1})["score"]:
                    keys = ("stage", "step", "score", "standard_error", "digest")
                    ledger["best"][domain] = {key: one[key] for key in keys}
        if parent:
            for place, domain in enumerate(DOMAINS):
                change = AFTER[stage][place] - AFTER[parent][place]
                entry = {"stage": stage, "parent": parent, "domain": domain, "mode": "sampled"}
                entry |= {"rows": "selection", "difference": change, "standard_error": 0.015}
                ledger["differences"].append(entry)
        if stage == "if_rl":
            best = {"stage": "sft", "step": 60}
            gate = {"stage": stage, "step": 12, "domain": "math", "best": best, "errors": 3.0}
            gate |= {"difference": -0.4, "standard_error": 0.02, "verdict": "fallen"}
            ledger["gates"].append(gate)
        parent = stage
    if "mopd" in stages:
        _add_mopd(ledger)
    return ledger


def _add_mopd(ledger: dict) -> None:
    from_stage = {"instruction_following": "if_rl", "math": "sft"}
    taught = {}
    for place, domain in enumerate(DOMAINS):
        teacher = from_stage.get(domain, "multi_rl")
        score = AFTER[teacher][place]
        taught[domain] = {"asked": "best", "stage": teacher, "step": STEPS[teacher], "path": None}
        taught[domain] |= {"digest": "cd", "score": score, "standard_error": ERROR}
        verdict = "recovered" if domain == "math" else "held"
        ledger["recoveries"].append(
            {
                "stage": "mopd",
                "domain": domain,
                "teacher": {"stage": teacher, "step": STEPS[teacher], "path": None},
                "teacher_score": score + 0.004,
                "before_score": AFTER["multi_rl"][place] + 0.003,
                "score": AFTER["mopd"][place] + 0.002,
                "difference": AFTER["mopd"][place] - score - 0.002,
                "standard_error": 0.014,
                "errors": 2.0,
                "change": AFTER["mopd"][place] - AFTER["multi_rl"][place] - 0.001,
                "change_standard_error": 0.016,
                "verdict": verdict,
            }
        )
    ledger["teachers"]["mopd"] = taught
    ledger["triggers"].append({"stage": "mopd", "trigger": "fallen", "fallen": ["math"]})


def _write_stage(folder: pathlib.Path, stage: str, rng: random.Random) -> None:
    (folder / "rollouts").mkdir(parents=True)
    logged, times = [], []
    level = dict.fromkeys(DOMAINS, 0.3)
    for step in range(1, STEPS[stage] + 1):
        line = {"progress/step": step, "progress/stage": stage, "optim/lr": 6e-4}
        line |= {"loss": 2 / math.sqrt(step) + rng.gauss(0, 0.05), "moe/load_max": 1.3}
        line["optim/grad_norm"] = abs(rng.gauss(1, 0.2))
        seconds = {"progress/step": step, "time/step_s": 2.0 + rng.random()}
        if stage == "sft":
            seconds["time/data_s"] = 0.1
        else:
            for domain in DOMAINS:
                level[domain] = min(0.95, level[domain] + rng.gauss(0.012, 0.03))
                line[f"reward/{domain}"] = level[domain]
            line |= {"reward/mean": sum(level.values()) / 4, "reward/std": 0.2}
            line |= {"rollout/length_mean": 30 + step * 0.4, "rollout/truncated_frac": 0.1}
            line |= {"policy/entropy": 1.4 - 0.02 * step, "policy/sampler_gap": 1e-5}
            seconds |= {"time/rollout_s": 1.1, "time/reward_s": 0.2}
        if stage == "mopd":
            line |= {"mopd/reverse_kl": 0.8 / step, "mopd/dropped_frac": 0.01}
            line |= {f"mopd/reverse_kl/{domain}": 0.7 / step for domain in DOMAINS[:2]}
            seconds["time/teacher_s"] = 0.3
        if step == 5:
            line["loss"] = None
        logged.append(line)
        times.append(seconds)
        if stage != "sft":
            records = _records(stage, step, rng)
            _write_lines(folder / "rollouts" / f"{step}.jsonl", records)
    _write_lines(folder / "metrics.jsonl", logged)
    _write_lines(folder / "timing.jsonl", times)


def _write_lines(path: pathlib.Path, lines) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _records(stage: str, step: int, rng: random.Random) -> list[dict]:
    tokenizer = load_tokenizer("tiny")
    border = [tokenizer.special(name) for name in ("<|im_start|>", "<|im_end|>")]
    out = [{"step": step, "used": "dropped", "id": "long", "where": "generated:9"}]
    for group, domain in enumerate(DOMAINS):
        asked = "What is 6 times 7?" if domain == "math" else f"Describe rain, {domain}. No commas."
        prompt = [border[0], *tokenizer.encode(f"user\n{asked}"), border[1]]
        for sample in range(4):
            text = NASTY[(group + sample + step) % len(NASTY)]
            if sample < 2 and group == 1:
                text = f"The answer is {42 - sample} and the bird is quiet."
            tokens = [*tokenizer.encode(text), border[1]]
            failed = sample == 3 and group == 2
            logprobs = [round(-rng.expovariate(2), 5) for _ in tokens]
            record = {
                "step": step,
                "group": group,
                "draw": group,
                "used": "filtered" if group == 3 else "update",
                "id": f"row-{group}",
                "where": f"generated:{group}",
                "agent": f"{domain}_simple_agent",
                "domain": domain,
                "prompt": asked,
                "prompt_tokens": prompt,
                "sample": sample,
                "completion": text,
                "completion_tokens": tokens,
                "logprobs": logprobs,
                "finish_reason": "stop",
                "stop": border[1],
                "reward": None if failed else (0.0, 1.0, 0.5, 1.0)[sample],
                "status": "failed" if failed else "ok",
                "reason": "the grader stopped: out of memory" if failed else "graded",
                "parts": {} if failed else {"format": 1.0, "answer": float(sample % 2)},
                "advantage": None if stage == "mopd" else 0.25 * sample,
                "weights": "ab12",
            }
            if stage == "mopd":
                record["teacher"] = "sft"
                record["teacher_logprobs"] = [value + rng.gauss(0, 0.5) for value in logprobs]
            out.append(record)
    return out


@pytest.fixture(scope="module")
def workdir(tmp_path_factory) -> pathlib.Path:
    return write_workdir(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def data(workdir) -> dict:
    return report.report_data(workdir)


@pytest.fixture
def own(workdir, tmp_path) -> pathlib.Path:
    """A copy that a test may spoil."""
    return pathlib.Path(shutil.copytree(workdir, tmp_path / "own"))


def embedded(path: pathlib.Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    return json.loads(found[1])


def test_report_is_self_contained(workdir, tmp_path):
    page = report.write_report(workdir, tmp_path / "r.html").read_text()
    without_data = re.sub(r'(id="data">).*?(</script>)', r"\1\2", page, flags=re.DOTALL)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|import\(|fetch\(|innerHTML", without_data)
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src=|href=\"(?!data:))", without_data)
    assert "default-src 'none'" in without_data


def test_report_escapes_what_a_model_wrote(workdir, tmp_path):
    path = report.write_report(workdir, tmp_path / "r.html")
    page = path.read_text()
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<!--" not in page
    said = {s["completion"] for g in embedded(path)["rollouts"]["groups"] for s in g["samples"]}
    assert set(NASTY) <= said


def test_report_takes_half_characters_and_numbers_that_are_none():
    found = report.embed({"a": "\ud83d", "b": math.nan, "c": [math.inf, 1], "d": "</script>"})
    assert found.encode() == rb'{"a":"\ud83d","b":null,"c":[null,1],"d":"\u003c/script>"}'


def test_report_gives_the_same_bytes_again(workdir, tmp_path):
    one = report.write_report(workdir, tmp_path / "one.html")
    two = report.write_report(workdir, tmp_path / "two.html")
    assert one.read_bytes() == two.read_bytes()


def test_report_shows_the_numbers_of_the_ledger(data):
    columns = [(column["stage"], column["step"]) for column in data["table"]["columns"]]
    assert columns == list(STEPS.items())
    cell = data["table"]["cells"]["math"]
    assert {stage: cell[stage]["score"] for stage in ORDER} == {
        "sft": 0.71,
        "if_rl": 0.31,
        "multi_rl": 0.28,
        "mopd": 0.69,
    }
    assert cell["if_rl"]["change"] == pytest.approx(-0.4)
    assert [cell[stage]["beyond"] for stage in ORDER] == ["", "down", "", "up"]
    assert (cell["sft"]["best"]["step"], cell["if_rl"]["best"]) == (60, None)
    assert cell["sft"]["teaches"] == [{"stage": "mopd", "step": 60}]
    assert (cell["if_rl"]["fallen"], cell["sft"]["fallen"]) == (True, False)
    assert [row["verdict"] for row in data["confirmation"]] == ["held", "recovered", "held", "held"]


def test_report_says_what_rose_and_fell(data):
    said = {
        stage["name"]: "".join(words for _, words in stage["sentence"]) for stage in data["stages"]
    }
    assert said["sft"] == "Scored, with no parent to compare with."
    assert said["if_rl"] == (
        "Against sft: rose: instruction following +0.190 ± 0.015; fell: math −0.400 ± 0.015; "
        "within 2 errors: multiple choice, structured output."
    )
    assert "nothing fell" in said["multi_rl"]
    assert said["mopd"].startswith(
        "On the second held-out set: won back: math +0.409 ± 0.016; nothing fell"
    )


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (0.21, 0.1, "up"),
        (0.2, 0.1, ""),
        (-0.2, 0.1, ""),
        (-0.21, 0.1, "down"),
        (-0.1, 0.0, "down"),
        (0.0, 0.0, ""),
        (0.3, None, ""),
        (None, None, ""),
    ],
)
def test_change_is_named_beyond_two_errors_only(change, error, said):
    assert story.beyond(change, error) == said


def test_score_chart_adds_up_the_stages_steps(data):
    found = data["chart"]
    assert [(b["from"], b["to"]) for b in found["borders"]] == [
        (0, 60),
        (60, 72),
        (72, 84),
        (84, 92),
    ]
    math_points = [[(p["at"], p["score"]) for p in part] for part in found["lines"]["math"]]
    assert math_points[1] == [(60, 0.71), (66, pytest.approx(0.29)), (72, 0.31)]


def test_curves_are_of_metrics_that_are_there(data):
    curves = {stage["stage"]: stage["panels"] for stage in data["curves"]}
    titles = {stage: [panel["title"] for panel in panels] for stage, panels in curves.items()}
    assert titles["sft"] == [
        "loss",
        "gradient norm",
        "learning rate",
        "expert load",
        "seconds a step",
    ]
    by_title = {panel["title"]: panel for panel in curves["mopd"]}
    assert by_title["loss"]["lines"][0]["y"][4] is None
    assert by_title["on-policy gap"]["limit"] == 1e-4
    assert [line["label"] for line in by_title["reward by domain"]["lines"]] == list(DOMAINS)
    parts = by_title["parts of the reward"]["lines"]
    # 15 graded samples a step: the failed one, whose `answer` would be 1, is not among them.
    assert {line["label"]: line["y"][0] for line in parts} == {
        "format": 1.0,
        "answer": pytest.approx(7 / 15, rel=1e-5),
    }


def test_times_are_stacked_up_to_the_step(data, workdir):
    panel = data["curves"][1]["panels"][-1]
    lines = (workdir / "02_if_rl" / "timing.jsonl").read_text().splitlines()
    wholes = [json.loads(line)["time/step_s"] for line in lines]
    sums = [sum(layer["y"][k] for layer in panel["lines"]) for k in range(len(wholes))]
    assert panel["stacked"]
    assert sums == pytest.approx(wholes, rel=1e-5)


@pytest.mark.parametrize("limit", [0.0, 0.02, 0.1, 6.0])
def test_rollouts_stay_within_their_size_in_whole_groups(workdir, limit):
    found = report.report_data(workdir, limit)["rollouts"]
    groups = found["groups"]
    assert len(report.embed(groups).encode()) <= limit * 1e6 + 2
    assert all(len(group["samples"]) == 4 for group in groups)
    used = {stage: {g["step"] for g in groups if g["stage"] == stage} for stage in ORDER[1:]}
    if limit == 0.1:
        assert all({1, STEPS[stage]} <= steps for stage, steps in used.items())
        assert {share["embedded"] < share["samples"] for share in found["shares"]} == {True}
    if limit == 6.0:
        assert all(len(steps) == STEPS[stage] for stage, steps in used.items())


def test_of_a_large_rollout_file_whole_groups_are_read(own, monkeypatch):
    path = own / "02_if_rl" / "rollouts" / "1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    # Room for the dropped prompt, the first group and two samples of the second.
    monkeypatch.setattr(samples, "ROLLOUT_BYTES", sum(map(len, lines[:7])))
    found = report.report_data(own)["rollouts"]
    here = [g for g in found["groups"] if (g["stage"], g["step"]) == ("if_rl", 1)]
    assert [(g["group"], len(g["samples"])) for g in here] == [(0, 4)]


def test_spread_takes_both_ends_first_and_each_once():
    assert samples.spread(9) == [0, 8, 4, 2, 6, 1, 3, 5, 7]
    for count in range(12):
        assert sorted(samples.spread(count)) == list(range(count))


def test_tokens_have_their_text_and_special_ones_are_marked(data):
    found = data["rollouts"]["pieces"]
    end = load_tokenizer("tiny").special("<|im_end|>")
    assert found["text"][str(end)] == "<|im_end|>"
    assert end in found["special"]
    assert [0xF0] in found["text"].values()  # a byte of the emoji, no character alone


def test_a_tokenizer_that_is_not_the_runs_is_not_used(own, monkeypatch):
    other = dataclasses.replace(load_tokenizer("tiny"), text=lambda ids: "other words")
    monkeypatch.setattr(samples, "load_tokenizer", lambda where: other)
    found = report.report_data(own)
    assert found["rollouts"]["pieces"] == {"text": {}, "special": []}
    assert "it changed since the run" in found["notes"][0]


def test_the_tokenizer_in_a_checkpoint_goes_first(own, monkeypatch):
    asked = []
    monkeypatch.setattr(
        samples, "load_tokenizer", lambda where: asked.append(where) or load_tokenizer("tiny")
    )
    inside = own / "01_sft" / "checkpoints" / "30" / "model"
    inside.mkdir(parents=True)
    assert report.report_data(own)["rollouts"]["pieces"]["text"]
    assert asked == [str(inside)]


def test_report_of_a_half_made_run(own):
    for folder in ("02_if_rl", "04_mopd"):
        shutil.rmtree(own / folder)
    ledger = _ledger(("sft", "if_rl"))
    ledger["stages"]["if_rl"] = {"kind": "grpo", "parent": "sft", "status": "running"}
    ledger["differences"] = []
    ledger["scores"] = [one for one in ledger["scores"] if one["stage"] == "sft"]
    _write(own / "cascade.json", ledger)
    with (own / "01_sft" / "metrics.jsonl").open("a") as file:
        file.write('{"progress/step": 61, "lo')
    data = embedded(report.write_report(own))
    assert [stage["status"] for stage in data["stages"]] == [
        "done",
        "running",
        "not started",
        "not started",
    ]
    assert data["notes"] == [
        "02_if_rl: the folder is missing",
        "01_sft/metrics.jsonl: line 61 is not JSON, torn (a write was cut short); left out",
    ]
    assert len(data["curves"][0]["panels"][0]["x"]) == 60


def test_report_of_a_run_from_given_weights_with_a_teacher_from_outside(own):
    ledger = _ledger(ORDER)
    first = [{**one, "stage": "init", "step": 0} for one in ledger["scores"][:4]]
    ledger["scores"] = [*first, *ledger["scores"]]
    change = {"stage": "sft", "parent": "init", "domain": "math", "mode": "sampled"}
    change |= {"rows": "selection", "difference": 0.02, "standard_error": None}
    ledger["differences"].append(change)
    ledger["teachers"]["mopd"]["math"] |= {"stage": None, "step": None, "path": "/teacher"}
    ledger["recoveries"][1] |= {"verdict": "short", "difference": -0.1}
    _write(own / "cascade.json", ledger)
    _write(own / "config.json", _config() | {"init": "/weights"})
    found = embedded(report.write_report(own))
    assert [column["stage"] for column in found["table"]["columns"]] == ["init", *ORDER]
    assert found["model"].endswith("starting from /weights")
    assert found["lineage"][3]["teachers"][1]["path"] == "/teacher"
    cell = found["table"]["cells"]["math"]["sft"]
    assert (cell["change"], cell["beyond"], cell["teaches"]) == (0.02, "", [])
    parts = [part["at"] for part in found["chart"]["lines"]["math"][1]]
    assert parts == [0, 30, 60]
    assert ["down", "still below its teacher: math −0.100 ± 0.014"] in found["stages"][3][
        "sentence"
    ]


@pytest.mark.parametrize("left_out", ["config.json", "cascade.json"])
def test_report_of_a_run_with_one_file_missing(own, left_out):
    (own / left_out).unlink()
    assert embedded(report.write_report(own))["notes"][0].startswith(f"{left_out}: not there")


def test_report_refuses_a_ledger_of_another_version(own):
    _write(own / "cascade.json", {"version": 1, "order": []})
    with pytest.raises(InputError, match="cascade.json: version 1, this program reads 2"):
        report.write_report(own)


def _run(*args) -> subprocess.CompletedProcess:
    command = [sys.executable, "launch/report.py", *map(str, args)]
    return subprocess.run(
        command, cwd=pathlib.Path(__file__).parents[1], capture_output=True, text=True
    )


def test_command_refuses_a_folder_that_is_no_workdir(tmp_path):
    done = _run("--workdir", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr
    assert not list(tmp_path.iterdir())


def test_command_writes_beside_the_run_by_default(own):
    done = _run("--workdir", own)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{own / 'report.html'}: ")
    assert embedded(own / "report.html")["seed"] == 3


def test_report_imports_no_jax():
    program = "import sys, nemocascade_jax.report; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
