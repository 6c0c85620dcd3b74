"""One grading process: reads batches of jobs, answers job by job; never imports jax.

`python -m nemocascade_jax.rewards.worker CPU_SECONDS MEMORY_MB` speaks over its standard input and
output in frames of four length bytes and a body: a pickled list of jobs in, one JSON list a job
out. The process that reads the answers never unpickles anything that comes from here.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import math
import os
import pickle
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import BinaryIO, Literal

from nemocascade_jax.rewards import check_row, reward_for, warm
from nemocascade_jax.rows.records import Completion, Row, RowError, Score

OUT_OF_MEMORY = 99  # exit code
FRAME = struct.Struct(">I")
PR_SET_PDEATHSIG = 1

Job = tuple[Literal["score", "check"], Row, Completion]


class OutOfTime(BaseException):
    """Raised inside a grader; not an Exception, so that no grader catches it by mistake."""


_armed = False


def grade(row: Row, completion: Completion) -> Score:
    """Returns the verdict of the row's verifier; whatever the verifier raises becomes `failed`."""
    began = time.perf_counter()
    try:
        score = reward_for(row).score(row, completion)
        if score.reward is not None and not math.isfinite(score.reward):
            score = Score(None, "failed", f"the verifier gave the reward {score.reward}")
    except RowError as error:
        score = Score(None, "failed", str(error))
    except (MemoryError, OutOfTime):
        raise
    except Exception as error:
        # The one place whose job is to outlive any fault of a verifier: one row's crash must not
        # take the batch with it, and it must not read as a wrong answer either.
        score = Score(None, "failed", f"{type(error).__name__}: {error}")
    return dataclasses.replace(score, seconds=time.perf_counter() - began)


def grade_within(row: Row, completion: Completion, cpu_s: float) -> Score:
    """Returns `grade` under a limit of CPU seconds.

    Out of time is the answer's fault, a 0, if the row's own check ends within the limit; else it is
    the row's, and `timeout`.
    """
    began = time.perf_counter()
    score = _limited(functools.partial(grade, row, completion), cpu_s)
    if score is None:
        score = _limited(functools.partial(probe, row), cpu_s)
        if score is None:
            score = Score(None, "timeout", "grader ran out of time on the row's reference")
        elif score.status == "ok":
            score = Score(0.0, "ok", "grader ran out of time on this answer")
        score = dataclasses.replace(score, seconds=time.perf_counter() - began)
    return score


def probe(row: Row) -> Score:
    """Returns whether the row alone, without an answer, is one that its verifier can grade."""
    try:
        check_row(row)
    except RowError as error:
        return Score(None, "failed", str(error))
    return Score(0.0, "ok")


def _limited(work: Callable[[], Score], cpu_s: float) -> Score | None:
    """Returns what `work` returns, None when it took more than `cpu_s` of CPU time.

    The timer reaches Python code and regular expressions. Code in C that never looks at signals
    meets the hard limit at twice the time: the process dies, and its parent finds out why.
    """
    global _armed
    end = math.ceil(time.process_time() + 2 * cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        _armed = True
        signal.setitimer(signal.ITIMER_PROF, cpu_s, 0.1)
        result = work()
        _armed = False
        return result
    except OutOfTime:
        return None
    finally:
        _armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)


def _on_timer(signum: int, frame: FrameType | None) -> None:
    if _armed:
        raise OutOfTime


def serve(jobs: BinaryIO, answers: BinaryIO, cpu_s: float) -> None:
    """Answers batches until the other side closes the pipe."""
    write_frame(answers, b"[]")  # ready
    while (body := read_frame(jobs)) is not None:
        for kind, row, completion in pickle.loads(body):
            if kind == "score":
                score = grade_within(row, completion, cpu_s)
            else:
                score = _limited(functools.partial(probe, row), cpu_s) or Score(None, "timeout")
            fields = [score.reward, score.status, score.reason, dict(score.parts), score.seconds]
            write_frame(answers, json.dumps(fields).encode())


def read_frame(stream: BinaryIO) -> bytes | None:
    """Returns the next frame's body, None at the end of the stream."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    (size,) = FRAME.unpack(head)
    body = stream.read(size)
    return body if len(body) == size else None


def write_frame(stream: BinaryIO, body: bytes) -> None:
    stream.write(FRAME.pack(len(body)) + body)
    stream.flush()


def main(cpu_s: float, memory_mb: int) -> None:
    """Serves the pipes this process was started with, under its limits."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    jobs = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # a verifier that prints must not write into the answers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _on_timer)
    try:
        warm()
        size = memory_mb << 20
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        serve(jobs, answers, cpu_s)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
