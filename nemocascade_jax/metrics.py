"""Logs of a stage: one JSON object a line, cut back exactly on resume; TensorBoard beside; no jax."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from tensorboardX import SummaryWriter

# Every metric that a run logs, with what it means; a test compares this table with real runs.
MEANING = {
    "progress/step": "updates done in the stage",
    "progress/stage": "name of the stage",
    "progress/cursor": "examples drawn from the stage's stream",
    "progress/tokens": "valid tokens the loss was divided by",
    "progress/skipped": "1 when the batch had no valid token and no update was made",
    "progress/skipped_updates": "updates skipped so far in the stage",
    "progress/ended": "why the stage ended before its last step",
    "loss": "summed loss over valid tokens of the batch",
    "data/examples": "examples in the batch",
    "data/dropped": "examples of the batch dropped as too long",
    "data/empty": "examples of the batch without a supervised token",
    "data/fill": "share of the batch's places that hold a token",
    "optim/lr": "learning rate of this update",
    "optim/grad_norm": "norm of the gradient before clipping, trained weights only",
    "optim/update_norm": "norm of the change applied to the weights",
    "policy/entropy": "mean entropy of the policy at completion tokens, nats",
    "policy/kl_ref": "mean k3 estimate of the KL divergence from the reference policy, nats",
    "policy/advantage_abs": "mean absolute advantage over valid tokens",
    "policy/sampler_gap": "largest |trainer - sampler| log-prob over completion tokens, near ties apart",
    "policy/sampler_gap_near_ties": "the same over tokens after a router or nucleus near tie",
    "policy/near_tie_frac": "share of completion tokens counted apart for a near tie",
    "mopd/reverse_kl": "mean over answers of the mean log-ratio student / teacher, nats",
    "mopd/advantage_abs": "mean absolute log-ratio of teacher and student over answer tokens",
    "mopd/dropped_frac": "share of answer tokens whose trainer/sampler ratio is outside the band",
    "reward/mean": "mean reward over valid samples of every group drawn in the step",
    "reward/std": "mean deviation within groups drawn in the step",
    "reward/used_mean": "mean reward over the samples of the update",
    "rollout/length_mean": "mean tokens of a completion",
    "rollout/truncated_frac": "share of completions cut at max_completion_tokens",
    "rollout/kept_groups": "groups in the update",
    "rollout/filtered_groups": "groups dropped because all rewards were equal",
    "rollout/surplus_groups": "usable groups beyond those the update needed",
    "rollout/dropped_prompts": "prompts longer than max_prompt_tokens",
    "rollout/failed_frac": "share of samples whose grader failed or timed out",
    "rollout/batches": "generation batches the step took",
    "rollout/samples": "completions drawn in the step",
    "moe/balance_loss": "sequence-level balance loss, summed over MoE layers: each 1 when balanced",
    "moe/load_max": "largest share of tokens on one expert, times the number of experts",
}


# Names that end in a domain, by what stands before it.
MEANING_BY_DOMAIN = {
    "reward/": "mean reward over valid samples of the domain",
    "mopd/reverse_kl/": "mopd/reverse_kl of the domain's answers, on the sampler's log-probs",
}


class StageLog:
    """The open logs of one stage folder."""

    def __init__(self, folder: pathlib.Path, resumed_at: int, log_bytes: Mapping[str, int]):
        """Opens the logs; whatever lies beyond `log_bytes` came after the restored step and is cut."""
        self.folder = folder
        (folder / "rollouts").mkdir(parents=True, exist_ok=True)
        for name in ("metrics.jsonl", "timing.jsonl"):
            path = folder / name
            path.touch()
            os.truncate(path, min(path.stat().st_size, log_bytes.get(name, 0)))
        for path in (folder / "rollouts").iterdir():
            if path.suffix != ".jsonl" or int(path.stem) > resumed_at:
                path.unlink()
        self._board = SummaryWriter(str(folder), purge_step=resumed_at + 1 if resumed_at else None)

    def sizes(self) -> dict[str, int]:
        """Returns the length of each log, to be stored in the checkpoint of the same step."""
        return {
            name: (self.folder / name).stat().st_size for name in ("metrics.jsonl", "timing.jsonl")
        }

    def write(self, step: int, metrics: Mapping[str, Any], seconds: Mapping[str, float]) -> None:
        """Appends one line of metrics and one of times."""
        append_line(self.folder / "metrics.jsonl", metrics)
        append_line(self.folder / "timing.jsonl", {"progress/step": step, **seconds})
        for name, value in {**metrics, **seconds}.items():
            if isinstance(value, int | float):
                self._board.add_scalar(name, value, step)

    def write_rollouts(
        self, step: int, records: Iterable[Mapping[str, Any]], keep: str | int
    ) -> None:
        """Writes the samples of a step whole, and drops steps beyond `keep`."""
        if keep == "none":
            return
        write_lines(self.folder / "rollouts" / f"{step}.jsonl", records)
        if isinstance(keep, int):
            (self.folder / "rollouts" / f"{step - keep}.jsonl").unlink(missing_ok=True)

    def close(self) -> None:
        self._board.close()


def to_line(record: Mapping[str, Any]) -> str:
    """Returns one JSON line; strict JSON, keys in the order given."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def append_line(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(to_line(record))


def write_lines(path: pathlib.Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes a JSON Lines file whole or not at all."""
    write_text(path, "".join(to_line(record) for record in records))


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a file whole or not at all: under a temporary name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
