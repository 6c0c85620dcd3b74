"""The update and the only loop: stages differ by what the next batch is and what the loss is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nemocascade_jax.config import RulesConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.losses import Sums
from nemocascade_jax.sharding import partition
from nemocascade_jax.state import Batch, TrainState


class Measured(NamedTuple):
    """What a loss tells beside its sum, joined over the micro-batches of a batch."""

    sums: Sums  # both parts of each added up
    largest: dict[str, jax.Array]  # of which the largest counts
    expert_load: jax.Array | None = None  # [L, E], added up; for the rule that balances the experts


# (params, batch) -> summed loss and what was measured
LossSum = Callable[[Any, Batch], tuple[jax.Array, Measured]]
# (params after the optimiser, load of the whole batch) -> params
Rebalance = Callable[[Any, jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class Collected:
    """What `collect` hands to the loop beside the batch; `batch` None means the stage is over."""

    batch: Batch | None
    metrics: Mapping[str, float | int | str]
    records: list[dict[str, Any]]  # one per sample, for rollouts/STEP.jsonl
    seconds: Mapping[str, float]


AfterStep = Callable[[int, TrainState, Collected, dict[str, jax.Array]], None]


def make_train_step(
    loss_sum: LossSum,
    tx: optax.GradientTransformation,
    microbatches: int,
    trained: Any,
    rebalance: Rebalance | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """Returns the jitted update: gradients of the summed loss, accumulated, divided once, applied.

    `rebalance` moves the experts' selection biases after the optimiser. A batch whose denominator is 0 leaves parameters and optimiser state byte-equal, and is counted
    in `progress/skipped`.
    """

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        grads, total, measured = _accumulate(loss_sum, state.params, batch, microbatches)
        skip = batch.denominator == 0
        scale = jnp.where(skip, 0.0, 1.0 / jnp.where(skip, 1.0, batch.denominator))
        grads = jax.tree.map(
            lambda grad, use: grad * scale if use else jnp.zeros_like(grad), grads, trained
        )

        def apply() -> tuple[Any, Any, jax.Array]:
            updates, opt_state = tx.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            if rebalance is not None:
                assert measured.expert_load is not None
                params = rebalance(params, measured.expert_load)
            return params, opt_state, optax.tree.norm(updates)

        params, opt_state, update_norm = jax.lax.cond(
            skip, lambda: (state.params, state.opt_state, jnp.zeros(())), apply
        )
        sums = measured.sums.items()
        metrics = {name: part / jnp.maximum(count, 1.0) for name, (part, count) in sums}
        metrics |= measured.largest | {
            "loss": total * scale,
            "optim/grad_norm": optax.tree.norm(grads),
            "optim/update_norm": update_norm,
            "progress/skipped": skip.astype(jnp.int32),
            "progress/tokens": batch.denominator,
        }
        new = TrainState(
            step=state.step + 1,
            cursor=state.cursor + batch.drawn,
            params=params,
            opt_state=opt_state,
        )
        return new, metrics

    return jax.jit(train_step, donate_argnums=0)


def _accumulate(loss_sum: LossSum, params: Any, batch: Batch, microbatches: int) -> tuple:
    """Sums loss, gradients and metrics over `microbatches` equal slices of the batch's rows."""
    grad = jax.value_and_grad(loss_sum, has_aux=True)

    def one(part: Batch) -> tuple:
        (total, measured), grads = grad(params, part)
        return grads, total, measured

    if microbatches == 1:
        return one(batch)
    arrays = {
        field.name: value
        for field in dataclasses.fields(batch)
        if (value := getattr(batch, field.name)) is not None and value.ndim
    }
    parts = {
        name: value.reshape(microbatches, value.shape[0] // microbatches, *value.shape[1:])
        for name, value in arrays.items()
    }

    def body(carry: tuple, part: dict[str, jax.Array]) -> tuple[tuple, None]:
        return _joined(carry, one(dataclasses.replace(batch, **part))), None

    shapes = jax.eval_shape(
        one, dataclasses.replace(batch, **{name: value[0] for name, value in parts.items()})
    )
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    lowest = {name: jnp.full_like(leaf, -jnp.inf) for name, leaf in start[2].largest.items()}
    carry, _ = jax.lax.scan(body, (*start[:2], start[2]._replace(largest=lowest)), parts)
    return carry


def _joined(old: tuple, new: tuple) -> tuple:
    """Adds the gradients, totals and measurements of two micro-batches, or takes the larger."""
    grads, total, measured = jax.tree.map(jnp.add, old, new)
    largest = jax.tree.map(jnp.maximum, old[2].largest, new[2].largest)
    return grads, total, measured._replace(largest=largest)


def fit(
    state: TrainState,
    collect: Callable[[TrainState], Collected],
    train_step: Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]],
    steps: int,
    after_step: AfterStep,
) -> TrainState:
    """Runs updates until `steps`, or until `collect` says that the stage is over.

    `collect(state)` gives the next batch with its metrics; `after_step` logs, saves and may stop.
    """
    for step in range(int(state.step), steps):
        collected = collect(state)
        if collected.batch is None:
            after_step(step, state, collected, {})
            return state
        state, metrics = train_step(state, collected.batch)
        after_step(step + 1, state, collected, metrics)
    return state


def refuse_non_finite(step: int, metrics: dict[str, float]) -> None:
    """Raises for a NaN or infinite metric, naming it, before anything of that step is saved."""
    bad = sorted(name for name, value in metrics.items() if not jnp.isfinite(value))
    if bad:
        raise InputError(
            f"step {step}: {', '.join(bad)} is not finite; the last good checkpoint is untouched: "
            "lower optim.lr or look at the rows of this step in rollouts/"
        )


def load_metrics(expert_load: Any) -> dict[str, jax.Array]:
    """Returns the largest share of tokens on one expert, times the number of experts (1 = balanced)."""
    if expert_load.shape[0] == 0:
        return {}
    share = expert_load.max(axis=1) / jnp.maximum(expert_load.sum(axis=1), 1.0)
    return {"moe/load_max": share.max() * expert_load.shape[1]}


def put_state(state: TrainState, params: Any) -> TrainState:
    """Returns the state with its loose scalars on the mesh of `params`."""
    devices = jax.tree.leaves(params)[0].sharding
    if not isinstance(devices, NamedSharding):
        return state
    everywhere = NamedSharding(devices.mesh, PartitionSpec())
    return jax.tree.map(
        lambda x: x if isinstance(x.sharding, NamedSharding) else jax.device_put(x, everywhere),
        state,
    )


def put_batch(batch: Batch, mesh: Mesh, rules: RulesConfig) -> Batch:
    """Returns the batch on the mesh: rows over the batch axes, scalars everywhere."""
    rows = NamedSharding(mesh, partition(("batch", "seq"), rules))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: jax.device_put(x, rows if jnp.ndim(x) else everywhere), batch)
