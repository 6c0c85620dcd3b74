"""Grading in worker processes that can be killed; results in the order of the jobs.

Whose fault it is when no verdict comes: an answer that uses up its CPU seconds or its memory,
twice, on a row that checks out alone, gets a 0. A worker lost for another reason, or silent for ten
times the limit on the wall clock, twice, is the system's fault: `failed` or `timeout`, never a 0.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards import worker
from nemocascade_jax.rows.records import Completion, Row, Score

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "nemocascade_jax.rewards.worker")
BATCH = 64  # most jobs sent to a worker at once
READY_S = 120.0  # for a worker to start
WALL_FACTOR = 10.0  # the wall clock is a backstop, so many times the CPU limit
BLAME = {"time": "grader ran out of time", "memory": "grader ran out of memory"}


@dataclasses.dataclass
class Task:
    """One job on its way: `losses` says how each worker that held it was lost."""

    index: int
    job: worker.Job
    losses: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Worker:
    process: subprocess.Popen[bytes]
    ready: bool = False
    batch: collections.deque[Task] = dataclasses.field(default_factory=collections.deque)
    buffer: bytearray = dataclasses.field(default_factory=bytearray)
    heard: float = dataclasses.field(default_factory=time.monotonic)  # last sign of progress
    silent: bool = False  # killed because the wall clock ran out


class Pool:
    """Grading processes; start them before jax, close them at the end."""

    def __init__(
        self, workers: int, cpu_s: float, memory_mb: int, command: Sequence[str] = COMMAND
    ):
        self.memory_mb = memory_mb
        self.wall_s = WALL_FACTOR * (cpu_s + 1)  # the kernel counts CPU limits in whole seconds
        self.command = [*command, str(cpu_s), str(memory_mb)]
        self.workers = [self._start() for _ in range(workers)]

    def score(self, jobs: Sequence[tuple[Row, Completion]]) -> list[Score]:
        """Returns one verdict a job, in order."""
        if not self.workers:
            return [grade_here(row, completion) for row, completion in jobs]
        verdicts: list[Score | None] = [None] * len(jobs)
        todo = collections.deque(
            Task(index, ("score", row, completion)) for index, (row, completion) in enumerate(jobs)
        )
        size = max(1, min(BATCH, -(-len(jobs) // (4 * len(self.workers)))))
        try:
            while todo or any(one.batch for one in self.workers):
                self._feed(todo, size)
                self._listen(todo, verdicts)
        finally:
            self._abandon()
        return [verdict for verdict in verdicts if verdict is not None]

    def close(self) -> None:
        """Ends every process; the pool cannot be used again."""
        for one in self.workers:
            _kill(one.process)
        self.workers = []

    def _start(self) -> Worker:
        process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent
        )
        return Worker(process)

    def _feed(self, todo: collections.deque[Task], size: int) -> None:
        """Gives every idle worker its next batch; a task that has cost a worker goes alone."""
        for place, one in enumerate(self.workers):
            if one.ready and not one.batch and one.process.poll() is not None:
                _kill(one.process)
                one = self.workers[place] = self._start()  # it was lost while it was idle
            if not one.ready or one.batch or not todo:
                continue
            while todo and len(one.batch) < size:
                if todo[0].losses and one.batch:
                    break
                one.batch.append(todo.popleft())
                if one.batch[-1].losses:
                    break
            one.heard = time.monotonic()
            try:
                body = pickle.dumps([task.job for task in one.batch])
                worker.write_frame(one.process.stdin, body)  # type: ignore[arg-type]
            except BrokenPipeError:
                pass  # the end of its answers tells the same, and why

    def _listen(self, todo: collections.deque[Task], verdicts: list[Score | None]) -> None:
        """Waits for answers, takes them in, and replaces the workers that were lost."""
        with selectors.DefaultSelector() as selector:
            for place, one in enumerate(self.workers):
                if one.batch or not one.ready:
                    selector.register(_stdout(one), selectors.EVENT_READ, place)
            events = selector.select(timeout=min(0.2, self.wall_s / 4))
        for key, _ in events:
            place = key.data
            one = self.workers[place]
            data = os.read(key.fd, 1 << 16)
            one.buffer += data
            self._take(one, todo, verdicts)
            if not data:
                self._lost(place, todo, verdicts)
        for one in self.workers:
            limit = self.wall_s if one.ready else READY_S
            waiting = one.batch or not one.ready
            if waiting and not one.silent and time.monotonic() - one.heard > limit:
                one.silent = True
                _signal(one.process)  # the end of its answers is read in the next round

    def _take(
        self, one: Worker, todo: collections.deque[Task], verdicts: list[Score | None]
    ) -> None:
        """Turns whole frames into verdicts; they answer the batch's jobs one by one."""
        head = worker.FRAME.size
        while len(one.buffer) >= head:
            (length,) = worker.FRAME.unpack(one.buffer[:head])
            if len(one.buffer) < head + length:
                return
            fields = json.loads(one.buffer[head : head + length])
            del one.buffer[: head + length]
            one.heard = time.monotonic()
            if not one.ready:
                one.ready = True
                continue
            task = one.batch.popleft()
            score = Score(*fields)
            if task.job[0] == "check":
                why = BLAME[task.losses[0]]
                fine = Score(0.0, "ok", f"{why} on this answer")
                score = fine if score.status == "ok" else Score(None, "failed", score.reason or why)
            verdicts[task.index] = score

    def _lost(
        self, place: int, todo: collections.deque[Task], verdicts: list[Score | None]
    ) -> None:
        """Starts a fresh worker; the job at fault is tried once more, the others go back."""
        one = self.workers[place]
        # Its answers ended, so it is ending: by itself or by the wall clock. Its number stays taken
        # until _kill has ended its group.
        os.waitid(os.P_PID, one.process.pid, os.WEXITED | os.WNOWAIT)
        _kill(one.process)
        cause = _cause(one)
        if not one.ready:
            raise InputError(
                f"rewards.pool: a worker ended before its first row ({cause}); "
                f"raise memory_mb, now {self.memory_mb}, if it is out of memory"
            )
        self.workers[place] = self._start()
        if not one.batch:
            return
        task, *rest = one.batch
        todo.extendleft(reversed(rest))
        task.losses.append(cause)
        if len(task.losses) == 1:
            todo.append(task)
        elif len(task.losses) == 2 and set(task.losses) in ({"time"}, {"memory"}):
            todo.append(Task(task.index, ("check", *task.job[1:]), [*task.losses]))
        else:
            verdicts[task.index] = self._system_fault(task)

    def _system_fault(self, task: Task) -> Score:
        said = ", then ".join(task.losses)
        if "wall clock" in task.losses:
            return Score(None, "timeout", f"no verdict within {self.wall_s:g} s ({said})")
        return Score(None, "failed", f"the grading process was lost: {said}")

    def _abandon(self) -> None:
        """Replaces workers that still hold jobs, so that no answer of an old call turns up later."""
        for place, one in enumerate(self.workers):
            if one.batch:
                _kill(one.process)
                self.workers[place] = self._start()


def _cause(one: Worker) -> str:
    code = one.process.returncode
    if one.silent:
        return "wall clock"
    if code == -signal.SIGXCPU:
        return "time"
    if code == worker.OUT_OF_MEMORY:
        return "memory"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _stdout(one: Worker) -> IO[bytes]:
    assert one.process.stdout is not None
    return one.process.stdout


def _signal(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not waited for yet, so the number is still its own
        os.killpg(process.pid, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its group, waits for it, and closes its pipes."""
    _signal(process)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            pipe.close()  # type: ignore[union-attr]
        except BrokenPipeError:  # a batch that was still to be written has nowhere to go
            continue


def start_pool(workers: int, *, cpu_s: float, memory_mb: int) -> Pool:
    """Returns a pool of grading processes; with 0 workers grading happens here, without limits."""
    return Pool(workers, cpu_s, memory_mb)


def grade_here(row: Row, completion: Completion) -> Score:
    """Returns the verdict of one job, in this process and without limits."""
    try:
        return worker.grade(row, completion)
    except MemoryError:
        return Score(None, "failed", "MemoryError: this process is out of memory")
