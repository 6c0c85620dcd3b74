"""Draws the curves of finished runs of configs/study_mopd.py and tells who reached the teacher when.

python tools/study_figure.py --runs runs/study/0 runs/study/1 runs/study/2 --out docs/study_mopd

Writes OUT.svg, one panel a run, and prints the table of docs/study_mopd.md.
"""

import argparse
import json
import pathlib
from typing import NamedTuple

from nemocascade_jax.evaluate import paired_difference

BRANCHES = {"mopd_math": ("MOPD", "#0b6e99"), "grpo_math": ("GRPO", "#c2571a")}
DOMAIN = "math"
WIDTH, HEIGHT, LEFT, BOTTOM, GAP = 300, 240, 44, 40, 16


class Curve(NamedTuple):
    """Held-out score by update; `errors_below` counts paired standard errors below the teacher."""

    steps: list[int]
    scores: list[float]
    errors: list[float]
    errors_below: list[float]


class Study(NamedTuple):
    """One run: a curve a branch, and the teacher's score, measured in this run on the same rows."""

    seed: int
    curves: dict[str, Curve]
    teacher: float
    teacher_error: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    studies = [read(path) for path in args.runs]
    args.out.with_suffix(".svg").write_text(figure(studies))
    print("\n".join(table(studies)))


def read(workdir: pathlib.Path) -> Study:
    ledger = json.loads((workdir / "cascade.json").read_text())
    seed = json.loads((workdir / "config.json").read_text())["seed"]
    teacher = ledger["teachers"]["mopd_math"][DOMAIN]
    start = score_of(ledger, "init", "selection")[0]
    folders = {name: workdir / f"{index:02d}_{name}" for index, name in enumerate(BRANCHES, 1)}
    known = rewards(folders["mopd_math"] / "evaluations" / f"teacher.{DOMAIN}.jsonl")
    begin = rewards(workdir / "00_init" / "evaluations" / "0.jsonl")
    curves = {}
    for branch, folder in folders.items():
        found = {0: start, **score_of(ledger, branch, "selection")}
        steps = sorted(found)
        scores, errors = zip(*(found[step] for step in steps), strict=True)
        below = []
        for step in steps:
            path = folder / "evaluations" / f"{step}.jsonl"
            mean, error = paired_difference(rewards(path) if step else begin, known)
            below.append(-mean / error)
        curves[branch] = Curve(steps, list(scores), list(errors), below)
    return Study(seed, curves, teacher["score"], teacher["standard_error"])


def score_of(ledger: dict, stage: str, rows: str) -> dict[int, tuple[float, float]]:
    """Returns step -> (score, standard error) of a stage's checkpoints."""
    about = {"stage": stage, "rows": rows, "domain": DOMAIN, "mode": "sampled"}
    return {
        score["step"]: (score["score"], score["standard_error"])
        for score in ledger["scores"]
        if about.items() <= score.items()
    }


def rewards(path: pathlib.Path) -> list[float | None]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["reward"] for line in lines if line["domain"] == DOMAIN]


def reached(curve: Curve) -> int | None:
    """Returns the first step from which on the score stays within two paired errors of the teacher's."""
    first = None
    for step, below in zip(curve.steps, curve.errors_below, strict=True):
        if below > 2:
            first = None
        elif first is None:
            first = step
    return first


def table(studies: list[Study]) -> list[str]:
    lines = [
        "| seed | student | teacher | updates, MOPD | updates, GRPO | at the end, MOPD | at the end, GRPO |",
        "|---|---|---|---|---|---|---|",
    ]
    for study in studies:
        cells = [str(study.seed), f"{study.curves['mopd_math'].scores[0]:.3f}"]
        cells.append(f"{study.teacher:.3f}")
        for branch in BRANCHES:
            step = reached(study.curves[branch])
            cells.append("not reached" if step is None else str(step))
        for branch in BRANCHES:
            curve = study.curves[branch]
            cells.append(f"{curve.scores[-1]:.3f} ({-curve.errors_below[-1]:+.1f} errors)")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def figure(studies: list[Study]) -> str:
    """Returns one SVG: held-out score over updates, bands of two standard errors, the teacher's level."""
    width = LEFT + len(studies) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + BOTTOM + 24}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, study in enumerate(studies):
        parts.append(f'<g transform="translate({LEFT + index * (WIDTH + GAP)},20)">')
        parts += panel(study, labels=index == 0)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def panel(study: Study, *, labels: bool) -> list[str]:
    last = max(max(curve.steps) for curve in study.curves.values())

    def at(step: float, score: float) -> str:
        return f"{step / last * WIDTH:.1f},{(1 - min(1.0, max(0.0, score))) * HEIGHT:.1f}"

    parts = [f'<text x="4" y="-6">seed {study.seed}</text>']
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = (1 - tick) * HEIGHT
        parts.append(f'<path d="M0,{y}H{WIDTH}" stroke="#ddd"/>')
        if labels:
            parts.append(f'<text x="-6" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for step in range(0, last + 1, 20):
        x = step / last * WIDTH
        parts.append(f'<text x="{x}" y="{HEIGHT + 16}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 32}" text-anchor="middle">updates</text>')
    level = (1 - study.teacher) * HEIGHT
    parts.append(f'<path d="M0,{level:.1f}H{WIDTH}" stroke="#555" stroke-dasharray="5 4"/>')
    parts.append(f'<text x="4" y="{level - 5:.1f}">teacher</text>')
    for branch, (name, color) in BRANCHES.items():
        curve = study.curves[branch]
        place = -10 if branch == "mopd_math" else 20  # above its end, below its end
        around = list(zip(*curve[:3], strict=True))
        upper = [at(step, score + 2 * error) for step, score, error in around]
        lower = [at(step, score - 2 * error) for step, score, error in reversed(around)]
        points = " ".join(at(step, score) for step, score, _ in around)
        parts.append(
            f'<polygon points="{" ".join(upper + lower)}" fill="{color}" fill-opacity="0.15"/>'
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = at(curve.steps[-1], curve.scores[-1]).split(",")
        parts.append(
            f'<text x="{float(x) - 4:.1f}" y="{float(y) + place:.1f}" text-anchor="end" fill="{color}">'
            f"{name}</text>"
        )
    return parts


if __name__ == "__main__":
    main()
