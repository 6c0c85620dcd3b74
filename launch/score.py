"""Grades completions: rows with `completion` or `response` in, one verdict a row out.

python launch/score.py --rows rows.jsonl --out scores.jsonl
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

import command
from nemocascade_jax import metrics
from nemocascade_jax.rewards import REWARDS, TURN_SCORES, pool, reward_for, workplace
from nemocascade_jax.rewards.structure_formats import Unreadable, read_json
from nemocascade_jax.rewards.tool_calls import read_turn
from nemocascade_jax.rows import schema
from nemocascade_jax.rows.messages import ParsedTurn, response_text
from nemocascade_jax.rows.records import Completion, Row, RowError, Score, ToolCall
from nemocascade_jax.rows.released import parse_released

flags.DEFINE_string("rows", None, "JSON Lines file of rows with `completion` or `response`")
flags.DEFINE_string("out", None, "file to write: index, id, reward, status, reason, seconds a row")
flags.DEFINE_integer("workers", 2, "grading processes; 0 grades in this one, without limits", 0)
flags.DEFINE_float("timeout_s", 2.0, "CPU seconds a row may take to grade", 0.001)
flags.DEFINE_integer("memory_mb", 1024, "address space of a grading process", 64)
flags.DEFINE_string("office_data", None, "folder of released tables that workplace rows start from")
flags.DEFINE_bool("skip_unknown", False, "leave out rows that no environment knows, and count them")

FLAGS = flags.FLAGS
CHUNK = 4096  # rows graded between two looks at the file


class Entry(NamedTuple):
    """A row of the file: ready to grade, or with the fault that shows without an answer."""

    index: int
    id: Any
    row: Row | None
    completion: Completion
    turns: list[ParsedTurn] | None = None  # of a `response` in a domain that calls tools
    fault: str = ""


def main() -> None:
    rows, out = command.required("rows"), Path(command.required("out"))
    began = time.monotonic()
    unknown: list[str] = []
    graded: list[tuple[Entry, Score]] = []
    entries = list(read(rows, unknown, FLAGS.skip_unknown, FLAGS.office_data))
    running = pool.start_pool(FLAGS.workers, cpu_s=FLAGS.timeout_s, memory_mb=FLAGS.memory_mb)
    try:
        for start in range(0, len(entries), CHUNK):
            graded += grade(entries[start : start + CHUNK], running)
    finally:
        running.close()
    metrics.write_lines(out, [line(entry, score) for entry, score in graded])
    print(summary(graded, unknown, time.monotonic() - began))


def read(
    path: str, unknown: list[str], skip_unknown: bool, office_data: str | None
) -> Iterator[Entry]:
    """Yields the rows in order; `unknown` takes the messages of those that are skipped."""
    for index, (number, obj) in enumerate(schema.read_jsonl(path)):
        where = f"{path}:{number}"
        completion = Completion(completion_text(obj, where))
        name = next((obj[k] for k in ("id", "uuid", "hash_id") if obj.get(k) is not None), index)
        try:
            row = parse_released(obj, where, known=REWARDS, prompt_needed=False)
            if office_data is not None and row.agent == workplace.AGENT:
                row = dataclasses.replace(row, fields={**row.fields, "office_data": office_data})
            reward_for(row).check(row)
        except schema.UnknownRow as error:
            if not skip_unknown:
                raise
            unknown.append(str(error))
        except RowError as error:
            yield Entry(index, name, None, completion, fault=str(error))
        else:
            turns = None
            if "response" in obj and row.agent in TURN_SCORES and calls_tools(row):
                turns = response_turns(obj["response"]["output"], where, row.tools)
            yield Entry(index, name, row, completion, turns)


def calls_tools(row: Row) -> bool:
    """Says whether an answer is given by calls; a structured one is text unless the row says so."""
    structured = reward_for(row).domain == "structured_output"
    return not structured or row.fields.get("response_mode") == "tool_call"


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


def response_turns(
    output: Sequence[Mapping[str, Any]], where: str, tools: Sequence[Mapping[str, Any]]
) -> list[ParsedTurn]:
    """Returns the assistant's turns of a Responses output; the results of calls stand between them."""
    groups = itertools.groupby(output, lambda item: item.get("type") == "function_call_output")
    return [response_turn(list(items), where, tools) for told, items in groups if not told]


def response_turn(
    items: Sequence[Mapping[str, Any]], where: str, tools: Sequence[Mapping[str, Any]]
) -> ParsedTurn:
    """Returns one turn: its calls as data, or, where there are none, what stands in its text."""
    text = response_text({"output": items}, where)
    called = [item for item in items if item.get("type") == "function_call"]
    if not called:
        return read_turn(text, tools)
    calls, faults = [], []
    for item in called:
        if not isinstance(item.get("name"), str) or not isinstance(item.get("arguments"), str):
            raise RowError(
                f"{where}: field response.output: a function_call needs a name and its arguments "
                "as JSON text"
            )
        try:
            arguments = read_json(item["arguments"])
        except Unreadable as problem:
            faults.append(f"arguments of {item['name'][:60]}: {problem}")
            continue
        if isinstance(arguments, Mapping):
            calls.append(ToolCall(item["name"], arguments))
        else:
            faults.append(f"arguments of {item['name'][:60]}: not an object")
    return ParsedTurn("", text, tuple(calls), tuple(faults))


def grade(entries: list[Entry], running: pool.Pool) -> list[tuple[Entry, Score]]:
    """Returns each entry with its verdict, in order; texts are graded by the pool."""
    graded = [entry for entry in entries if entry.row is not None]
    jobs = [(entry.row, entry.completion) for entry in graded if entry.turns is None]
    verdicts = iter(running.score(jobs))
    scores = {
        entry.index: next(verdicts) if entry.turns is None else grade_turns(entry)
        for entry in graded
    }
    return [
        (entry, scores.get(entry.index) or Score(None, "failed", entry.fault)) for entry in entries
    ]


def grade_turns(entry: Entry) -> Score:
    """Returns the verdict of an answer whose calls are data; comparing them has bounds of its own."""
    assert entry.row is not None
    assert entry.turns is not None
    began = time.perf_counter()
    score = TURN_SCORES[entry.row.agent](entry.row, entry.turns)
    return dataclasses.replace(score, seconds=time.perf_counter() - began)


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
