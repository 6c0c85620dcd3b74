"""The curves of each stage: which metrics go into which panel, out of metrics.jsonl and timing.jsonl."""

from __future__ import annotations

import collections
from typing import Any

from nemocascade_jax.report.workdir import ROLLOUT_BYTES, StageFolder, Workdir

MOST_POINTS = 1200  # of one curve; a longer stage shows every k-th step
PARTS_SHOWN = 10
PARTS_STEPS = 240  # rollout files that are read for the reward's parts, ...
PARTS_BYTES = 512 << 20  # ... as far as together they are not larger than this


def of_stages(work: Workdir) -> list[dict[str, Any]]:
    """Returns one entry a stage: its steps and its panels, only of metrics that are there."""
    found = []
    for stage in work.stages:
        lines, every = _thin(list(work.lines(stage.folder / "metrics.jsonl")))
        panels = [*_metric_panels(stage, lines), *_part_panels(work, stage), *_times(work, stage)]
        found.append({"stage": stage.name, "every": every, "panels": panels})
    return found


def _metric_panels(stage: StageFolder, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {name for line in lines for name in line}
    taken = {name for panel in PANELS for name in panel["metrics"]} | {"reward/std"}
    steps = [line.get("progress/step", index) for index, line in enumerate(lines, 1)]
    panels = []
    for panel in PANELS:
        here = [name for name in panel["metrics"] if name in names]
        for prefix in panel.get("prefixes", ()):
            here += sorted(n for n in names - taken if n.startswith(prefix) and n not in here)
        curves = [
            {"label": _label(name, panel), "y": [_number(line.get(name)) for line in lines]}
            for name in here
        ]
        if panel.get("band") in names:
            curves[0]["band"] = [_number(line.get(panel["band"])) for line in lines]
        curves = [curve for curve in curves if any(y is not None for y in curve["y"])]
        if curves:
            limit = stage.config.get(panel["limit"]) if "limit" in panel else None
            about = {key: panel.get(key) for key in ("title", "says", "log")}
            panels.append({**about, "x": steps, "lines": curves, "limit": _number(limit)})
    return panels


def _part_panels(work: Workdir, stage: StageFolder) -> list[dict[str, Any]]:
    """Returns the mean of each part of the reward over the samples of a step."""
    files = stage.rollout_files()
    size = sum(min(path.stat().st_size, ROLLOUT_BYTES) for path in files.values())
    every = max(-(-len(files) // PARTS_STEPS), -(-size // PARTS_BYTES), 1)
    steps = list(files)[::every]
    seen: collections.Counter[str] = collections.Counter()
    sums: list[dict[str, tuple[float, int]]] = []
    for step in steps:
        here: dict[str, tuple[float, int]] = {}
        for record in work.lines(files[step], ROLLOUT_BYTES):
            parts = record.get("parts")
            for name, value in parts.items() if isinstance(parts, dict) else ():
                if _number(value) is not None:
                    total, count = here.get(name, (0.0, 0))
                    here[name] = (total + value, count + 1)
        seen.update({name: count for name, (_, count) in here.items()})
        sums.append(here)
    shown = sorted(seen, key=lambda name: (-seen[name], name))[:PARTS_SHOWN]
    curves = []
    for name in shown:
        means = [here[name][0] / here[name][1] if name in here else None for here in sums]
        curves.append({"label": name, "y": [_number(mean) for mean in means]})
    if not curves:
        return []
    says = "mean of the samples that have it"
    if len(seen) > len(shown):
        says += f"; {len(shown)} most frequent of {len(seen)}"
    return [{"title": "parts of the reward", "says": says, "x": steps, "lines": curves}]


def _times(work: Workdir, stage: StageFolder) -> list[dict[str, Any]]:
    """Returns the seconds of each step, stacked; what no part accounts for is "update and rest"."""
    lines, _ = _thin(list(work.lines(stage.folder / "timing.jsonl")))
    names = sorted({n for line in lines for n in line if n.startswith("time/")} - {"time/step_s"})
    layers = [
        {"label": name[5:].removesuffix("_s"), "y": [_number(line.get(name)) for line in lines]}
        for name in names
    ]
    rest: list[float | None] = []
    for line in lines:
        whole = _number(line.get("time/step_s"))
        spent = sum(_number(line.get(name)) or 0.0 for name in names)
        rest.append(None if whole is None else _number(max(0.0, whole - spent)))
    if any(value is not None for value in rest):
        layers.append({"label": "update and rest", "y": rest})
    if not layers:
        return []
    steps = [line.get("progress/step", index) for index, line in enumerate(lines, 1)]
    title = {"title": "seconds a step", "says": "stacked; the first step compiles"}
    return [{**title, "x": steps, "lines": layers, "stacked": True}]


def _thin(lines: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Returns every k-th line, so that none of a short stage and few of a long one are left out."""
    every = -(-len(lines) // MOST_POINTS) or 1
    return lines[::every], every


def _label(name: str, panel: dict[str, Any]) -> str:
    for prefix in panel.get("prefixes", ()):
        if name.startswith(prefix) and name not in panel["metrics"]:
            return name.removeprefix(prefix)
    return name


def _number(value: Any) -> float | int | None:
    """Returns a finite number to six digits, None for anything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if not isinstance(value, float) or value - value != 0:
        return None
    return float(f"{value:.6g}")


# Panels in the order of the page. `prefixes` take the metrics of every domain; `limit` is a key of the stage.
PANELS: tuple[dict[str, Any], ...] = (
    {"title": "loss", "metrics": ("loss",)},
    {
        "title": "reward",
        "says": "of every sample drawn; band: deviation in groups",
        "metrics": ("reward/mean", "reward/used_mean"),
        "band": "reward/std",
    },
    {"title": "reward by domain", "metrics": (), "prefixes": ("reward/",)},
    {
        "title": "reverse KL from the teacher",
        "says": "nats, student against teacher",
        "metrics": ("mopd/reverse_kl",),
        "prefixes": ("mopd/reverse_kl/",),
    },
    {
        "title": "distillation tokens dropped",
        "says": "share, ratio outside the band",
        "metrics": ("mopd/dropped_frac",),
    },
    {"title": "length", "says": "tokens of a completion", "metrics": ("rollout/length_mean",)},
    {
        "title": "cut and failed",
        "says": "shares: cut at the limit; not graded",
        "metrics": ("rollout/truncated_frac", "rollout/failed_frac"),
    },
    {"title": "entropy", "says": "nats a token", "metrics": ("policy/entropy",)},
    {
        "title": "on-policy gap",
        "says": "largest |trainer − sampler| log-prob",
        "metrics": ("policy/sampler_gap",),
        "log": True,
        "limit": "max_sampler_gap",
    },
    {
        "title": "groups",
        "says": "learned from; all equal; not needed",
        "metrics": ("rollout/kept_groups", "rollout/filtered_groups", "rollout/surplus_groups"),
    },
    {"title": "gradient norm", "says": "before clipping", "metrics": ("optim/grad_norm",)},
    {"title": "learning rate", "metrics": ("optim/lr",)},
    {
        "title": "expert load",
        "says": "1: all experts get the same",
        "metrics": ("moe/load_max",),
    },
    {"title": "KL from the reference", "says": "nats", "metrics": ("policy/kl_ref",)},
    {"title": "batch fill", "says": "share of places that hold a token", "metrics": ("data/fill",)},
)
