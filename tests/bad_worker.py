"""A grading process whose verifiers misbehave, for tests/test_pool.py."""

import os
import pathlib
import resource
import signal
import sys
import time

sys.path.insert(0, os.getcwd())

from nemocascade_jax.rewards import REWARDS, worker
from nemocascade_jax.rows.records import Reward, RowError, Score


def _score(row, completion):
    what = completion.text
    if what == "python":
        while True:
            pass
    elif what == "c":
        sum(range(10**12))  # never looks at signals
    elif what == "memory":
        bytearray(64 << 30)
    elif what == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "sleep":
        time.sleep(600)
    elif what == "once":
        mark = pathlib.Path(row.fields["mark"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    elif what == "raises":
        raise KeyError("no such thing")
    elif what == "prints":
        print("words on standard output")
    elif what == "nan":
        return Score(float("nan"), "ok")
    elif what == "modules":
        return Score(float("jax" in sys.modules), "ok")
    elif what == "core":
        return Score(float(resource.getrlimit(resource.RLIMIT_CORE)[0]), "ok")
    return Score(1.0, "ok", what)


def _check(row):
    if row.fields.get("reference") == "slow":
        while True:
            pass
    if row.fields.get("reference") == "wrong":
        raise RowError("test: the reference is wrong")


if __name__ == "__main__":
    if "warm" not in sys.argv:
        worker.warm = lambda: None  # these verifiers load nothing
    REWARDS["bad"] = Reward("bad", _check, _score)
    worker.main(float(sys.argv[-2]), int(sys.argv[-1]))
