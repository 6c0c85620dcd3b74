"""Keeps the rows of a file that are worth training on, by the scores of trial answers to them.

    python tools/curriculum.py --rows rows.jsonl --scores a.jsonl b.jsonl --out kept.jsonl
    ... --order gaussian --centres 0.9 0.1 --width 0.2      puts easy rows first (paper 8.2)

`--scores` are files that launch/score.py wrote for trial answers to these rows, each row any number
of times. Rows that are always solved are dropped, and of the never solved all but a tenth (paper
2.11). A grader's own failures count for nothing; rows without a valid score go to `--unscored`.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from nemocascade_jax.errors import InputError
from nemocascade_jax.metrics import write_text
from nemocascade_jax.rows import curriculum, schema
from nemocascade_jax.rows.curriculum import Choice, Trials

BINS = 5  # of pass rates strictly between never and always


def main() -> None:
    try:
        print(run(read_flags(sys.argv[1:])))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def read_flags(words: Sequence[str]) -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--rows", type=pathlib.Path, required=True)
    parser.add_argument("--scores", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--unscored", type=pathlib.Path, help="file for rows without a valid score")
    parser.add_argument("--join", choices=("id", "index"), default="id")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep_never", type=_share, default=0.1, help="share of the never solved")
    parser.add_argument("--order", choices=("file", "gaussian"), default="file")
    parser.add_argument("--centres", type=_share, nargs=2, default=(0.9, 0.1))
    parser.add_argument("--count", type=_whole, help="rows of the gaussian order; all without it")
    parser.add_argument("--width", type=_positive, default=0.2)
    return parser.parse_args(words)


def run(flags: argparse.Namespace) -> str:
    """Writes the kept rows, whole or not at all, and returns the table of what became of all."""
    if flags.count and flags.order == "file":
        raise InputError(f"--count: {flags.count} has no effect without --order gaussian")
    lines, keys = read_rows(flags.rows)
    trials = curriculum.collect_trials(read_scores(flags.scores), keys, flags.join)
    choices = [
        curriculum.choose(one, key, keep_never=flags.keep_never, seed=flags.seed)
        for one, key in zip(trials, keys, strict=True)
    ]
    kept = [index for index, choice in enumerate(choices) if choice == "kept"]
    if not kept:
        raise InputError(
            f"{flags.rows}: no row is kept; {table(trials, choices)}".replace("\n", "; ")
        )
    if flags.order == "gaussian":
        order = curriculum.curriculum_order(
            [trials[index].rate or 0.0 for index in kept],
            [keys[index] for index in kept],
            count=flags.count or len(kept),
            centres=tuple(flags.centres),
            width=flags.width,
            seed=flags.seed,
        )
        kept = [kept[place] for place in order]
    if flags.unscored:
        apart = [index for index, choice in enumerate(choices) if choice == "unscored"]
        write_text(flags.unscored, "".join(lines[index] + "\n" for index in apart))
    write_text(flags.out, "".join(lines[index] + "\n" for index in kept))
    return table(trials, choices) + f"\n{len(kept)} rows written to {flags.out}"


def read_rows(path: pathlib.Path) -> tuple[list[str], list[str]]:
    """Returns the file's lines as they stand, and the key of each row."""
    lines, keys = [], []
    for index, (number, line) in enumerate(schema.read_lines(path, schema.GOOD_ROW)):
        obj = schema.parse_line(line, f"{path}:{number}")
        lines.append(line.decode())
        keys.append(curriculum.row_key(obj, index))
    return lines, keys


def read_scores(paths: Sequence[pathlib.Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (where, line) over all files."""
    for path in paths:
        for number, obj in schema.read_jsonl(path, curriculum.GOOD_SCORE):
            yield f"{path}:{number}", obj


def table(trials: Sequence[Trials], choices: Sequence[Choice]) -> str:
    """Returns kept and dropped rows by pass rate, and the trials that do not count."""
    counts = collections.Counter(
        (bin_of(one), choice == "kept") for one, choice in zip(trials, choices, strict=True)
    )
    lines = [f"{'pass rate':<20}{'rows':>8}{'kept':>8}{'dropped':>8}"]
    for name in ("never", *(edges(place) for place in range(BINS)), "always", "no valid score"):
        kept, dropped = counts[name, True], counts[name, False]
        lines.append(f"{name:<20}{kept + dropped:>8}{kept:>8}{dropped:>8}")
    kept = choices.count("kept")
    lines.append(f"{'all':<20}{len(choices):>8}{kept:>8}{len(choices) - kept:>8}")
    valid, faults = sum(len(one.rewards) for one in trials), sum(one.faults for one in trials)
    lines.append(f"{valid} valid scores, {faults} failed or timed out and not counted")
    return "\n".join(lines)


def bin_of(one: Trials) -> str:
    """Returns the line of the table that a row belongs to."""
    if one.rate is None:
        return "no valid score"
    if max(one.rewards) <= 0:
        return "never"
    if min(one.rewards) >= 1:
        return "always"
    return edges(min(BINS - 1, max(0, int(one.rate * BINS))))


def edges(place: int) -> str:
    return f"{place / BINS:.1f} to {(place + 1) / BINS:.1f}"


def _share(word: str) -> float:
    value = float(word)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{word} is not between 0 and 1")
    return value


def _whole(word: str) -> int:
    value = int(word)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word} is not above 0")
    return value


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not above 0")
    return value


if __name__ == "__main__":
    main()
