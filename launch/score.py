"""Grades completions: rows with `completion` or `response` in, one verdict a row out.

python launch/score.py --rows rows.jsonl --out scores.jsonl
"""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

import command
from nemocascade_jax import metrics
from nemocascade_jax.rewards import REWARDS, pool, reward_for
from nemocascade_jax.rows import schema
from nemocascade_jax.rows.messages import response_text
from nemocascade_jax.rows.records import Completion, Row, RowError, Score

flags.DEFINE_string("rows", None, "JSON Lines file of rows with `completion` or `response`")
flags.DEFINE_string("out", None, "file to write: index, id, reward, status, reason, seconds a row")
flags.DEFINE_integer("workers", 2, "grading processes; 0 grades in this one, without limits", 0)
flags.DEFINE_float("timeout_s", 2.0, "CPU seconds a row may take to grade", 0.001)
flags.DEFINE_integer("memory_mb", 1024, "address space of a grading process", 64)
flags.DEFINE_bool("skip_unknown", False, "leave out rows that no environment knows, and count them")

FLAGS = flags.FLAGS
CHUNK = 4096  # rows graded between two looks at the file


class Entry(NamedTuple):
    """A row of the file: ready to grade, or with the fault that shows without an answer."""

    index: int
    id: Any
    row: Row | None
    completion: Completion
    fault: str = ""


def main() -> None:
    rows, out = command.required("rows"), Path(command.required("out"))
    began = time.monotonic()
    unknown: list[str] = []
    graded: list[tuple[Entry, Score]] = []
    entries = list(read(rows, unknown, FLAGS.skip_unknown))
    running = pool.start_pool(FLAGS.workers, cpu_s=FLAGS.timeout_s, memory_mb=FLAGS.memory_mb)
    try:
        for start in range(0, len(entries), CHUNK):
            graded += grade(entries[start : start + CHUNK], running)
    finally:
        running.close()
    metrics.write_lines(out, [line(entry, score) for entry, score in graded])
    print(summary(graded, unknown, time.monotonic() - began))


def read(path: str, unknown: list[str], skip_unknown: bool) -> Iterator[Entry]:
    """Yields the rows in order; `unknown` takes the messages of those that are skipped."""
    for index, (number, obj) in enumerate(schema.read_jsonl(path)):
        where = f"{path}:{number}"
        completion = Completion(completion_text(obj, where))
        name = next((obj[k] for k in ("id", "uuid", "hash_id") if obj.get(k) is not None), index)
        try:
            row = schema.parse_row(obj, where, known=REWARDS, prompt_needed=False)
            reward_for(row).check(row)
        except schema.UnknownRow as error:
            if not skip_unknown:
                raise
            unknown.append(str(error))
        except RowError as error:
            yield Entry(index, name, None, completion, str(error))
        else:
            yield Entry(index, name, row, completion)


def completion_text(obj: dict[str, Any], where: str) -> str:
    """Returns the assistant message to grade, out of `completion` or `response`."""
    if ("completion" in obj) == ("response" in obj):
        raise RowError(
            f"{where}: field completion: the row needs one of `completion` and `response`"
        )
    if "response" in obj:
        return response_text(obj["response"], where)
    if not isinstance(obj["completion"], str):
        kind = type(obj["completion"]).__name__
        raise RowError(f"{where}: field completion: expected text, got {kind}")
    return obj["completion"]


def grade(entries: list[Entry], running: pool.Pool) -> list[tuple[Entry, Score]]:
    """Returns each entry with its verdict, in order."""
    jobs = [(entry.row, entry.completion) for entry in entries if entry.row is not None]
    verdicts = iter(running.score(jobs))
    return [
        (entry, next(verdicts) if entry.row is not None else Score(None, "failed", entry.fault))
        for entry in entries
    ]


def line(entry: Entry, score: Score) -> dict[str, Any]:
    """Returns one line of the output."""
    return {
        "index": entry.index,
        "id": entry.id,
        "reward": score.reward,
        "status": score.status,
        "reason": score.reason,
        "seconds": round(score.seconds, 6),
    }


def summary(graded: list[tuple[Entry, Score]], unknown: list[str], seconds: float) -> str:
    """Returns the throughput, and for each domain the counts, the mean reward and the times."""
    domains: dict[str, list[Score]] = collections.defaultdict(list)
    for entry, score in graded:
        domains[REWARDS[entry.row.agent].domain if entry.row else "(faulty rows)"].append(score)
    lines = [f"{len(graded)} rows in {seconds:.1f} s, {len(graded) / seconds:.0f} rows/s"]
    lines += [f"{len(unknown)} rows skipped: no environment knows them"] if unknown else []
    for name, scores in sorted(domains.items()):
        rewards = [score.reward for score in scores if score.reward is not None]
        status = collections.Counter(score.status for score in scores)
        times = sorted(score.seconds * 1000 for score in scores)
        mean = f"{statistics.fmean(rewards):.4f}" if rewards else "none"
        lines.append(
            f"{name}: {len(scores)} rows, mean reward {mean}, failed {status['failed']}, "
            f"timeout {status['timeout']}, ms a row p50 {times[len(times) // 2]:.2f} "
            f"p95 {times[int(0.95 * (len(times) - 1))]:.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    command.run(main)
