"""What the ledger says, as the page's headline, table, confirmation rows, lineage and score chart."""

from __future__ import annotations

from typing import Any

from nemocascade_jax.report.workdir import StageFolder, Workdir

ERRORS = 2.0  # a change is coloured and named when it is beyond this many paired standard errors
INIT = "init"


def tell(work: Workdir) -> dict[str, Any]:
    """Returns the parts of the page that come from the ledger alone."""
    scores = [one for one in work.ledger["scores"] if _is(one, "selection")]
    return {
        "name": work.root.resolve().name,
        "seed": work.config.get("seed"),
        "init": work.config.get("init"),
        "model": model_line(work.config, work.ledger.get("parameters")),
        "errors": ERRORS,
        "stages": [_stage(work, stage) for stage in work.stages],
        "table": score_table(work, scores),
        "confirmation": work.ledger["recoveries"],
        "chart": score_chart(work, scores),
        "lineage": [_lineage(work, stage) for stage in work.stages],
    }


def model_line(config: dict[str, Any], parameters: int | None = None) -> str:
    """Returns the model's size in words; the config's starting folder where it has no model."""
    model = config.get("model")
    if not isinstance(model, dict):
        return f"from {config['init']}" if config.get("init") else "unknown"
    words = [f"{parameters / 1e6:,.2f}M parameters" if parameters else ""]
    words += [str(model.get("pattern") or "")]
    words += [f"{len(model['pattern'])} layers"] if model.get("pattern") else []
    words += [f"width {model['width']}"] if model.get("width") else []
    moe = model.get("moe") or {}
    if moe.get("experts"):
        words.append(f"{moe['experts']} experts, {moe.get('top_k')} a token")
    words += [f"vocabulary {model['vocab_size']}"] if model.get("vocab_size") else []
    start = config.get("init")
    words += [f"starting from {start}"] if start else []
    return " · ".join(word for word in words if word)


def beyond(change: float | None, error: float | None, errors: float = ERRORS) -> str:
    """Returns "up" or "down" when a change is more than `errors` standard errors, else ""."""
    if change is None or error is None or abs(change) <= errors * error:
        return ""
    return "up" if change > 0 else "down"


def score_table(work: Workdir, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the last scored checkpoint of each stage by domain, with the change to its parent."""
    last = _last_steps(scores)
    columns = [
        {"stage": name, "step": last[name], "parent": _parent(work, name)}
        for name in [INIT, *(stage.name for stage in work.stages)]
        if name in last
    ]
    domains = sorted({one["domain"] for one in scores})
    cells: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for one in scores:
        if one["step"] == last[one["stage"]]:
            cells[one["domain"]][one["stage"]] = _cell(work, one)
    return {"columns": columns, "domains": domains, "cells": cells}


def _cell(work: Workdir, score: dict[str, Any]) -> dict[str, Any]:
    stage, domain = score["stage"], score["domain"]
    own = {key: score.get(key) for key in ("step", "score", "standard_error", "n", "failed")}
    change: dict[str, Any] = next(
        (
            one
            for one in work.ledger["differences"]
            if (one["stage"], one["domain"]) == (stage, domain) and _is(one, "selection")
        ),
        {},
    )
    best = work.ledger["best"].get(domain) or {}
    fallen = any(
        (gate["stage"], gate["domain"], gate["verdict"]) == (stage, domain, "fallen")
        for gate in work.ledger["gates"]
    )
    return own | {
        "change": change.get("difference"),
        "change_error": change.get("standard_error"),
        "parent": change.get("parent"),
        "beyond": beyond(change.get("difference"), change.get("standard_error")),
        "best": best if best.get("stage") == stage else None,
        "fallen": fallen,
        "teaches": [
            {"stage": pupil, "step": chosen[domain]["step"]}
            for pupil, chosen in work.ledger["teachers"].items()
            if domain in chosen and chosen[domain].get("stage") == stage
        ],
    }


def score_chart(work: Workdir, scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns every scored checkpoint over the steps of the whole cascade, and the stages' borders.

    A stage's line starts at its parent's last score.
    """
    last = _last_steps(scores)
    begins, borders, at = {INIT: 0}, [], 0
    for stage in work.stages:
        length = max(stage.entry.get("step") or 0, last.get(stage.name, 0))
        if length:
            borders.append({"stage": stage.name, "from": at, "to": at + length})
        begins[stage.name] = at
        at += length
    lines: dict[str, list[dict[str, Any]]] = {}
    for one in scores:
        points = lines.setdefault(one["domain"], [])
        at = begins.get(one["stage"], 0) + one["step"]
        keys = ("stage", "step", "score", "standard_error")
        points.append({"at": at, **{key: one.get(key) for key in keys}})
    ends = {(one["stage"], one["step"], one["domain"]): one for one in scores}
    parts: dict[str, list[list[dict[str, Any]]]] = {}
    for domain, points in sorted(lines.items()):
        for name in dict.fromkeys(point["stage"] for point in points):
            part = [point for point in points if point["stage"] == name]
            parent = _parent(work, name)
            start = ends.get((parent, last.get(parent or "", 0), domain))
            if start and begins.get(name) is not None and name != INIT:
                keys = ("stage", "step", "score", "standard_error")
                part = [{"at": begins[name], **{key: start.get(key) for key in keys}}, *part]
            parts.setdefault(domain, []).append(part)
    return {"borders": borders, "lines": parts}


def sentence(work: Workdir, stage: StageFolder) -> list[list[str]]:
    """Returns what a stage did as [tone, words] pairs; tones are up, down, plain."""
    if not stage.entry:
        return [["plain", "Not started."]]
    won = [one for one in work.ledger["recoveries"] if one["stage"] == stage.name]
    if won:
        return _distilled(work, stage, won)
    if stage.entry.get("status") == "nothing fell":
        return [["plain", "Nothing fell, so there was nothing to win back."]]
    changes = [
        one
        for one in work.ledger["differences"]
        if one["stage"] == stage.name and _is(one, "selection")
    ]
    if not changes:
        scored = [
            one
            for one in work.ledger["scores"]
            if one["stage"] == stage.name and _is(one, "selection")
        ]
        said = "Scored, with no parent to compare with." if scored else "Not scored yet."
        return [["plain", said]]
    parts: list[list[str]] = [["plain", f"Against {_source(changes[0]['parent'])}: "]]
    for tone, verb in (("up", "rose"), ("down", "fell")):
        found = [one for one in changes if beyond(one["difference"], one["standard_error"]) == tone]
        if found:
            parts += [[tone, f"{verb}: {_list(found, 'difference', 'standard_error')}"]]
            parts += [["plain", "; "]]
        elif tone == "down":
            parts += [["plain", "nothing fell"], ["plain", "; "]]
    even = [
        one["domain"] for one in changes if not beyond(one["difference"], one["standard_error"])
    ]
    if even:
        parts += [["plain", f"within {ERRORS:g} errors: {_names(even)}"], ["plain", "; "]]
    return [*parts[:-1], ["plain", "."]]


def _distilled(work: Workdir, stage: StageFolder, won: list[dict[str, Any]]) -> list[list[str]]:
    fell = any(one["fallen"] for one in work.ledger["triggers"] if one["stage"] == stage.name)
    calm = "" if fell else "No domain had fallen before this stage. "
    parts: list[list[str]] = [["plain", f"{calm}On the second held-out set: "]]
    for verdict, tone, words in VERDICTS:
        found = [one for one in won if one["verdict"] == verdict]
        if verdict == "held" and found:
            parts += [[tone, f"{words}: {_names([one['domain'] for one in found])}"]]
        elif found:
            keys = TO_TEACHER if verdict == "short" else TO_PARENT
            parts += [[tone, f"{words}: {_list(found, *keys)}"]]
        elif verdict == "fell":
            parts += [["plain", "nothing fell"]]
        else:
            continue
        parts += [["plain", "; "]]
    return [*parts[:-1], ["plain", "."]]


def _stage(work: Workdir, stage: StageFolder) -> dict[str, Any]:
    trigger: dict[str, Any] = next(
        (one for one in work.ledger["triggers"] if one["stage"] == stage.name), {}
    )
    return {
        "name": stage.name,
        "kind": stage.kind,
        "status": stage.entry.get("status") or "not started",
        "parent": _parent(work, stage.name) if stage.entry else None,
        "step": stage.entry.get("step"),
        "steps": stage.config.get("steps"),
        "counters": stage.entry.get("counters") or {},
        "sentence": sentence(work, stage),
        "trigger": trigger,
    }


def _lineage(work: Workdir, stage: StageFolder) -> dict[str, Any]:
    chosen = work.ledger["teachers"].get(stage.name) or {}
    return {
        "stage": stage.name,
        "kind": stage.kind,
        "started": bool(stage.entry),
        "parent": _parent(work, stage.name),
        "step": stage.entry.get("step"),
        "teachers": [{"domain": domain, **teacher} for domain, teacher in sorted(chosen.items())],
    }


def _parent(work: Workdir, name: str) -> str | None:
    """Returns the stage a stage started from; init is the weights that the run began with."""
    names = [stage.name for stage in work.stages]
    if name not in names:
        return None
    stage = work.stages[names.index(name)]
    if stage.entry:
        return stage.entry.get("parent") or INIT
    if stage.config.get("parent"):
        return str(stage.config["parent"])
    return names[names.index(name) - 1] if names.index(name) else INIT


def _source(parent: str) -> str:
    return "the starting weights" if parent == INIT else parent


def _last_steps(scores: list[dict[str, Any]]) -> dict[str, int]:
    last: dict[str, int] = {}
    for one in scores:
        last[one["stage"]] = max(one["step"], last.get(one["stage"], 0))
    return last


def _is(entry: dict[str, Any], rows: str) -> bool:
    return (entry.get("mode"), entry.get("rows")) == ("sampled", rows)


def _list(entries: list[dict[str, Any]], value: str, error: str) -> str:
    said = []
    for one in entries:
        if one[value] is not None:
            change = f"{one[value]:+.3f}".replace("-", "−")
            paired = "" if one[error] is None else f" ± {one[error]:.3f}"
            said.append(f"{_names([one['domain']])} {change}{paired}")
    return ", ".join(said)


def _names(domains: list[str]) -> str:
    return ", ".join(domain.replace("_", " ") for domain in domains)


TO_TEACHER = ("difference", "standard_error")
TO_PARENT = ("change", "change_standard_error")

# Verdict of a MOPD stage on a domain, its tone, and how the sentence begins.
VERDICTS = (
    ("recovered", "up", "won back"),
    ("short", "down", "still below its teacher"),
    ("fell", "down", "fell"),
    ("held", "plain", "held"),
)
