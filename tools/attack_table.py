"""Tries every known attack on the verifiers; prints what each domain paid for.

python tools/attack_table.py --rows 50

Fails when an attack is paid or escapes its zero, or a satisfying answer is not paid.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import pathlib
import sys
import time

from nemocascade_jax.rewards import pool
from nemocascade_jax.rows.records import Completion

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
attacks = importlib.import_module("attacks")

EXPECTED = {"satisfying": 1.0, "empty": 0.0, "truncated": 0.0}  # every attack: 0
LEAST, LEAST_HERE = 12, 6  # kinds of attack over all domains, and in each


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50, help="generated rows a domain")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpu_s", type=float, default=1.0, help="CPU seconds a row may take")
    parser.add_argument("--domains", nargs="*", help="only these")
    args = parser.parse_args()
    known = attacks.domains()
    unknown = set(args.domains or ()) - known.keys()
    if unknown:
        parser.error(f"--domains: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    running = pool.start_pool(args.workers, cpu_s=args.cpu_s, memory_mb=1024)
    began = time.monotonic()
    try:
        tables = {
            name: grade(domain, args.rows, running)
            for name, domain in known.items()
            if name in (args.domains or known)
        }
    finally:
        running.close()
    print("\n".join([*summary(tables), "", *details(tables)]))
    print(f"\n{sum(t['rows'] for t in tables.values())} rows, {time.monotonic() - began:.0f} s")
    found = faults(tables, whole=not args.domains)
    print("\n".join(found), file=sys.stderr)
    sys.exit(1 if found else 0)


def grade(domain: attacks.Domain, count: int, running: pool.Pool) -> dict:
    """Returns, by kind of answer, how many rows it was tried on and what came back."""
    rows = domain.rows(count)
    table: dict = {"rows": len(rows)}
    answers = {
        "satisfying": domain.satisfying,
        "empty": lambda row: "",
        "truncated": domain.truncated,
        **domain.attacks,
    }
    for kind, build in answers.items():
        jobs = [(row, text) for row in rows if (text := build(row)) is not None]
        scores = running.score([(row, Completion(text)) for row, text in jobs])
        expected = EXPECTED.get(kind, 0.0)
        count_of = collections.Counter(
            score.status if score.status != "ok" else score.reward == expected for score in scores
        )
        odd = [
            f"{row.where}: {score.reward} for {text[:80]!r} {score.reason[:80]}"
            for (row, text), score in zip(jobs, scores, strict=True)
            if score.reward != expected
        ]
        slowest = max((score.seconds for score in scores), default=0.0)
        table[kind] = {"tried": len(jobs), "count": count_of, "odd": odd, "slowest": slowest}
    return table


def summary(tables: dict) -> list[str]:
    """Returns the table by domain: how many came out as they must, of those tried."""
    heads = ("satisfying", "empty", "truncated", "adversarial", "kinds", "failed", "timeout")
    lines = [f"{'domain':24}{'rows':>6}" + "".join(f"{head:>14}" for head in heads)]
    for name, table in tables.items():
        kinds = attack_kinds(table)
        cells = [good(table[kind]) for kind in EXPECTED]
        cells.append(good(*(table[kind] for kind in kinds)))
        every = [table[kind] for kind in (*EXPECTED, *kinds)]
        cells += [f"{sum(1 for kind in kinds if table[kind]['tried'])}"]
        cells += [f"{sum(e['count'][status] for e in every)}" for status in ("failed", "timeout")]
        lines.append(f"{name:24}{table['rows']:>6}" + "".join(f"{cell:>14}" for cell in cells))
    return [*lines, "as they must be / tried; satisfying -> 1, all others -> 0"]


def details(tables: dict) -> list[str]:
    """Returns the table by attack."""
    lines = [
        f"{'domain':24}{'attack':36}{'tried':>6}{'zero':>6}{'failed':>8}{'timeout':>8}{'s':>7}"
    ]
    for name, table in tables.items():
        for kind in attack_kinds(table):
            entry = table[kind]
            count = entry["count"]
            lines.append(
                f"{name:24}{kind:36}{entry['tried']:>6}{count[True]:>6}{count['failed']:>8}"
                f"{count['timeout']:>8}{entry['slowest']:>7.2f}"
            )
    return lines


def attack_kinds(table: dict) -> list[str]:
    return [kind for kind in table if kind not in EXPECTED and kind != "rows"]


def good(*entries: dict) -> str:
    return f"{sum(e['count'][True] for e in entries)}/{sum(e['tried'] for e in entries)}"


def faults(tables: dict, whole: bool) -> list[str]:
    """Returns one line for each answer that did not get what it must, and for too few kinds."""
    found = [
        f"{name}, {kind}: {odd}"
        for name, table in tables.items()
        for kind in (*EXPECTED, *attack_kinds(table))
        for odd in table[kind]["odd"]
    ]
    tried = {
        name: {kind for kind in attack_kinds(table) if table[kind]["tried"]}
        for name, table in tables.items()
    }
    found += [f"{n}: {len(k)} kinds of attack" for n, k in tried.items() if len(k) < LEAST_HERE]
    if whole and len(set().union(*tried.values())) < LEAST:
        found.append(f"fewer than {LEAST} kinds of attack")
    return found


if __name__ == "__main__":
    main()
