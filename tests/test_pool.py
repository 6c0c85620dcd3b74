import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import time
import uuid

import attacks
import pytest

from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards import pool, worker
from nemocascade_jax.rows.generators import instruction
from nemocascade_jax.rows.records import Completion, Row, Score

BAD = (sys.executable, str(pathlib.Path(__file__).with_name("bad_worker.py")))


def _job(what: str, **fields) -> tuple[Row, Completion]:
    return Row("r", "bad", (), fields, "test:1"), Completion(what)


@pytest.fixture(scope="module")
def bad():
    running = pool.Pool(2, 0.2, 1024, BAD)
    yield running
    running.close()


def _verdict(running: pool.Pool, what: str, **fields) -> Score:
    """Grades one bad job among good ones, which must keep their places."""
    jobs = [_job(f"good {index}") for index in range(9)]
    jobs.insert(4, _job(what, **fields))
    verdicts = running.score(jobs)
    others = [score.reason for score in verdicts[:4] + verdicts[5:]]
    assert others == [f"good {index}" for index in range(9)]
    return verdicts[4]


@pytest.mark.parametrize("what", ["python", "c"])
def test_answer_out_of_time_is_a_zero(bad, what):
    score = _verdict(bad, what)
    assert (score.reward, score.status) == (0.0, "ok")
    assert score.reason == "grader ran out of time on this answer"


def test_answer_out_of_memory_is_a_zero(bad):
    score = _verdict(bad, "memory")
    assert (score.reward, score.reason) == (0.0, "grader ran out of memory on this answer")


@pytest.mark.parametrize("reference", ["slow", "wrong"])
@pytest.mark.parametrize("what", ["python", "memory"])
def test_reference_at_fault_is_no_zero(bad, what, reference):
    score = _verdict(bad, what, reference=reference)
    assert score.reward is None


def test_crash_in_a_verifier_is_failed_with_its_type(bad):
    score = _verdict(bad, "raises")
    assert (score.status, score.reason) == ("failed", "KeyError: 'no such thing'")
    assert _verdict(bad, "nan").status == "failed"


def test_process_lost_twice_is_failed(bad):
    score = _verdict(bad, "segv")
    assert (score.status, score.reward) == ("failed", None)
    assert "SIGSEGV, then signal SIGSEGV" in score.reason


def test_process_lost_once_is_forgiven(bad, tmp_path):
    assert _verdict(bad, "once", mark=str(tmp_path / "mark")).reward == 1.0


def test_verifier_that_prints_does_no_harm(bad):
    assert _verdict(bad, "prints").reward == 1.0


def test_worker_never_imports_jax_and_dumps_no_core(bad):
    assert _verdict(bad, "modules").reward == 0.0
    assert _verdict(bad, "core").reward == 0.0


def test_silent_worker_is_a_timeout():
    running = pool.Pool(1, 0.1, 1024, BAD)
    running.score([_job("good")])
    running.wall_s = 0.5
    began = time.monotonic()
    first, second = running.score([_job("sleep"), _job("good")])
    running.close()
    assert (first.status, first.reward, second.reward) == ("timeout", None, 1.0)
    assert time.monotonic() - began < 20


def test_pool_gives_the_verdicts_of_this_process():
    rows = instruction.generate("train", 120, 2)
    answers = instruction.demonstrations("train", 120, 2, 0.4)
    jobs = [
        (row, Completion(answer.messages[-1].content))
        for row, answer in zip(rows, answers, strict=True)
    ]
    running = pool.start_pool(2, cpu_s=2.0, memory_mb=1024)
    there = running.score(jobs)
    assert running.score([]) == []
    running.close()
    here = pool.start_pool(0, cpu_s=2.0, memory_mb=1024).score(jobs)
    assert [(s.reward, s.reason, s.parts) for s in there] == [
        (s.reward, s.reason, s.parts) for s in here
    ]
    assert 0 < sum(s.reward for s in here) < 120


def test_unknown_agent_is_failed_and_names_the_known():
    score = pool.grade_here(*_job("anything"))
    assert score.status == "failed"
    assert "instruction_following_simple_agent" in score.reason


def test_worker_that_cannot_start_is_said_at_once():
    running = pool.Pool(1, 1.0, 256, ("false",))
    with pytest.raises(InputError, match=r"exit code 1.*memory_mb, now 256"):
        running.score([_job("good")])
    running.close()


def test_workers_end_with_a_killed_parent():
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from nemocascade_jax.rewards import pool\n"
        "from nemocascade_jax.rows.records import Completion, Row\n"
        "p = pool.Pool(2, 30.0, 1024, sys.argv[1:])\n"
        "row = Row('r', 'bad', (), {}, 'here')\n"
        "p.score([(row, Completion('good'))] * 8)\n"
        "print(*[w.process.pid for w in p.workers], flush=True)\n"
        "p.score([(row, Completion('sleep'))])\n"
    )
    command = [sys.executable, "-c", code, *BAD]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=pool.ROOT)
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.5)  # by now one of them sleeps in its job, the other waits for one
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in workers)


def _alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_closed_pool_leaves_no_process():
    running = pool.start_pool(2, cpu_s=1.0, memory_mb=512)
    pids = [one.process.pid for one in running.workers]
    running.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# What ends a grading process or makes it fail, and the reward that must come of it.
QUICK = {"memory": 0.0, "segv": None, "raises": None, "nan": None, "prints": 1.0}
LETHAL = {**QUICK, "python": 0.0, "c": 0.0}


def _hostile(count: int, names: set[str], lethal: dict, share: float):
    """Yields jobs of cheats, of broken rows and of honest answers, with the reward each must get."""
    rng = random.Random(0)
    known = attacks.domains()
    domains = [(known[name], known[name].rows(40)) for name in sorted(names)]
    for index in range(count):
        domain, rows = rng.choice(domains)
        row, kind = rng.choice(rows), rng.random()
        if kind < share:
            what = rng.choice(sorted(lethal))
            yield _job(what), lethal[what]
        elif kind < 0.1:
            agent = rng.choice(("nobody", row.agent))
            yield (Row(f"{index}", agent, (), {}, "broken"), Completion("x")), None
        elif kind < 0.5:
            yield (row, Completion(domain.satisfying(row))), 1.0
        else:
            text = rng.choice(list(domain.attacks.values()))(row)
            yield (row, Completion(text or "")), 0.0


def _resident_mb(pid: int) -> float:
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _marked(mark: str) -> list[str]:
    """Returns the processes whose command line holds the mark."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in path.read_text() and _alive(int(path.parent.name)):
                found.append(path.parent.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def _grade_hostile(running: pool.Pool, jobs: list) -> None:
    scores = running.score([job for job, _ in jobs])
    odd = [
        (index, job[0].where, job[1].text[:60], reward, score)
        for index, ((job, reward), score) in enumerate(zip(jobs, scores, strict=True))
        if score.reward != reward
    ]
    assert not odd


def test_hostile_rows_end_in_order_and_leave_no_process():
    mark = f"mark-{uuid.uuid4()}"
    running = pool.Pool(2, 2.0, 1024, (*BAD, mark))
    names = attacks.domains().keys() - {"math"}  # whose library takes a second to load
    jobs = list(_hostile(300, names, QUICK, 0.03))
    assert {reward for _, reward in jobs} == {0.0, 1.0, None}
    _grade_hostile(running, jobs)
    assert _marked(mark)
    running.close()
    assert not _marked(mark)


@pytest.mark.slow
def test_ten_thousand_hostile_rows_end_in_order_with_flat_memory():
    mark = f"mark-{uuid.uuid4()}"
    running = pool.Pool(2, 1.0, 1024, (*BAD, mark, "warm"))
    jobs = list(_hostile(10_000, set(attacks.domains()), LETHAL, 0.006))
    _grade_hostile(running, jobs[:2000])
    before = _resident_mb(os.getpid())
    for start in range(2000, 10_000, 2000):
        _grade_hostile(running, jobs[start : start + 2000])
        assert all(_resident_mb(one.process.pid) < 600 for one in running.workers)
    assert _resident_mb(os.getpid()) < before + 32
    running.close()
    time.sleep(5)
    assert not _marked(mark)


def test_frames_survive_a_pipe():
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb") as sink:
        worker.write_frame(sink, pickle.dumps(_job("x")))
        sink.close()
        assert pickle.loads(worker.read_frame(source)) == _job("x")
        assert worker.read_frame(source) is None
