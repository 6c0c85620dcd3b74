"""Runs the stages of a cascade in order, each from its parent, and picks up where a run was stopped."""

from __future__ import annotations

import dataclasses
import pathlib
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nemocascade_jax import metrics as logs
from nemocascade_jax.cascade.inputs import Inputs
from nemocascade_jax.cascade.ledger import Ledger, open_ledger
from nemocascade_jax.config import RunConfig
from nemocascade_jax.data.batches import make_stream
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.errors import InputError, Stopped
from nemocascade_jax.evaluate import Evaluation, make_evaluate
from nemocascade_jax.formats.checkpoint import Checkpoints, load_params, model_files
from nemocascade_jax.formats.model_folder import load_model
from nemocascade_jax.models.hybrid import model_specs
from nemocascade_jax.optim import learning_rate, make_optimizer
from nemocascade_jax.sharding import init_params, make_mesh, make_shard, param_shardings
from nemocascade_jax.stages.grpo import grpo
from nemocascade_jax.stages.handles import Grade, StageIO
from nemocascade_jax.stages.sft import sft
from nemocascade_jax.state import HostState, TrainState, fresh_state
from nemocascade_jax.train import AfterStep, Collected, put_state, refuse_non_finite

STAGES: dict[str, Callable[[TrainState, Any, StageIO], TrainState]] = {"sft": sft, "grpo": grpo}


@dataclasses.dataclass(frozen=True)
class Console:
    """How a run speaks to a person and hears that it is to stop."""

    say: Callable[[str], None]
    progress: Callable[[str, int, int, dict[str, float]], None]  # stage, step, steps, metrics
    stop_signal: Callable[[], int | None]


def stage_folder(workdir: pathlib.Path, order: tuple[str, ...], name: str) -> pathlib.Path:
    """Returns NN_stage, numbered from 1 in the order of the cascade."""
    return workdir / f"{order.index(name) + 1:02d}_{name}"


def run_cascade(
    run: RunConfig, workdir: pathlib.Path, inputs: Inputs, *, grade: Grade, console: Console
) -> Ledger:
    """Runs every stage that the ledger does not call finished; returns the ledger."""
    house = House(run, workdir, inputs, grade, console)
    ledger = open_ledger(workdir, run.order)
    evaluations: dict[str, list[Evaluation]] = {}
    for index, name in enumerate(run.order):
        parent = run.stages[name].parent or (run.order[index - 1] if index else None)  # type: ignore[attr-defined]
        if ledger.stage(name).get("status", "running") != "running":
            console.say(f"{name}: already {ledger.stage(name)['status']}")
            continue
        state = house.run_stage(name, parent, ledger)
        before = parent or run.init
        if before != "scratch" and before not in evaluations:
            evaluations[before] = house.evaluate(house.params_of(parent, ledger))
        evaluations[name] = house.record(name, state, ledger, (before, evaluations.get(before)))
    return ledger


class House:
    """What all stages of one run share: model, mesh, tokenizer, evaluation."""

    def __init__(
        self, run: RunConfig, workdir: pathlib.Path, inputs: Inputs, grade: Grade, console: Console
    ):
        self.run, self.workdir, self.inputs = run, workdir, inputs
        self.grade, self.console = grade, console
        self.specs = model_specs(run.model)
        self.mesh = make_mesh(run.mesh)
        self.shard = make_shard(self.mesh, run.mesh.rules)
        self.shardings = param_shardings(self.specs, self.mesh, run.mesh.rules)
        self.evaluate = make_evaluate(
            run.evaluation,
            inputs.evaluation,
            model=run.model,
            shard=self.shard,
            tokenizer=inputs.tokenizer,
            grade=grade,
        )

    def io(self, name: str, start_params: Callable[[], Any], after_step: AfterStep) -> StageIO:
        """Returns the handles of one stage."""
        own_seed = zlib.crc32(f"{self.run.seed}/{name}".encode())  # stages draw in different orders
        return StageIO(
            name=name,
            seed=self.run.seed,
            model=self.run.model,
            specs=self.specs,
            mesh=self.mesh,
            rules=self.run.mesh.rules,
            shard=self.shard,
            tokenizer=self.inputs.tokenizer,
            stream=make_stream(self.inputs.stages[name], own_seed),
            grade=self.grade,
            start_params=start_params,
            after_step=after_step,
        )

    def params_of(self, stage: str | None, ledger: Ledger) -> Any:
        """Returns the weights that a stage ended with; those of `init` for None."""
        if stage is not None:
            step = ledger.stage(stage)["step"]
            folder = stage_folder(self.workdir, self.run.order, stage) / "checkpoints" / str(step)
            return load_params(folder, self._abstract())
        return self.starting_params()

    def starting_params(self) -> Any:
        """Returns the weights that `config.init` names."""
        if self.run.init == "scratch":
            return init_params(self.specs, jax.random.key(self.run.seed), self.shardings)
        loaded = load_model(self.run.init)
        if loaded.cfg != self.run.model:
            raise InputError(
                f"config.init: {self.run.init} holds another model than config.model describes"
            )
        return jax.device_put(loaded.params, self.shardings)

    def _abstract(self) -> Any:
        shapes = jax.eval_shape(lambda: init_params(self.specs, jax.random.key(0)))
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            self.shardings,
        )

    def run_stage(self, name: str, parent: str | None, ledger: Ledger) -> TrainState:
        """Runs or resumes one stage to its end; the final state is on disk when this returns."""
        config: Any = self.run.stages[name]
        folder = stage_folder(self.workdir, self.run.order, name)
        checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint.keep)
        state, host = self._start(name, parent, ledger, checkpoints)
        log = logs.StageLog(folder, host.step, host.log_bytes)
        watcher = _Watcher(name, config, self, log, checkpoints, dict(host.counters))
        io = self.io(name, lambda: self.params_of(parent, ledger), watcher.after_step)
        try:
            state = STAGES[config.kind](state, config, io)
            watcher.save(int(state.step), state)
            checkpoints.wait()
        finally:
            log.close()
            checkpoints.close()
        self.ended, self.counters = watcher.ended, watcher.counters
        return state

    def _start(
        self, name: str, parent: str | None, ledger: Ledger, checkpoints: Checkpoints
    ) -> tuple[TrainState, HostState]:
        config: Any = self.run.stages[name]
        tx = make_optimizer(config.optim, self.specs, config.steps)
        step = checkpoints.latest()
        if step is None:
            params = self.params_of(parent, ledger)
            ledger.start(
                name,
                {"kind": config.kind, "parent": parent, "start_digest": weights_digest(params)},
            )
            state = put_state(fresh_state(params, jax.jit(tx.init)(params)), params)
            return state, HostState(name, 0, {}, {})
        abstract = self._abstract()
        like = jax.eval_shape(lambda params: fresh_state(params, tx.init(params)), abstract)
        like = _placed(like.replace(params=abstract), self.mesh)
        state, host = checkpoints.restore(step, like)
        self.console.say(f"{name}: resuming at step {step}")
        return state, host

    def record(
        self,
        name: str,
        state: TrainState,
        ledger: Ledger,
        before: tuple[str, list[Evaluation] | None],
    ) -> list[Evaluation]:
        """Scores the stage's last checkpoint and enters it in the ledger, with the change since `before`."""
        step, digest = int(state.step), weights_digest(state.params)
        found = self.evaluate(state.params)
        folder = stage_folder(self.workdir, self.run.order, name)
        logs.write_lines(
            folder / "evaluations" / f"{step}.jsonl",
            [record for one in found for record in one.records],
        )
        ledger.add_scores(name, step, digest, self.run.evaluation.seed, found)
        if before[1] is not None:
            ledger.add_differences(name, before[0], found, before[1])
        ledger.finish(
            name, step=step, status=self.ended or "done", digest=digest, counters=self.counters
        )
        for one in found:
            self.console.say(
                f"{name}: {one.domain} ({one.mode}) {one.mean:.3f} +- {one.standard_error:.3f}"
            )
        return found


class _Watcher:
    """Logs every step of a stage, saves when due, and stops on a signal."""

    def __init__(
        self,
        name: str,
        config: Any,
        house: House,
        log: logs.StageLog,
        checkpoints: Checkpoints,
        counters: dict[str, int],
    ):
        self.name, self.config, self.house = name, config, house
        self.log, self.checkpoints, self.counters = log, checkpoints, counters
        self.ended: str | None = None
        self.saved: int | None = checkpoints.latest()
        self.files = model_files(house.run.model, dict(house.inputs.tokenizer.files))
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
        self.house.console.progress(
            self.name, step, self.config.steps, {**values, **_numbers(collected)}
        )
        stop = self.house.console.stop_signal()
        if collected.batch is not None and (
            step % self.config.checkpoint.every_steps == 0 or step == self.config.steps or stop
        ):
            self.save(step, state)
        if stop:
            self.checkpoints.wait()
            raise Stopped(stop)

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


def _placed(state: Any, mesh: jax.sharding.Mesh) -> Any:
    """Gives every abstract leaf without a sharding that of its parameter, or everywhere."""
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def one(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None) or everywhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(one, state)
