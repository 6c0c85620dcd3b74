"""Scores of a checkpoint on held-out rows, with common random numbers so that differences pair up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from nemocascade_jax import rollout
from nemocascade_jax.config import EvaluationConfig, ModelConfig, SamplingConfig
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.rows.records import Row
from nemocascade_jax.sampler.engine import Sampler, make_sampler
from nemocascade_jax.sampler.sampling import sample_key
from nemocascade_jax.sharding import Shard

RowSet = Literal["selection", "confirmation"]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One checkpoint on one domain: a record a row, its reward None where the grader failed."""

    domain: str
    mode: str  # "sampled" or "greedy"
    rows: RowSet
    records: tuple[dict[str, Any], ...]

    @property
    def rewards(self) -> tuple[float | None, ...]:
        return tuple(record["reward"] for record in self.records)

    @property
    def mean(self) -> float:
        return mean_and_error(self.rewards)[0]

    @property
    def standard_error(self) -> float:
        return mean_and_error(self.rewards)[1]


def mean_and_error(values: Sequence[float | None]) -> tuple[float, float]:
    """Returns mean and standard error (sample deviation over sqrt n) of the graded rows."""
    found = np.array([value for value in values if value is not None], np.float64)
    if len(found) < 2:
        return (float(found.mean()) if len(found) else math.nan), math.nan
    return float(found.mean()), float(found.std(ddof=1) / math.sqrt(len(found)))


def paired_difference(
    after: Sequence[float | None], before: Sequence[float | None]
) -> tuple[float, float]:
    """Returns the mean difference and its standard error over rows that both graded."""
    pairs = zip(after, before, strict=True)
    return mean_and_error([a - b for a, b in pairs if a is not None and b is not None])


def from_records(records: Iterable[dict[str, Any]]) -> list[Evaluation]:
    """Returns the evaluations that a file of records holds."""
    found: dict[tuple[str, str, RowSet], list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault((record["domain"], record["mode"], record["rows"]), []).append(record)
    return [Evaluation(*about, tuple(entries)) for about, entries in found.items()]


def in_second_set(index: int, rows: int, wanted: int) -> bool:
    """Returns whether a row is one of the `wanted` that are spread evenly over all rows.

    Neighbours of a file or generator are alike, its two ends may not be.
    """
    return (index + 1) * wanted // rows > index * wanted // rows


class Evaluate(Protocol):
    """Scores parameters on the held-out rows of some domains, or of all."""

    def __call__(
        self, params: Any, which: RowSet, *, greedy: bool, domains: Collection[str] | None = None
    ) -> list[Evaluation]: ...


def make_evaluate(
    config: EvaluationConfig,
    rows: Mapping[str, Sequence[Row]],
    *,
    model: ModelConfig,
    shard: Shard,
    tokenizer: Tokenizer,
    grade: rollout.Grade,
) -> Evaluate:
    """Returns the function from parameters to one evaluation a domain and mode.

    Each row gets one answer; its random numbers depend on the evaluation's seed, the domain and the
    row's place alone, so two checkpoints are compared on the same draws.
    """
    modes = {"sampled": config.sampling}
    if config.greedy:
        modes["greedy"] = dataclasses.replace(config.sampling, temperature=0.0)

    def make(sampling: SamplingConfig) -> Sampler:
        return make_sampler(
            model,
            sampling,
            shard,
            vocab_limit=tokenizer.size,
            stop_ids=tokenizer.stop_ids,
            decode=tokenizer.decode,
            max_len=sampling.max_prompt_tokens + sampling.max_completion_tokens,
        )

    rolls = {
        mode: rollout.make_rollout(make, sampling, config.turns, tokenizer=tokenizer, grade=grade)
        for mode, sampling in modes.items()
    }

    def evaluate(
        params: Any, which: RowSet, *, greedy: bool, domains: Collection[str] | None = None
    ) -> list[Evaluation]:
        out = []
        for domain, of_domain in rows.items():
            if domains is not None and domain not in domains:
                continue
            taken = [
                (index, row, rollout.render_row(row, tokenizer, config.sampling))
                for index, row in enumerate(of_domain)
                if in_second_set(index, len(of_domain), config.confirmation)
                == (which == "confirmation")
            ]
            key = sample_key(config.seed, f"evaluation/{domain}", 0)
            for mode, roll in rolls.items():
                if mode == "sampled" or greedy:
                    groups = roll(params, taken, 1, key).groups
                    out.append(_evaluation(domain, mode, which, groups))
        return out

    return evaluate


def _evaluation(domain: str, mode: str, of: RowSet, groups: Sequence[rollout.Group]) -> Evaluation:
    records: list[dict[str, Any]] = [
        {
            "domain": domain,
            "mode": mode,
            "rows": of,
            "id": group.row.id,
            "prompt": group.row.messages[-1].content,
            "completion": group.texts[0],
            "finish_reason": group.samples[0].finish_reason,
            "reward": group.scores[0].reward,
            "status": group.scores[0].status,
            "reason": group.scores[0].reason,
        }
        for group in groups
    ]
    return Evaluation(domain, mode, of, tuple(records))
