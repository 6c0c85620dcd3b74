"""The whole chain on a very small model: SFT, then IF-RL, stopped and resumed in many places."""

import json
import shutil
import zlib

import pytest

from nemocascade_jax import config_file, metrics
from nemocascade_jax.cascade import inputs as cascade_inputs
from nemocascade_jax.cascade.graph import Console, run_cascade
from nemocascade_jax.errors import InputError, Stopped
from nemocascade_jax.formats.checkpoint import checkpoint_steps
from nemocascade_jax.rows.records import Score

DOMAINS = ("instruction_following", "math", "multiple_choice", "structured_output")
RL = ("if_rl", "multi_rl", "mopd")
FOLDERS = {"01_sft": 6, "02_if_rl": 4, "03_multi_rl": 2, "04_mopd": 4}
SMALL = {
    "model.pattern": "*-",
    "model.width": "16",
    "model.mlp_inner": "16",
    "stages.sft.steps": "6",
    "stages.sft.packing.rows_per_step": "4",
    "stages.if_rl.steps": "4",
    "stages.if_rl.prompts_per_step": "4",
    "stages.if_rl.data.instruction_following.count": "10",
    "stages.multi_rl.steps": "2",
    "stages.multi_rl.prompts_per_step": "4",
    "stages.mopd.steps": "4",
    "stages.mopd.prompts_per_step": "4",
    "stages.mopd.teacher_rows": "4",
    "stages.mopd.teachers.structured_output": "multi_rl",
    "stages.mopd.teachers.math": "sft@4",
    "evaluation.sampling.max_completion_tokens": "8",
    "evaluation.greedy": "false",
    "evaluation.confirmation": "4",
    **{f"evaluation.domains.{domain}.count": "10" for domain in DOMAINS},
    **{f"stages.sft.data.{domain}.count": "20" for domain in DOMAINS},
    **{f"stages.mopd.data.{domain}.count": "20" for domain in DOMAINS},
    **{f"stages.{stage}.optim.frozen": "()" for stage in RL},
    **{f"stages.{stage}.group_size": "2" for stage in RL},
    **{f"stages.{stage}.sampling.max_completion_tokens": "8" for stage in RL},
    **{f"stages.{stage}.dynamic_filtering": "false" for stage in RL[:2]},
    **{f"stages.{stage}.checkpoint.every_steps": "2" for stage in ("sft", *RL)},
    **{f"stages.{stage}.checkpoint.keep": "1" for stage in ("sft", *RL)},
}
# The first two stages alone, for what has nothing to do with the others.
SHORT = {"order": "sft,if_rl"}


@pytest.fixture(scope="module")
def grade():
    """Stands in for a verifier: an untrained model satisfies none, and all-equal rewards teach nothing."""
    return lambda jobs: [Score(float(zlib.crc32(said.text.encode()) % 2), "ok") for _, said in jobs]


def make_run(root, **changes):
    overrides = {**SMALL, **changes}
    where = str(root / "configs/cascade.py") + ":micro"
    return config_file.load_config(where, list(overrides.items())).run


def go(run, workdir, grade, stop_after=None):
    """Runs the cascade; with `stop_after` a signal is seen after that many steps of the whole run."""
    seen = []

    def stop_signal():
        seen.append(1)
        return 15 if len(seen) == stop_after else None

    said = []
    console = Console(say=said.append, progress=lambda *_: None, stop_signal=stop_signal)
    inputs = cascade_inputs.load_inputs(run, said.append)
    cascade_inputs.claim_workdir(run, workdir)
    ledger = run_cascade(run, workdir, inputs, grade=grade, console=console)
    return ledger, said


@pytest.fixture(scope="module")
def straight(root, grade, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("straight")
    go(make_run(root), workdir, grade)
    return workdir


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def same_bytes(one, other):
    names = sorted(
        path.relative_to(one)
        for path in one.rglob("*.json*")
        if path.name != "timing.jsonl" and "checkpoints" not in path.parts
    )
    assert len(names) == 28
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def kept(workdir):
    """Returns the checkpoints that are there, by stage."""
    return {
        folder: checkpoint_steps(workdir / folder / "checkpoints") for folder in sorted(FOLDERS)
    }


def test_what_is_kept_is_scored_best_or_teaching(straight):
    """One a stage is kept by age; beside it those that are best at a domain, teach, or are named."""
    ledger = json.loads((straight / "cascade.json").read_text())
    needed = {("sft", 4)} | {(best["stage"], best["step"]) for best in ledger["best"].values()}
    needed |= {(t["stage"], t["step"]) for t in ledger["teachers"]["mopd"].values()}
    needed |= {(folder[3:], steps) for folder, steps in FOLDERS.items()}
    found = {(folder[3:], step) for folder, steps in kept(straight).items() for step in steps}
    assert found == needed
    assert len(found) < 8  # of the eight that were saved, some are gone


def test_a_run_leaves_every_file_in_its_shape(straight):
    ledger = json.loads((straight / "cascade.json").read_text())
    assert {entry["status"] for entry in ledger["stages"].values()} == {"done"}
    assert list(ledger["stages"]) == ["sft", *RL]
    assert ledger["stages"]["if_rl"]["parent"] == "sft"
    assert ledger["stages"]["if_rl"]["start_digest"] == ledger["stages"]["sft"]["digest"]
    assert ledger["stages"]["if_rl"]["digest"] != ledger["stages"]["sft"]["digest"]
    scored = {(s["stage"], s["step"]) for s in ledger["scores"] if s["rows"] == "selection"}
    saved = {(folder[3:], step) for folder, n in FOLDERS.items() for step in range(2, n + 1, 2)}
    assert scored == saved
    assert ledger["differences"][0]["parent"] == "sft"
    for folder, steps in FOLDERS.items():
        found = lines(straight / folder / "metrics.jsonl")
        assert [line["progress/step"] for line in found] == list(range(1, steps + 1))
        assert len(lines(straight / folder / "timing.jsonl")) == steps
        assert list((straight / folder).glob("events.*"))
        assert (
            straight / folder / "checkpoints" / str(steps) / "model" / "tokenizer.model"
        ).is_file()


def test_every_metric_is_documented(straight):
    for folder in FOLDERS:
        for line in lines(straight / folder / "metrics.jsonl"):
            for name in line:
                by_domain = name.rpartition("/")[0] + "/" in metrics.MEANING_BY_DOMAIN
                assert name in metrics.MEANING or by_domain, name


def test_nothing_depends_on_the_clock(straight):
    for path in straight.rglob("metrics.jsonl"):
        assert not any(name.startswith("time/") for line in lines(path) for name in line)


def test_every_drawn_row_is_in_exactly_one_step(straight):
    draws = [
        sorted(
            {
                record["draw"]
                for record in lines(straight / "02_if_rl" / "rollouts" / f"{step}.jsonl")
            }
        )
        for step in range(1, 5)
    ]
    assert [draw for step in draws for draw in step] == list(range(16))


def test_a_group_holds_different_samples_of_one_prompt(straight):
    records = lines(straight / "02_if_rl" / "rollouts" / "1.jsonl")
    by_draw = {}
    for record in records:
        by_draw.setdefault(record["draw"], []).append(record)
    for group in by_draw.values():
        assert len({tuple(record["prompt_tokens"]) for record in group}) == 1
        assert len({tuple(record["completion_tokens"]) for record in group}) == 2


def test_the_same_command_again_changes_nothing(root, grade, straight, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(straight, again)
    _, said = go(make_run(root), again, grade)
    same_bytes(straight, again)
    assert "sft: already done" in said


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param((1,), marks=pytest.mark.slow),
        (3, 1),
        pytest.param((7,), marks=pytest.mark.slow),
        (9,),
        (14,),
    ],
)
def test_a_stopped_run_comes_back_as_if_nothing_had_happened(
    root, grade, straight, tmp_path, stops
):
    """Stops after a step of SFT, twice in SFT, in RL, in MOPD, off and on the checkpoint grid."""
    run = make_run(root)
    for stop in stops:
        with pytest.raises(Stopped):
            go(run, tmp_path, grade, stop_after=stop)
    go(run, tmp_path, grade)
    same_bytes(straight, tmp_path)
    one, other = (json.loads((path / "cascade.json").read_text()) for path in (straight, tmp_path))
    assert one["stages"]["mopd"]["digest"] == other["stages"]["mopd"]["digest"]
    assert kept(straight) == kept(tmp_path)


def test_a_crash_between_checkpoints_redoes_the_lost_steps(root, grade, straight, tmp_path):
    """The state a kill leaves: the last checkpoint is older than the logs, the ledger says running."""
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    run = make_run(root, **{"stages.mopd.checkpoint.keep": "9"})
    forget_the_end_of_mopd(tmp_path)
    with pytest.raises(Stopped):
        go(run, tmp_path, grade, stop_after=3)
    shutil.rmtree(tmp_path / "04_mopd" / "checkpoints" / "3")
    go(run, tmp_path, grade)
    (tmp_path / "config.json").write_bytes((straight / "config.json").read_bytes())
    same_bytes(straight, tmp_path)


def test_a_checkpoint_that_was_saved_and_not_scored_is_scored(root, grade, straight, tmp_path):
    """The state a kill leaves between saving and scoring: the scores come out the same."""
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    forget_the_end_of_mopd(tmp_path)
    run = make_run(root)
    with pytest.raises(Stopped):
        go(run, tmp_path, grade, stop_after=2)
    assert [path.name for path in (tmp_path / "04_mopd" / "checkpoints").iterdir()] == ["2"]
    assert not list((tmp_path / "04_mopd" / "evaluations").glob("2.jsonl"))
    go(run, tmp_path, grade)
    same_bytes(straight, tmp_path)


def forget_the_end_of_mopd(workdir):
    """Leaves a workdir as it was when its last stage had just started."""
    ledger = json.loads((workdir / "cascade.json").read_text())
    del ledger["stages"]["mopd"]
    for name in ("scores", "differences", "gates", "triggers", "recoveries"):
        ledger[name] = [entry for entry in ledger[name] if entry["stage"] != "mopd"]
    del ledger["teachers"]["mopd"]
    (workdir / "cascade.json").write_text(json.dumps(ledger))
    shutil.rmtree(workdir / "04_mopd")


def test_other_seeds_and_microbatches(root, grade, straight, tmp_path):
    """Another seed is another run; microbatches change rounding only."""
    go(make_run(root, seed="1", order="sft"), tmp_path / "seed", grade)
    go(make_run(root, order="sft", **{"stages.sft.microbatches": "2"}), tmp_path / "micro", grade)
    base, seed, micro = (
        [line["loss"] for line in lines(path / "01_sft" / "metrics.jsonl")]
        for path in (straight, tmp_path / "seed", tmp_path / "micro")
    )
    assert max(abs(a - b) for a, b in zip(base, micro, strict=True)) < 1e-4
    assert max(abs(a - b) for a, b in zip(base, seed, strict=True)) > 1e-3


def test_a_longer_order_continues_a_finished_run(root, grade, tmp_path):
    go(make_run(root, order="sft"), tmp_path, grade)
    ledger, said = go(make_run(root, **SHORT), tmp_path, grade)
    assert ledger.stage("if_rl")["status"] == "done"
    assert "sft: already done" in said


def test_a_reordered_config_needs_another_workdir(root, grade, straight):
    with pytest.raises(InputError, match="holds a run of another config: config.order"):
        cascade_inputs.claim_workdir(make_run(root, order="if_rl,sft,multi_rl,mopd"), straight)


def test_checkpoints_without_their_ledger_are_refused(root, grade, straight, tmp_path):
    workdir = tmp_path / "w"
    shutil.copytree(straight, workdir)
    (workdir / "cascade.json").unlink()
    with pytest.raises(InputError, match=r"01_sft/checkpoints: holds step 6, but .*cascade.json"):
        go(make_run(root), workdir, grade)
    assert not (workdir / "cascade.json").exists()


def test_kl_and_dynamic_filtering_reach_the_run(root, grade, straight, tmp_path):
    run = make_run(
        root,
        **SHORT,
        **{"stages.if_rl.kl_coef": "0.1", "stages.if_rl.steps": "2", "stages.sft.steps": "2"},
    )
    go(run, tmp_path, grade)
    found = lines(tmp_path / "02_if_rl" / "metrics.jsonl")
    assert found[0]["policy/kl_ref"] == pytest.approx(0.0, abs=1e-6)
    assert "policy/kl_ref" not in lines(straight / "02_if_rl" / "metrics.jsonl")[0]


def test_no_signal_at_all_is_an_error_that_says_the_rewards(root, tmp_path):
    def never(jobs):
        return [Score(0.0, "ok") for _ in jobs]

    run = make_run(
        root,
        **SHORT,
        **{
            "stages.if_rl.dynamic_filtering": "true",
            "stages.if_rl.refill_batches": "2",
            "stages.sft.steps": "1",
        },
    )
    with pytest.raises(
        InputError,
        match="no group with differing rewards in 2 generation batches; rewards were 0 x 16",
    ):
        go(run, tmp_path, never)


def test_all_solved_ends_the_stage(root, tmp_path):
    def perfect(jobs):
        return [Score(1.0, "ok") for _ in jobs]

    run = make_run(
        root,
        **SHORT,
        **{
            "stages.if_rl.dynamic_filtering": "true",
            "stages.if_rl.refill_batches": "2",
            "stages.if_rl.overlong": "keep",
            "stages.sft.steps": "1",
        },
    )
    ledger, _ = go(run, tmp_path, perfect)
    assert ledger.stage("if_rl")["status"] == "solved"
    assert ledger.stage("if_rl")["step"] == 0
    assert ledger.stage("if_rl")["digest"] == ledger.stage("sft")["digest"]
    last = lines(tmp_path / "02_if_rl" / "metrics.jsonl")[-1]
    assert last["progress/ended"] == "solved"
    again, _ = go(run, tmp_path, perfect)
    assert again.content == ledger.content


def test_a_failing_grader_stops_the_stage(root, tmp_path):
    def broken(jobs):
        return [Score(None, "failed", "no answer from the judge") for _ in jobs]

    with pytest.raises(InputError, match="100% of samples could not be graded"):
        go(make_run(root, order="if_rl"), tmp_path, broken)
