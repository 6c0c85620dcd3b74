"""Runs the stages of a cascade in order, each from its parent, and picks up where a run was stopped."""

from __future__ import annotations

import pathlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from nemocascade_jax import metrics as logs
from nemocascade_jax.cascade.inputs import Inputs
from nemocascade_jax.cascade.ledger import Ledger, open_ledger
from nemocascade_jax.cascade.scores import Scores, stage_folder
from nemocascade_jax.cascade.teachers import choose_teachers, load_teachers
from nemocascade_jax.cascade.watcher import Console, Watcher
from nemocascade_jax.config import INIT, ModelConfig, MOPDConfig, RunConfig, parse_teacher
from nemocascade_jax.data.batches import make_stream
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.errors import InputError
from nemocascade_jax.evaluate import Evaluate, make_evaluate
from nemocascade_jax.formats.checkpoint import Checkpoints, load_params, model_files
from nemocascade_jax.formats.model_folder import carried_files, check_model_folder, load_model
from nemocascade_jax.models.hybrid import model_specs
from nemocascade_jax.optim import make_optimizer
from nemocascade_jax.rewards import methods
from nemocascade_jax.sharding import (
    init_params,
    make_mesh,
    make_shard,
    param_count,
    param_shardings,
)
from nemocascade_jax.stages.grpo import grpo
from nemocascade_jax.stages.handles import Grade, StageIO, Teacher
from nemocascade_jax.stages.mopd import mopd
from nemocascade_jax.stages.sft import sft
from nemocascade_jax.state import HostState, TrainState, fresh_state
from nemocascade_jax.train import AfterStep, put_state

STAGES: dict[str, Callable[[TrainState, Any, StageIO], TrainState]] = {
    "sft": sft,
    "grpo": grpo,
    "mopd": mopd,
}


def run_cascade(
    run: RunConfig, workdir: pathlib.Path, inputs: Inputs, *, grade: Grade, console: Console
) -> Ledger:
    """Runs every stage that the ledger does not call finished; returns the ledger."""
    house = House(run, workdir, inputs, grade, console)
    ledger = open_ledger(workdir, run.order)
    ledger.content["parameters"] = param_count(house.specs)
    _record_graders(ledger, workdir)
    scores = Scores(run, workdir, ledger, house.evaluate, house.params_at)
    if run.init != "scratch" and not ledger.scored(INIT, 0):
        scores.checkpoint(INIT, 0, house.starting_params(), last=True)
    for name in run.order:
        if ledger.stage(name).get("status", "running") != "running":
            console.say(f"{name}: already {ledger.stage(name)['status']}")
            continue
        house.run_stage(name, ledger, scores)
    return ledger


def _record_graders(ledger: Ledger, workdir: pathlib.Path) -> None:
    """Notes what grades where packages are optional; a run is not continued with another grader."""
    found, noted = methods(), ledger.content.setdefault("graders", methods())
    for name in found:
        if noted.get(name) != found[name]:
            raise InputError(
                f"{workdir}: {name} were graded by {noted.get(name)!r} so far and would be by "
                f"{found[name]!r} here; install what was there, or take a new --workdir"
            )


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
        self.evaluate = self.evaluate_for(run.model)
        scratch = run.init == "scratch"
        self.init = None if scratch else check_model_folder(run.init, "config.init:")
        # What a published model came with goes into every checkpoint, and out again on export.
        self.carried = {} if self.init is None else carried_files(self.init)

    def evaluate_for(self, model: ModelConfig) -> Evaluate:
        """Returns the function that scores parameters of `model` on the held-out rows."""
        return make_evaluate(
            self.run.evaluation,
            self.inputs.evaluation,
            model=model,
            shard=self.shard,
            tokenizer=self.inputs.tokenizer,
            grade=self.grade,
        )

    def io(
        self,
        name: str,
        start_params: Callable[[], Any],
        after_step: AfterStep,
        teachers: Mapping[str, Teacher] | None = None,
    ) -> StageIO:
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
            teachers=teachers,
        )

    def params_at(self, stage: str, step: int) -> Any:
        """Returns the weights of a checkpoint; those of `config.init` for "init"."""
        if stage == INIT:
            return self.starting_params()
        folder = stage_folder(self.workdir, self.run.order, stage) / "checkpoints" / str(step)
        return load_params(folder, self._abstract())

    def starting_params(self) -> Any:
        """Returns the weights that `config.init` names."""
        if self.init is None:
            return init_params(self.specs, jax.random.key(self.run.seed), self.shardings)
        return load_model(self.init._replace(cfg=self.run.model), self.shardings).params

    def _abstract(self) -> Any:
        shapes = jax.eval_shape(lambda: init_params(self.specs, jax.random.key(0)))
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            self.shardings,
        )

    def run_stage(self, name: str, ledger: Ledger, scores: Scores) -> None:
        """Runs or resumes one stage to its end; its last checkpoint is on disk and scored then."""
        config: Any = self.run.stages[name]
        folder = stage_folder(self.workdir, self.run.order, name)
        checkpoints = Checkpoints(folder / "checkpoints")
        state, host = self._start(name, ledger, scores, checkpoints)
        teachers = self._teachers(name, config, ledger, scores)

        def score(step: int, params: Any) -> None:
            checkpoints.wait()  # only what is on disk may become a domain's best
            scores.checkpoint(name, step, params, last=False)
            scores.remove_old()

        due = host.step % config.checkpoint.every_steps == 0
        if due and 0 < host.step < config.steps and not ledger.scored(name, host.step):
            score(host.step, state.params)  # stopped between saving and scoring
        log = logs.StageLog(folder, host.step, host.log_bytes)
        watcher = Watcher(
            name,
            config,
            console=self.console,
            log=log,
            checkpoints=checkpoints,
            files=model_files(self.run.model, {**self.carried, **self.inputs.tokenizer.files}),
            counters=dict(host.counters),
            score=score,
        )
        start = scores.parent(name)
        io = self.io(name, lambda: self.params_at(*start), watcher.after_step, teachers)
        try:
            state = STAGES[config.kind](state, config, io)
            watcher.save(int(state.step), state)
            checkpoints.wait()
        finally:
            log.close()
            checkpoints.close()
        self._finish(name, state, watcher, ledger, scores)

    def _teachers(
        self, name: str, config: Any, ledger: Ledger, scores: Scores
    ) -> Mapping[str, Teacher] | None:
        """Chooses, records and measures the teachers of a MOPD stage; None when nothing is to be taught."""
        if not isinstance(config, MOPDConfig):
            return None
        parent, at = scores.parent(name)
        gates = ledger.entries("gates", parent)
        fallen = [
            entry["domain"]
            for entry in gates
            if entry["verdict"] == "fallen" and entry["domain"] in config.teachers
        ]
        trigger = {"stage": name, "trigger": config.trigger, "fallen": fallen}
        ledger.set_entries("triggers", name, [trigger])
        if config.trigger == "fallen" and not fallen:
            return None
        chosen = choose_teachers(name, config, ledger)
        teachers = load_teachers(
            chosen, self.run.model, of_stage=self.params_at, of_folder=self._folder
        )
        for domain, entry in chosen.items():
            self.console.say(f"{name}: {domain} is taught by {teachers[domain].name}")
            if domain not in self.run.evaluation.domains:
                continue
            if entry["stage"] is not None:
                scores.confirm(entry["stage"], entry["step"], [domain])
            else:
                evaluate = self.evaluate_for(teachers[domain].model)
                one = scores.measure_folder(name, domain, evaluate, teachers[domain].load)
                entry |= {"score": one.mean, "standard_error": one.standard_error}
        ledger.set_teachers(name, chosen)
        scores.confirm(parent, at)
        return teachers

    def outside_teachers(self, name: str) -> Mapping[str, Teacher] | None:
        """Returns a MOPD stage's teachers when all come from folders; None for another stage."""
        config = self.run.stages[name]
        if not isinstance(config, MOPDConfig):
            return None
        found = {}
        for domain, text in config.teachers.items():
            folder = parse_teacher(text).folder
            if folder is None:
                raise InputError(
                    f"stages.{name}.teachers.{domain}: {text!r} names a checkpoint of a run, and there "
                    "is no run here; name a folder, such as STAGE/checkpoints/STEP of one"
                )
            found[domain] = Teacher(folder, *self._folder(folder))
        return found

    def _folder(self, path: str) -> tuple[ModelConfig, Callable[[], Any]]:
        """Returns the shape of a model outside the run, and how its weights come onto the mesh."""
        found = check_model_folder(path)
        shardings = param_shardings(model_specs(found.cfg), self.mesh, self.run.mesh.rules)
        return found.cfg, lambda: load_model(found, shardings).params

    def _start(
        self, name: str, ledger: Ledger, scores: Scores, checkpoints: Checkpoints
    ) -> tuple[TrainState, HostState]:
        config: Any = self.run.stages[name]
        tx = make_optimizer(config.optim, self.specs, config.steps)
        step = checkpoints.latest()
        if step is None:
            params = self.params_at(*scores.parent(name))
            entry = {"kind": config.kind, "parent": self.run.parent(name)}
            ledger.start(name, {**entry, "start_digest": weights_digest(params)})
            state = put_state(fresh_state(params, jax.jit(tx.init)(params)), params)
            return state, HostState(name, 0, {}, {})
        if not ledger.stage(name):
            raise InputError(
                f"{checkpoints.folder}: holds step {step}, but {ledger.path} knows no stage {name}; "
                "restore that file, or take a new --workdir"
            )
        abstract = self._abstract()
        like = jax.eval_shape(lambda params: fresh_state(params, tx.init(params)), abstract)
        like = _placed(like.replace(params=abstract), self.mesh)
        state, host = checkpoints.restore(step, like)
        self.console.say(f"{name}: resuming at step {step}")
        return state, host

    def _finish(
        self, name: str, state: TrainState, watcher: Watcher, ledger: Ledger, scores: Scores
    ) -> None:
        """Scores the stage's last checkpoint and enters what it changed, won and lost."""
        step = int(state.step)
        found = scores.checkpoint(name, step, state.params, last=True)
        chosen = ledger.content["teachers"].get(name)
        if chosen:
            scores.recoveries(name, step, state.params, chosen)
        scores.differences(name, step)
        scores.gates(name, step)
        ledger.finish(
            name,
            step=step,
            status=watcher.ended or "done",
            digest=weights_digest(state.params),
            counters=watcher.counters,
        )
        scores.remove_old()
        for one in found:
            self.console.say(
                f"{name}: {one.domain} ({one.mode}) {one.mean:.3f} +- {one.standard_error:.3f}"
            )


def _placed(state: Any, mesh: jax.sharding.Mesh) -> Any:
    """Gives every abstract leaf without a sharding that of its parameter, or everywhere."""
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def one(leaf: Any) -> Any:
        sharding = getattr(leaf, "sharding", None) or everywhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(one, state)
