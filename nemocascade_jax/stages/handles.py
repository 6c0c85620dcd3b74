"""What a stage may touch: one frozen record of functions and handles, so that a test passes lambdas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from nemocascade_jax.config import ModelConfig, RulesConfig
from nemocascade_jax.data.batches import Stream
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.rows.records import Completion, Row, Score
from nemocascade_jax.sharding import Shard
from nemocascade_jax.train import AfterStep

Grade = Callable[[Sequence[tuple[Row, Completion]]], list[Score]]


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A frozen policy of a MOPD stage; `load` puts its weights on the devices."""

    name: str  # "STAGE@STEP" or the folder
    model: ModelConfig
    load: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class StageIO:
    """Everything outside (state, config) that a stage's result depends on, and its only effects."""

    name: str
    seed: int
    model: ModelConfig
    specs: Any
    mesh: Mesh
    rules: RulesConfig
    shard: Shard
    tokenizer: Tokenizer
    stream: Stream  # stream[i]: the example or row of draw index i
    grade: Grade
    start_params: Callable[[], Any]  # a copy of the weights the stage started from
    after_step: AfterStep
    teachers: Mapping[str, Teacher] | None = None  # by domain; None: MOPD has nothing to do
