import json

import pytest

from nemocascade_jax import metrics


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_logs_are_cut_back_to_the_restored_step(tmp_path):
    log = metrics.StageLog(tmp_path, 0, {})
    log.write(1, {"progress/step": 1, "loss": 0.5}, {"time/step_s": 1.0})
    log.write_rollouts(1, [{"step": 1}], "all")
    kept = log.sizes()
    log.write(2, {"progress/step": 2, "loss": 0.4}, {"time/step_s": 1.0})
    log.write_rollouts(2, [{"step": 2}], "all")
    (tmp_path / "rollouts" / ".3.jsonl.partial").write_text("half")
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"progress/step": 3, "lo')  # killed while writing
    log = metrics.StageLog(tmp_path, 1, kept)
    assert [line["progress/step"] for line in lines(tmp_path / "metrics.jsonl")] == [1]
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["1.jsonl"]
    log.write(2, {"progress/step": 2, "loss": 0.4}, {"time/step_s": 2.0})
    log.close()
    assert [line["progress/step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert len(lines(tmp_path / "timing.jsonl")) == 2


def test_rollouts_are_kept_as_asked(tmp_path):
    log = metrics.StageLog(tmp_path, 0, {})
    for step in range(1, 6):
        log.write_rollouts(step, [{"step": step}], 2)
    assert sorted(path.stem for path in (tmp_path / "rollouts").iterdir()) == ["4", "5"]
    log.write_rollouts(6, [{"step": 6}], "none")
    assert not (tmp_path / "rollouts" / "6.jsonl").exists()
    log.close()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.jsonl"
    metrics.write_lines(path, [{"x": 1}])
    with pytest.raises(ValueError, match="Out of range float"):
        metrics.write_lines(path, [{"x": 2}, {"x": float("nan")}])
    assert lines(path) == [{"x": 1}]
    assert list(tmp_path.iterdir()) == [path]
