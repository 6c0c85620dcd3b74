"""Which rollouts go into the page: whole groups of steps spread over a stage, within a size."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from nemocascade_jax.data.tokenizer import Tokenizer, load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.report.workdir import ROLLOUT_BYTES, StageFolder, Workdir

SPREAD = 8  # steps that share a stage's size when not everything fits


def choose(work: Workdir, limit: int) -> dict[str, Any]:
    """Returns the groups to embed, at most `limit` bytes of JSON, and what share they are."""
    folders = [stage for stage in work.stages if stage.rollout_files()]
    groups: list[dict[str, Any]] = []
    shares = []
    left = limit
    for index, stage in enumerate(folders):
        # What an earlier stage did not use goes to the later ones.
        taken, share, used = _of_stage(work, stage, left // (len(folders) - index))
        groups += taken
        left -= used
        shares.append(share)
    return {
        "limit_mb": limit / 1e6,
        "shares": shares,
        "groups": groups,
        "pieces": _pieces(work, groups),
    }


def spread(count: int) -> list[int]:
    """Returns 0..count-1, ends first, then the middles of ever smaller gaps."""
    if count <= 2:
        return list(range(count))
    order, gaps = [0, count - 1], [(0, count - 1)]
    while gaps:
        halves = []
        for low, high in gaps:
            if high - low > 1:
                middle = (low + high) // 2
                order.append(middle)
                halves += [(low, middle), (middle, high)]
        gaps = halves
    return order


def _of_stage(
    work: Workdir, stage: StageFolder, limit: int
) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
    """Returns a stage's chosen groups in order, the share they are, and their size in bytes."""
    files = stage.rollout_files()
    steps = list(files)
    each = limit // max(1, min(SPREAD, len(steps)))
    taken: list[dict[str, Any]] = []
    used = samples = embedded = 0
    opened, cut = 0, False
    for index in spread(len(steps)):
        room = min(each, limit - used)
        if room < limit // (4 * SPREAD):
            break  # what is left holds too little of a step
        opened += 1
        path = files[steps[index]]
        groups = list(_groups(stage.name, work.lines(path, ROLLOUT_BYTES)))
        if path.stat().st_size > ROLLOUT_BYTES:
            cut = True
            groups = groups[:-1]  # it may lack samples
        samples += sum(len(group["samples"]) for group in groups)
        for place in spread(len(groups)):
            group, size = _fit(groups[place], room)
            if group is not None:
                taken.append(group)
                embedded += len(group["samples"])
                used, room = used + size, room - size
    taken.sort(key=lambda group: (group["step"], group["group"]))
    share = {
        "stage": stage.name,
        "steps": len(steps),
        "opened": opened,
        "shown": len({group["step"] for group in taken}),
        "samples": samples,
        "embedded": embedded,
        "bytes": used,
        "cut": ROLLOUT_BYTES >> 20 if cut else 0,
        "files": f"{work.inside(stage.folder)}/rollouts/STEP.jsonl",
    }
    return taken, share, used


def _fit(group: dict[str, Any], room: int) -> tuple[dict[str, Any] | None, int]:
    """Returns the group as it fits: whole, without its per-token lists, or not at all."""
    size = _size(group)
    if size <= room:
        return group, size
    bare = {
        **{key: value for key, value in group.items() if key not in PER_TOKEN},
        "samples": [
            {key: value for key, value in sample.items() if key not in PER_TOKEN}
            for sample in group["samples"]
        ],
        "bare": True,
    }
    size = _size(bare)
    return (bare, size) if size <= room else (None, 0)


def _size(group: dict[str, Any]) -> int:
    """Returns the bytes that the group takes in the page, its comma included."""
    text = json.dumps(group, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode("utf-8", "surrogatepass")) + 5 * text.count("<") + 1


def _groups(stage: str, records: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Yields the groups of one step; prompts that were dropped have no sample and are left out."""
    groups: dict[int, dict[str, Any]] = {}
    for record in records:
        number = record.get("group")
        if not isinstance(number, int):
            continue
        if number not in groups:
            groups[number] = {
                "stage": stage,
                "step": record.get("step", 0),
                "group": number,
                **{key: record[key] for key in OF_GROUP if record.get(key) is not None},
            }
            groups[number]["samples"] = []
        groups[number]["samples"].append(_sample(record))
    return groups.values()


def _sample(record: dict[str, Any]) -> dict[str, Any]:
    tokens = record.get("completion_tokens") or []
    short: dict[str, Any] = {key: record.get(key) for key in OF_SAMPLE}
    short["length"] = len(tokens)
    if tokens:
        short["tokens"] = tokens
    for name in ("logprobs", "teacher_logprobs"):
        values = record.get(name)
        if isinstance(values, list) and values:
            short[name] = [
                round(value, 4) if isinstance(value, int | float) and value - value == 0 else None
                for value in values
            ]
    return short


def _pieces(work: Workdir, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the text of each token id in use; a list of bytes where they are no whole character.

    Special tokens are listed apart. Without the run's own tokenizer the page shows ids.
    """
    used = {token for group in groups for token in group.get("prompt_tokens", ())}
    used |= {token for g in groups for sample in g["samples"] for token in sample.get("tokens", ())}
    tokenizer = _tokenizer(work, groups) if used else None
    if tokenizer is None:
        return {"text": {}, "special": []}
    names = {number: special for special, number in tokenizer.specials.items()}
    text: dict[str, Any] = {}
    for token in sorted(token for token in used if isinstance(token, int)):
        raw = tokenizer.table[token] if 0 <= token < len(tokenizer.table) else None
        if token in names:
            text[str(token)] = names[token]
        elif raw is not None:
            try:
                text[str(token)] = raw.decode("utf-8")
            except UnicodeDecodeError:
                text[str(token)] = list(raw)
    return {"text": text, "special": sorted(used & set(names))}


def _tokenizer(work: Workdir, groups: list[dict[str, Any]]) -> Tokenizer | None:
    """Returns the tokenizer that the run used: of a checkpoint, else the one its config names.

    A tokenizer may have changed since the run, so one that does not read the recorded prompts out
    of their tokens is not used.
    """
    folders = [path for stage in work.stages for path in sorted(stage.folder.glob(IN_CHECKPOINT))]
    names = [str(folder) for folder in folders[:1]]
    names += [work.config["tokenizer"]] if isinstance(work.config.get("tokenizer"), str) else []
    fault = "neither a checkpoint nor config.json names one"
    for name in names:
        try:
            tokenizer = load_tokenizer(name)
            if _reads(tokenizer, groups):
                return tokenizer
            fault = "the one at hand does not give the recorded prompts; it changed since the run"
        except (InputError, OSError) as error:
            fault = " ".join(str(error).split())
    work.note(f"rollouts: shown as words, not tokens, without the run's tokenizer ({fault})")
    return None


def _reads(tokenizer: Tokenizer, groups: list[dict[str, Any]]) -> bool:
    """Returns whether the recorded prompts are in the text of their tokens, of most groups tried."""
    tried = [group for group in groups if group.get("prompt") and group.get("prompt_tokens")][:32]
    found = sum(
        str(group["prompt"]).strip() in tokenizer.decode(group["prompt_tokens"])
        for group in tried
        if max(group["prompt_tokens"]) < tokenizer.size
    )
    return 2 * found >= len(tried)


IN_CHECKPOINT = "checkpoints/*/model"
PER_TOKEN = ("prompt_tokens", "tokens", "logprobs", "teacher_logprobs")
OF_GROUP = (
    "domain",
    "agent",
    "id",
    "where",
    "draw",
    "used",
    "teacher",
    "prompt",
    "prompt_tokens",
    "weights",
)
OF_SAMPLE = (
    "sample",
    "completion",
    "reward",
    "status",
    "reason",
    "parts",
    "advantage",
    "finish_reason",
    "stop",
)
