"""Draws completions: each prompt is prefilled once, its state forked to its group, then decoded.

A sample depends on the parameters, its prompt and its key path alone (seed, stage, step, draw index,
sample, token index), never on its neighbours, its slot or the batch it is in. Bit for bit that holds
within one compiled program; between shapes up to rounding.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Key

from nemocascade_jax.config import ModelConfig, SamplingConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.sampler.decoding import Drawing, Rows, State, decoding_programs
from nemocascade_jax.sampler.stops import Found, find_stop
from nemocascade_jax.sharding import Params, Shard

BLOCK = 16  # tokens between two looks for stop strings
SMALLEST_WIDTH = 16  # prompts are padded to this times a power of two, so that few programs compile

Report = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Sample:
    """One completion. The stop token is in `completion_tokens` and has a log-prob, but is no text.

    A stop string cuts `text` and nothing else: the token that completes it is the last one.
    `router_margin` is the smallest gap between a chosen and the next expert, a token.
    """

    completion_tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    router_margin: tuple[float, ...]
    text_tokens: tuple[int, ...]  # without a stop token; of a stop string's tokens, those before it
    text: str | None  # None without a tokenizer
    finish_reason: Literal["stop", "length"]
    stop: str | int | None  # the stop string or stop id that ended it


@runtime_checkable
class Sampler(Protocol):
    def __call__(
        self,
        params: Params,
        prompts: Sequence[Sequence[int]],
        draws: Sequence[int],
        group_size: int,
        base_key: Key[Array, ""],
        max_rows: int | None = None,
        report: Report | None = None,
    ) -> list[list[Sample]]:
        """Returns `group_size` samples a prompt; `draws` are the prompts' indices in their stage.

        `max_rows` bounds the rows decoded at a time; None decodes all at once. `report` hears after
        each such batch how many samples and completion tokens there are so far.
        """
        ...


def make_sampler(
    model: ModelConfig,
    sampling: SamplingConfig,
    shard: Shard,
    *,
    vocab_limit: int,
    stop_ids: tuple[int, ...],
    decode: Callable[[list[int]], str] | None = None,
    max_len: int | None = None,
) -> Sampler:
    """Returns the function that samples; it compiles once a shape.

    The cache holds exactly the padded prompt and `max_completion_tokens`, so generation never meets
    its end. `max_len` refuses prompts that with their completion would be longer.
    """
    if sampling.stop and decode is None:
        raise InputError(
            f"make_sampler: stop strings {list(sampling.stop)} need a tokenizer; use stop ids"
        )
    stops = () if sampling.ignore_eos else tuple(stop_ids)
    drawing = Drawing(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        vocab_limit=vocab_limit,
    )
    new = sampling.max_completion_tokens
    start, advance = decoding_programs(model, drawing, stops, shard, new)  # type: ignore[arg-type]

    def sampler(
        params: Params,
        prompts: Sequence[Sequence[int]],
        draws: Sequence[int],
        group_size: int,
        base_key: Key[Array, ""],
        max_rows: int | None = None,
        report: Report | None = None,
    ) -> list[list[Sample]]:
        _check_prompts(prompts, sampling, max_len)
        width = _width(max(map(len, prompts), default=1), sampling.max_prompt_tokens)
        groups: list[list[Sample]] = [[] for _ in prompts]
        for part in _parts(len(prompts), group_size, max_rows):
            rows = _make_rows(prompts, draws, part, width, ways=_ways(params))
            state = start(params, rows, base_key)
            found: dict[int, Found] = {}
            if sampling.stop:
                assert decode is not None
                state, found = _watch(params, state, advance, sampling, stops=stops, decode=decode)
            else:
                state = advance(params, state, new, ~rows.live)
            samples = _collect(state, found, stops, decode)
            for index, (prompt, _) in enumerate(part.rows):
                groups[prompt].append(samples[index])
            if report is not None:
                drawn = [sample for group in groups for sample in group]
                report(len(drawn), sum(len(sample.completion_tokens) for sample in drawn))
        return groups

    return sampler


class _Part(NamedTuple):
    """The (prompt, sample) pairs of one device batch, and the sizes it is filled up to."""

    rows: list[tuple[int, int]]
    prompts: int
    size: int


def _parts(prompts: int, group_size: int, max_rows: int | None) -> list[_Part]:
    """Cuts the rows into device batches of one size: whole groups, or parts of one group."""
    limit = max_rows or prompts * group_size
    together = min(max(limit // group_size, 1), prompts)  # prompts in a batch
    size = min(group_size, limit)  # samples of each
    return [
        _Part(
            [
                (prompt, sample)
                for prompt in range(first, min(first + together, prompts))
                for sample in range(begin, min(begin + size, group_size))
            ],
            together,
            together * size,
        )
        for first in range(0, prompts, together or 1)
        for begin in range(0, group_size, size)
    ]


def _make_rows(
    prompts: Sequence[Sequence[int]],
    draws: Sequence[int],
    part: _Part,
    width: int,
    *,
    ways: int,
) -> Rows:
    """Lays a part out as arrays; sizes are rounded up to what the mesh divides."""
    first = part.rows[0][0]
    held = prompts[first : part.rows[-1][0] + 1]
    count, size = _round_up(part.prompts, ways), _round_up(part.size, ways)
    tokens, lengths = np.zeros((count, width), np.int32), np.ones(count, np.int32)
    for index, prompt in enumerate(held):
        tokens[index, : len(prompt)] = prompt
        lengths[index] = len(prompt)
    filled = [*part.rows, *[part.rows[0]] * (size - len(part.rows))]
    columns = (
        tokens,
        lengths,
        np.array([prompt - first for prompt, _ in filled], np.int32),
        np.array([draws[prompt] for prompt, _ in filled], np.int32),
        np.array([sample for _, sample in filled], np.int32),
        np.arange(size) < len(part.rows),
    )
    return Rows(*map(jnp.asarray, columns))


def _watch(
    params: Params,
    state: State,
    advance: Callable[..., State],
    sampling: SamplingConfig,
    *,
    stops: tuple[int, ...],
    decode: Callable[[list[int]], str],
) -> tuple[State, dict[int, Found]]:
    """Decodes in blocks and looks for stop strings in the text between them."""
    found: dict[int, Found] = {}
    size, new = state.tokens.shape
    ended, seen = np.zeros(size, bool), np.zeros(size, np.int64)
    while True:
        length, tokens = np.asarray(state.length), np.asarray(state.tokens)
        for row in np.flatnonzero((length > seen) & ~ended):
            ids = _without_stop(tokens[row, : length[row]].tolist(), stops)
            hit = find_stop(ids, int(seen[row]), sampling.stop, decode)
            if hit is not None:
                found[int(row)], ended[row] = hit, True
        seen = length.astype(np.int64)
        drawn = int(state.drawn)
        if drawn >= new or bool(np.all(np.asarray(state.done) | ended)):
            return state, found
        state = advance(params, state, min(drawn + BLOCK, new), ended)


def _collect(
    state: State,
    found: dict[int, Found],
    stops: tuple[int, ...],
    decode: Callable[[list[int]], str] | None,
) -> list[Sample]:
    length = np.asarray(state.length)
    arrays = [np.asarray(array) for array in (state.tokens, state.logprobs, state.margins)]
    samples = []
    for row in range(len(length)):
        hit = found.get(row)
        count = hit.tokens if hit else int(length[row])
        ids, logprobs, margins = (tuple(array[row, :count].tolist()) for array in arrays)
        kept = _without_stop(list(ids), stops)
        stop: str | int | None = ids[-1] if len(kept) < len(ids) else None
        text = decode(kept) if decode else None
        if hit:
            kept, text, stop = kept[: hit.before], hit.text, hit.stop
        samples.append(
            Sample(
                completion_tokens=ids,
                logprobs=logprobs,
                router_margin=margins,
                text_tokens=tuple(kept),
                text=text,
                finish_reason="length" if stop is None else "stop",
                stop=stop,
            )
        )
    return samples


def _without_stop(ids: list[int], stops: tuple[int, ...]) -> list[int]:
    return ids[:-1] if ids and ids[-1] in stops else ids


def _check_prompts(
    prompts: Sequence[Sequence[int]], sampling: SamplingConfig, max_len: int | None
) -> None:
    new, longest = sampling.max_completion_tokens, sampling.max_prompt_tokens
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"sampler: prompt {index} has no tokens; give at least one")
        if len(prompt) > longest:
            raise InputError(
                f"sampler: prompt {index} has {len(prompt)} tokens, max_prompt_tokens is {longest}; "
                "raise it or drop the prompt"
            )
        if max_len is not None and len(prompt) + new > max_len:
            raise InputError(
                f"sampler: prompt {index} has {len(prompt)} tokens, with {new} new ones "
                f"{len(prompt) + new}, the limit is {max_len}; lower max_completion_tokens"
            )


def _width(longest: int, limit: int) -> int:
    """Returns the padded width of prompts: few different ones, never above the limit."""
    width = SMALLEST_WIDTH
    while width < longest:
        width *= 2
    return min(width, limit)


def _ways(params: Params) -> int:
    """Returns how many devices the parameters' mesh has."""
    sharding = getattr(jax.tree.leaves(params)[0], "sharding", None)
    return sharding.mesh.size if isinstance(sharding, NamedSharding) else 1


def _round_up(count: int, ways: int) -> int:
    return -(-count // ways) * ways
