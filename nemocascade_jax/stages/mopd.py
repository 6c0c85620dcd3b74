"""MOPD: answers of the student, scored token by token by the teacher of their domain (paper 3)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nemocascade_jax import losses, rollout
from nemocascade_jax.config import MOPDConfig
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.rewards import reward_for
from nemocascade_jax.rollout import Group, Packed
from nemocascade_jax.sampler.sampling import sample_key
from nemocascade_jax.sampler.scoring import make_scorer
from nemocascade_jax.stages.draw import dropped_records, group_metrics, make_draw
from nemocascade_jax.stages.handles import StageIO, Teacher
from nemocascade_jax.stages.updates import make_sampled_loss, run_updates
from nemocascade_jax.state import Batch, TrainState
from nemocascade_jax.train import Collected, LossSum, put_batch


def mopd(state: TrainState, config: MOPDConfig, io: StageIO) -> TrainState:
    """Returns the state after `config.steps` updates towards the teachers of `io.teachers`."""
    return run_updates(
        state,
        config,
        io,
        collect=make_collect(config, io),
        loss_sum=make_loss_sum(config, io),
    )


def make_loss_sum(config: MOPDConfig, io: StageIO) -> LossSum:
    """Returns the summed distillation loss with its metrics."""
    band = (config.ratio_low, config.ratio_high)
    return make_sampled_loss(
        config, io, lambda logprobs, batch: losses.distillation_sum(logprobs, batch, band)
    )


def make_collect(config: MOPDConfig, io: StageIO) -> Callable[[TrainState], Collected]:
    """Returns the function that draws, samples, and asks each prompt's own teacher."""
    draw = make_draw(config, io)
    ask = _make_ask(config, io)

    def collect(state: TrainState) -> Collected:
        if io.teachers is None:
            return Collected(None, {"progress/ended": "nothing fell"}, [], {})
        step, digest = int(state.step), weights_digest(state.params)
        seconds = {"time/rollout_s": 0.0, "time/reward_s": 0.0}
        key = sample_key(io.seed, io.name, step)
        first = int(state.cursor)
        groups, dropped, cursor = draw(state.params, first, key, seconds)
        domains = [reward_for(group.row).domain for group in groups]
        batch, packed = rollout.distillation_batch(
            groups, config, drawn=cursor - first, blocks=_blocks(domains, io.teachers)
        )
        began = time.perf_counter()
        given = ask(batch, packed, domains)
        seconds["time/teacher_s"] = time.perf_counter() - began
        graded = rollout.to_arrays(groups, "keep")
        failed = 1.0 - float(graded.keep.mean())
        fates = ["update"] * len(groups)
        metrics = group_metrics(groups, graded, fates, 1, failed, len(dropped))
        metrics |= _reverse_kl(groups, packed, given, domains)
        records = rollout.records(
            step + 1, groups, graded, fates, advantages=[None] * len(groups), digest=digest
        )
        for record in records:
            row, answer = packed.places[record["group"], record["sample"]]
            record["teacher"] = io.teachers[record["domain"]].name
            record["teacher_logprobs"] = [float(value) for value in given[row, answer]]
        with_teachers: Any = dataclasses.replace(batch, teacher_logprobs=given)  # type: ignore[arg-type]
        batch = put_batch(with_teachers, io.mesh, io.rules)
        return Collected(batch, metrics, dropped_records(step + 1, dropped) + records, seconds)

    return collect


def _blocks(domains: Sequence[str], teachers: Mapping[str, Teacher]) -> list[list[int]]:
    """Returns the groups of each distinct teacher, in the order of `_distinct`."""
    return [
        [index for index, domain in enumerate(domains) if teachers[domain].name == name]
        for name in _distinct(teachers)
    ]


def _distinct(teachers: Mapping[str, Teacher]) -> dict[str, Teacher]:
    """Returns the teachers by name: one that teaches several domains is there, and loaded, once."""
    return {teacher.name: teacher for _, teacher in sorted(teachers.items())}


def _make_ask(config: MOPDConfig, io: StageIO) -> Callable[[Batch, Packed, Any], np.ndarray]:
    """Returns the function that gives the teachers' log-probs B T of a packed batch.

    Each teacher scores its own rows, `teacher_rows` at a time, so that only one program is compiled
    and only one teacher's weights need to be on the devices.
    """
    if io.teachers is None:
        return lambda *_: np.zeros(0, np.float32)
    teachers = _distinct(io.teachers)
    hold = {name: _hold(teacher, config.teacher_memory) for name, teacher in teachers.items()}
    score: dict[str, Callable[[Any, Batch], jax.Array]] = {}
    for name, teacher in teachers.items():
        scorer = make_scorer(teacher.model, io.shard, config.sampling, io.tokenizer.size)
        same = next((known for known in score if teachers[known].model == teacher.model), None)
        score[name] = score[same] if same else _jitted(scorer)
    size = config.teacher_rows

    def ask(batch: Batch, packed: Packed, domains: Any) -> np.ndarray:
        out = np.zeros(batch.tokens.shape, np.float32)
        for (name, params), rows in zip(hold.items(), packed.blocks, strict=True):
            weights = params() if len(rows) else None
            for start in range(rows.start, rows.stop, size):
                taken = np.arange(start, min(start + size, rows.stop))
                part = put_batch(_rows(batch, taken, size), io.mesh, io.rules)
                out[taken] = np.asarray(score[name](weights, part))[: len(taken)]
        return np.where(batch.completion_mask, out, np.float32(0))

    return ask


def _jitted(scorer: Callable[[Any, Batch], Any]) -> Callable[[Any, Batch], jax.Array]:
    return jax.jit(lambda params, batch: scorer(params, batch).logprobs)


def _hold(teacher: Teacher, memory: str) -> Callable[[], Any]:
    """Returns the function that gives a teacher's weights on the devices.

    "device" keeps them there, "host" in host memory, "disk" reads them at every step.
    """
    if memory == "disk":
        return teacher.load
    params = teacher.load()
    if memory == "device":
        return lambda: params
    on_device = jax.tree.map(lambda leaf: leaf.sharding, params)
    in_host = jax.tree.map(lambda sharding: sharding.with_memory_kind("pinned_host"), on_device)
    parked = jax.device_put(params, in_host)
    return lambda: jax.device_put(parked, on_device)


def _rows(batch: Batch, taken: np.ndarray, size: int) -> Batch:
    """Returns `size` rows: those taken, then the last one again, whose result nobody reads."""
    index = np.concatenate([taken, np.repeat(taken[-1:], size - len(taken))])
    arrays: dict[str, Any] = {
        field.name: getattr(batch, field.name)[index]
        for field in dataclasses.fields(batch)
        if getattr(getattr(batch, field.name), "ndim", 0) == 2
    }
    return dataclasses.replace(batch, **arrays)


def _reverse_kl(
    groups: Sequence[Group], packed: Packed, given: np.ndarray, domains: Sequence[str]
) -> dict[str, float | int | str]:
    """Returns each domain's mean over answers of the mean log-ratio student / teacher, in nats.

    On the sampler's own log-probs it is an unbiased estimate of the per-token reverse KL.
    """
    found: dict[str, list[float]] = {}
    for (g, m), (row, answer) in packed.places.items():
        student = np.asarray(groups[g].samples[m].logprobs, np.float64)
        ratio = (student - given[row, answer])[rollout.produced(groups[g].samples[m])]
        found.setdefault(domains[g], []).append(float(ratio.mean()))
    return {f"mopd/reverse_kl/{domain}": float(np.mean(found[domain])) for domain in sorted(found)}
