"""What happens after each step of a stage: log, save when due, score what was saved, stop when asked."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nemocascade_jax.errors import InputError, Stopped
from nemocascade_jax.formats.checkpoint import Checkpoints
from nemocascade_jax.metrics import StageLog
from nemocascade_jax.optim import learning_rate
from nemocascade_jax.state import HostState, TrainState
from nemocascade_jax.train import Collected, refuse_non_finite


@dataclasses.dataclass(frozen=True)
class Console:
    """How a run speaks to a person and hears that it is to stop."""

    say: Callable[[str], None]
    progress: Callable[[str, int, int, dict[str, float]], None]  # stage, step, steps, metrics
    stop_signal: Callable[[], int | None]


class Watcher:
    """Logs every step of a stage, saves when due, and stops on a signal."""

    def __init__(
        self,
        name: str,
        config: Any,
        *,
        console: Console,
        log: StageLog,
        checkpoints: Checkpoints,
        files: dict[str, bytes],
        counters: dict[str, int],
        score: Callable[[int, Any], None],
    ):
        """`score(step, params)` scores a checkpoint that is not the stage's last, once it is on disk."""
        self.name, self.config, self.console = name, config, console
        self.log, self.checkpoints, self.counters = log, checkpoints, counters
        self.files, self.score = files, score
        self.ended: str | None = None
        self.saved: int | None = checkpoints.latest()
        self.rate = learning_rate(config.optim, config.steps)
        self.began = time.perf_counter()

    def after_step(
        self, step: int, state: TrainState, collected: Collected, device: dict[str, jax.Array]
    ) -> None:
        values = {key: _number(value) for key, value in jax.device_get(device).items()}
        self._refuse(step, values)
        now = time.perf_counter()
        seconds = {**collected.seconds, "time/step_s": now - self.began}
        self.began = now
        line = {
            "progress/step": step,
            "progress/stage": self.name,
            "progress/cursor": int(state.cursor),
        }
        if collected.batch is None:
            self.ended = str(collected.metrics.get("progress/ended", "over"))
        else:
            line["optim/lr"] = float(self.rate(step - 1))
            skipped = self.counters.get("skipped_updates", 0) + int(values["progress/skipped"])
            self.counters["skipped_updates"] = line["progress/skipped_updates"] = skipped
            for key in ("rollout/dropped_prompts", "data/dropped", "data/empty"):
                if key in collected.metrics:
                    short = key.split("/")[1]
                    self.counters[short] = self.counters.get(short, 0) + int(collected.metrics[key])
        if collected.records:
            number = step if collected.batch is not None else step + 1
            self.log.write_rollouts(number, collected.records, self.config.rollouts_keep)
        self.log.write(step, {**line, **collected.metrics, **values}, seconds)
        self.console.progress(self.name, step, self.config.steps, {**values, **_numbers(collected)})
        stop = self.console.stop_signal()
        due = step % self.config.checkpoint.every_steps == 0
        if collected.batch is not None and (due or step == self.config.steps or stop):
            self.save(step, state)
        if stop:
            self.checkpoints.wait()
            raise Stopped(stop)
        if collected.batch is not None and due and step < self.config.steps:
            self.score(step, state.params)
            self.began = time.perf_counter()

    def _refuse(self, step: int, values: dict[str, float]) -> None:
        refuse_non_finite(step, values)
        limit = getattr(self.config, "max_sampler_gap", None)
        gap = values.get("policy/sampler_gap", 0.0)
        if limit is not None and gap > limit:
            raise InputError(
                f"stage {self.name}, step {step}: sampler and trainer log-probs differ by {gap:.2e}, "
                f"max_sampler_gap is {limit:.0e}: they do not compute the same policy; nothing of this "
                "step is saved"
            )

    def save(self, step: int, state: TrainState) -> None:
        """Saves the state of `step`, once; the logs' lengths go with it."""
        if self.saved == step:
            return
        host = HostState(self.name, step, self.log.sizes(), dict(self.counters))
        self.checkpoints.save(state, host, self.files)
        self.saved = step


def _number(value: Any) -> float | int:
    array = np.asarray(value)
    return int(array) if np.issubdtype(array.dtype, np.integer) else float(array)


def _numbers(collected: Collected) -> dict[str, float]:
    return {key: value for key, value in collected.metrics.items() if not isinstance(value, str)}
