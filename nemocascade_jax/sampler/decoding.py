"""The two compiled programs of sampling: start (prefill, fork, first token) and a decoding loop."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.models import hybrid
from nemocascade_jax.sampler import sampling as distribution
from nemocascade_jax.sharding import Params, Shard


class Rows(NamedTuple):
    """What a device batch starts from: Q prompts, and B rows that each continue one of them."""

    tokens: Int[Array, "Q T"]
    lengths: Int[Array, "Q"]
    prompt: Int[Array, "B"]
    draw: Int[Array, "B"]
    sample: Int[Array, "B"]
    live: Bool[Array, "B"]  # the others fill the batch up


class State(NamedTuple):
    """The decoding loop's carry; `drawn` tokens of each row that still runs are in `tokens`."""

    cache: hybrid.Cache
    keys: Key[Array, "B"]
    drawn: Int[Array, ""]
    done: Bool[Array, "B"]
    length: Int[Array, "B"]
    tokens: Int[Array, "B N"]
    logprobs: Float[Array, "B N"]
    margins: Float[Array, "B N"]


class Drawing(NamedTuple):
    """The keywords of `sampling.process_logits`; hashable, so that equal ones share a program."""

    temperature: float
    top_k: int | None
    top_p: float
    vocab_limit: int


@functools.lru_cache(maxsize=16)
def decoding_programs(
    model: ModelConfig, drawing: Drawing, stop_ids: tuple[int, ...], shard: Shard, new: int
) -> tuple[Callable[..., State], Callable[..., State]]:
    """Returns `start` (prefill, fork, first token) and `advance` (a device-side decoding loop)."""

    def emit(
        params: Params, state: State, hidden: Float[Array, "B D"], margin: Float[Array, "B"]
    ) -> State:
        logits = hybrid.logits(params, hidden, model)
        logprobs = distribution.process_logits(logits, **drawing._asdict())
        if drawing.temperature == 0:
            token = distribution.greedy(logprobs)
        else:
            fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
            token = distribution.draw(logprobs, fold(state.keys, state.drawn))
        chosen = jnp.take_along_axis(logprobs, token[:, None], axis=1)[:, 0]
        ends = jnp.zeros_like(state.done)
        for stop in stop_ids:
            ends |= token == stop

        def put(buffer: Array, column: Array) -> Array:
            column = jnp.where(state.done, jnp.zeros_like(column), column)
            return jax.lax.dynamic_update_slice(buffer, column[:, None], (0, state.drawn))

        return state._replace(
            drawn=state.drawn + 1,
            done=state.done | ends,
            length=state.length + ~state.done,
            tokens=put(state.tokens, token),
            logprobs=put(state.logprobs, chosen),
            margins=put(state.margins, margin),
        )

    @jax.jit
    def start(params: Params, rows: Rows, base_key: Key[Array, ""]) -> State:
        hidden, cache, aux = hybrid.prefill(
            params, rows.tokens, rows.lengths, model, shard, max_len=rows.tokens.shape[1] + new
        )
        last = jnp.take_along_axis(aux.router_margin, rows.lengths[:, None] - 1, axis=1)[:, 0]
        state = State(
            cache=hybrid.fork_cache(cache, rows.prompt),
            keys=distribution.row_keys(base_key, rows.draw, rows.sample),
            drawn=jnp.int32(0),
            done=~rows.live,
            length=jnp.zeros(rows.live.shape, jnp.int32),
            tokens=jnp.zeros((rows.live.size, new), jnp.int32),
            logprobs=jnp.zeros((rows.live.size, new), jnp.float32),
            margins=jnp.zeros((rows.live.size, new), jnp.float32),
        )
        return emit(params, state, hidden[rows.prompt], last[rows.prompt])

    def advance(
        params: Params, state: State, until: Int[Array, ""], ended: Bool[Array, "B"]
    ) -> State:
        def running(state: State) -> Bool[Array, ""]:
            return (state.drawn < until) & ~jnp.all(state.done)

        def step(state: State) -> State:
            token = jax.lax.dynamic_slice_in_dim(state.tokens, state.drawn - 1, 1, axis=1)[:, 0]
            hidden, cache, aux = hybrid.decode_step(
                params, token, state.cache, model, shard, active=~state.done
            )
            margin = aux.router_margin.reshape(token.shape)
            return emit(params, state._replace(cache=cache), hidden, margin)

        return jax.lax.while_loop(running, step, state._replace(done=state.done | ended))

    return start, jax.jit(advance, donate_argnums=1)
