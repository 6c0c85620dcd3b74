"""Configs as frozen records that check themselves; no jax.

A config file in `configs/` returns a ConfigDict; `build` turns each block into one of the records
here. A record refuses an unknown or missing key, a wrong type and a value out of range by itself,
so a record made anywhere is a valid one. Science defaults live in `configs/`, never here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, dataclass_transform

from nemocascade_jax.errors import InputError

T = TypeVar("T")


class ConfigError(InputError):
    """A value that a record refuses; `path` is the dotted key below the record that raised it."""

    def __init__(self, path: str, problem: str):
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path, self.problem = path, problem

    def under(self, prefix: str) -> ConfigError:
        """The same fault, seen from one level up."""
        joined = prefix + self.path if self.path.startswith("[") else f"{prefix}.{self.path}"
        return ConfigError(joined if self.path else prefix, self.problem)


@dataclasses.dataclass(frozen=True)
class Limits:
    """The closed range a number must lie in; `above` excludes its own value."""

    at_least: float | int = -math.inf
    at_most: float | int = math.inf
    above: float | int = -math.inf

    def __contains__(self, value: float | int) -> bool:
        return self.at_least <= value <= self.at_most and value > self.above

    def __str__(self) -> str:
        low = f"above {self.above:g}" if self.above > -math.inf else f"at least {self.at_least:g}"
        high = f"at most {self.at_most:g}"
        given = [low] if max(self.above, self.at_least) > -math.inf else []
        return " and ".join(given + ([high] if self.at_most < math.inf else []))


Count = Annotated[int, Limits(at_least=1)]
Natural = Annotated[int, Limits(at_least=0)]
Positive = Annotated[float, Limits(above=0)]
NonNegative = Annotated[float, Limits(at_least=0)]
Share = Annotated[float, Limits(at_least=0, at_most=1)]


def free(default: Any = dataclasses.MISSING) -> Any:
    """Marks a field whose change does not change the numbers, so a resumed run may change it."""
    return dataclasses.field(default=default, metadata={"free": True})


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        inner, limits = typing.get_args(hint)[:2]
        return f"{_name(inner)} {limits}".strip()
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(value) for value in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_name(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return f"tuple of {_name(args[0])}"
        return "(" + ", ".join(_name(part) for part in args) + ")"
    if hint is type(None):
        return "None"
    return getattr(hint, "__name__", str(hint))


def _refuse(value: Any, hint: Any, why: str = "") -> ConfigError:
    said = f"{value!r} ({type(value).__name__})"
    return ConfigError("", f"expected {_name(hint)}, got {said}{why}")


def _convert(value: Any, hint: Any) -> Any:
    """Returns `value` as the annotated type, or raises ConfigError; an int may stand for a float."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if type(value) not in (int, float) or (args[0] is int and type(value) is float):
            raise _refuse(value, hint)
        value = _convert(value, args[0])
        if value not in args[1]:
            raise _refuse(value, hint)
        return value
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in args):
            raise _refuse(value, hint, _nearest(value, args))
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, hint)
    if origin is tuple:
        return _convert_tuple(value, hint)
    if origin is dict:
        return _convert_table(value, hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        if not _is_table(value):
            raise _refuse(value, hint)
        return build(typing.cast(type, hint), value, "")
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise _refuse(value, hint)
    if hint is float and not math.isfinite(value):
        raise _refuse(value, hint, "; the value must be finite")
    return value


def _convert_union(value: Any, hint: Any) -> Any:
    parts = typing.get_args(hint)
    if value is None and type(None) in parts:
        return None
    faults = []
    for part in parts:
        if part is type(None):
            continue
        try:
            return _convert(value, part)
        except ConfigError as error:
            faults.append(error)
    deep = [fault for fault in faults if fault.path]
    if deep:
        raise deep[0]
    raise _refuse(value, hint)


def _convert_tuple(value: Any, hint: Any) -> tuple:
    args = typing.get_args(hint)
    if not isinstance(value, tuple | list):
        raise _refuse(value, hint)
    hints = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
    if len(hints) != len(value):
        raise _refuse(value, hint)
    out = []
    for index, (entry, part) in enumerate(zip(value, hints, strict=True)):
        try:
            out.append(_convert(entry, part))
        except ConfigError as error:
            raise error.under(f"[{index}]") from None
    return tuple(out)


def _convert_table(value: Any, hint: Any) -> dict:
    if not _is_table(value):
        raise _refuse(value, hint)
    out = {}
    for key in sorted(value.keys()):
        try:
            out[key] = _convert(value[key], typing.get_args(hint)[1])
        except ConfigError as error:
            raise error.under(key) from None
    return FrozenTable(out)


class FrozenTable(dict):
    """A dict with sorted string keys that hashes by content, so that records stay hashable."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))

    def _immutable(self, *_: Any, **__: Any) -> Any:
        raise TypeError("FrozenTable: a config does not change once it is built")

    __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = _immutable


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__"))


# What other systems call these knobs.
OTHER_NAMES = {
    "learning_rate": "lr",
    "num_generations": "group_size",
    "num_samples": "group_size",
    "max_new_tokens": "max_completion_tokens",
    "max_steps": "steps",
    "num_steps": "steps",
    "beta": "kl_coef",
    "max_grad_norm": "grad_clip",
    "gradient_accumulation_steps": "microbatches",
    "batch_size": "prompts_per_step",
    "d_model": "width",
    "hidden_size": "width",
}


def _nearest(word: Any, known: typing.Iterable[Any]) -> str:
    """Returns "; did you mean X" for the nearest known word, and the other known words when far."""
    names = {str(name).lower(): str(name) for name in known}
    plain = str(word).lower().replace("-", "_")
    for alias in difflib.get_close_matches(plain, OTHER_NAMES, n=1, cutoff=0.8):
        plain = OTHER_NAMES[alias] if OTHER_NAMES[alias] in names else plain
    if not names:
        return ""
    close = difflib.get_close_matches(plain, names, n=1, cutoff=0.0) or [min(names)]
    far = difflib.SequenceMatcher(None, plain, close[0]).ratio() < 0.5
    rest = f" (known: {', '.join(sorted(names.values()))})" if far else ""
    return f"; did you mean {names[close[0]]!r}?{rest}"


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Makes a frozen dataclass whose fields are checked against their annotations when it is built.

    A method `check(self)` may raise ConfigError for relations between fields.
    """

    def __post_init__(self: Any) -> None:
        for name, hint in _hints(type(self)).items():
            try:
                object.__setattr__(self, name, _convert(getattr(self, name), hint))
            except ConfigError as error:
                raise error.under(name) from None
        if hasattr(self, "check"):
            self.check()

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(cls)


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def build(cls: type[T], block: Any, path: str = "config") -> T:
    """Returns record `cls` from a ConfigDict or dict; every fault names its full key path."""
    try:
        return _build(cls, block)
    except ConfigError as error:
        raise (error.under(path) if path else error) from None


def _build(cls: type[T], block: Any) -> T:
    if hasattr(cls, "choose"):  # a family of records told apart by one of their keys
        cls = cls.choose(block)  # type: ignore[attr-defined]
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    keys = list(block.keys())
    for key in keys:
        if key not in fields:
            raise ConfigError(str(key), f"unknown key{_nearest(key, fields)}")
    for name, field in fields.items():
        if name not in keys and field.default is dataclasses.MISSING:
            raise ConfigError(name, f"missing key, expected {_name(_hints(cls)[name])}")
    return cls(**{key: block[key] for key in keys})


def to_plain(value: Any) -> Any:
    """Returns a record as dicts, lists and scalars that `json` writes and `build` reads back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(entry) for entry in value]
    return value


def fixed_part(value: Any) -> Any:
    """Returns `to_plain(value)` without the fields marked free: what a resume must find unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: fixed_part(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.metadata.get("free")
        }
    if isinstance(value, dict):
        return {key: fixed_part(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [fixed_part(entry) for entry in value]
    return value


def first_difference(old: Any, new: Any, path: str = "config") -> str | None:
    """Returns "path: old value, new value" of the first difference, None when equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            found = first_difference(old.get(key), new.get(key), f"{path}.{key}")
            if found:
                return found
        return None
    return None if old == new else f"{path}: {old!r} there, {new!r} here"


# --- the model -----------------------------------------------------------------------------------


@record
class AttentionConfig:
    heads: Count
    kv_heads: Count
    head_dim: Count
    rope_theta: Positive | None  # base of rotary embeddings; None: no position encoding at all
    qk_norm: bool  # RMSNorm over each head's query and key, before the rotation

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError("kv_heads", f"{self.kv_heads} does not divide heads {self.heads}")
        if self.rope_theta is not None and self.head_dim % 2:
            raise ConfigError("head_dim", f"{self.head_dim} is odd, rotary embeddings need pairs")


@record
class MambaConfig:
    heads: Count
    head_dim: Count
    state: Count
    groups: Count
    conv: Annotated[int, Limits(at_least=2)]
    chunk: Count
    time_step_min: Positive  # min, max and floor shape the initialisation only
    time_step_max: Positive
    time_step_floor: Positive
    time_step_limit: tuple[float, float] | None  # None: (0, inf), the published model

    def check(self) -> None:
        if self.heads % self.groups:
            raise ConfigError("groups", f"{self.groups} does not divide heads {self.heads}")

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner + 2 * self.groups * self.state


@record
class MoEConfig:
    router: Literal["sigmoid", "softmax"]  # sigmoid has a bias for selection, softmax none
    experts: Count
    top_k: Count
    inner: Count
    shared_inner: Natural  # 0: no shared expert
    groups: Count  # n_group of group-limited routing
    top_groups: Count
    scale: Positive
    normalise: bool
    latent: Count | None

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ConfigError("top_k", f"{self.top_k} is more than experts {self.experts}")
        if self.experts % self.groups:
            raise ConfigError("groups", f"{self.groups} does not divide experts {self.experts}")
        if self.top_groups > self.groups:
            raise ConfigError("top_groups", f"{self.top_groups} is more than groups {self.groups}")


@record
class PrecisionConfig:
    """The type each part is held or computed in; what must never be narrowed has one choice."""

    params: Literal["float32", "bfloat16"]  # as held; training needs float32
    compute: Literal["float32", "bfloat16"]  # matrix products, activations, keys and values
    router: Literal["float32"]
    ssm_state: Literal["float32", "bfloat16"]
    logits: Literal["float32"]


@record
class ModelConfig:
    """The pattern family: `M` Mamba-2, `*` attention, `E` MoE, `-` dense MLP, one mixer a layer."""

    pattern: str
    vocab_size: Count
    width: Count
    mlp_inner: Count | None
    activation: Literal["relu2", "gated_silu"]  # of dense MLPs and experts
    norm_eps: Positive
    max_positions: Count
    tied_embeddings: bool
    init_std: Positive
    rescale_prenorm_residual: bool
    attention: AttentionConfig | None
    mamba: MambaConfig | None
    moe: MoEConfig | None
    precision: PrecisionConfig

    def check(self) -> None:
        unknown = sorted(set(self.pattern) - set("M*E-"))
        if unknown or not self.pattern:
            raise ConfigError("pattern", f"{self.pattern!r} must be letters of 'M*E-'")
        needs = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp_inner"}
        for letter, key in needs.items():
            if letter in self.pattern and getattr(self, key) is None:
                raise ConfigError(key, f"None, but pattern {self.pattern!r} has {letter!r} layers")


@record
class RulesConfig:
    """Which mesh axes each logical dimension is laid over; an empty tuple replicates it."""

    batch: tuple[str, ...]
    seq: tuple[str, ...]
    embed: tuple[str, ...]
    vocab: tuple[str, ...]
    heads: tuple[str, ...]
    kv_heads: tuple[str, ...]
    mlp: tuple[str, ...]
    expert: tuple[str, ...]
    mamba_inner: tuple[str, ...]
    mamba_heads: tuple[str, ...]
    layers: tuple[str, ...]


@record
class MeshConfig:
    data: Count
    fsdp: Count
    expert: Count
    tensor: Count
    context: Count
    rules: RulesConfig

    def check(self) -> None:
        axes = ("data", "fsdp", "expert", "tensor", "context")
        for name, laid in to_plain(self.rules).items():
            for axis in laid:
                if axis not in axes:
                    raise ConfigError(
                        f"rules.{name}", f"{axis!r} is no mesh axis{_nearest(axis, axes)}"
                    )

    @property
    def shape(self) -> dict[str, int]:
        return {
            name: getattr(self, name) for name in ("data", "fsdp", "expert", "tensor", "context")
        }


# --- data, sampling, optimiser -------------------------------------------------------------------


@record
class SourceConfig:
    """Rows of one source: `jsonl` reads `path`, `generated` runs `generator` of rows/generators."""

    kind: Literal["jsonl", "generated"]
    path: str | None
    generator: str | None
    split: Literal["train", "heldout"]
    count: Count | None  # None: all rows of a file
    seed: Natural
    on_bad_row: Literal["refuse", "skip"]
    weight: Positive

    def check(self) -> None:
        if self.kind == "jsonl" and self.path is None:
            raise ConfigError("path", "None, but kind 'jsonl' reads a file")
        if self.kind == "generated" and (self.generator is None or self.count is None):
            key = "generator" if self.generator is None else "count"
            raise ConfigError(key, "None, but kind 'generated' needs it")
        if self.kind == "jsonl" and self.generator is not None:
            raise ConfigError(
                "generator", f"{self.generator!r} has no effect for kind 'jsonl'; set None"
            )
        if self.kind == "generated" and self.path is not None:
            raise ConfigError("path", f"{self.path!r} has no effect for kind 'generated'; set None")


@record
class PackingConfig:
    row_length: Count
    rows_per_step: Count
    overlong: Literal["refuse", "drop"]


@record
class SamplingConfig:
    temperature: NonNegative  # 0: greedy, evaluation only
    top_k: Count | None
    top_p: Annotated[float, Limits(above=0, at_most=1)]
    max_prompt_tokens: Count
    max_completion_tokens: Count
    stop: tuple[str, ...]
    ignore_eos: bool
    thinking: bool


@record
class TurnsConfig:
    """Rollouts of rows whose environment answers; all turns share `sampling.max_completion_tokens`."""

    max_turns: Count  # of the assistant
    turn_tokens: Count  # sampled in one turn at most


@record
class OptimConfig:
    lr: Positive
    schedule: Literal["constant", "cosine"]
    warmup_steps: Natural
    warmup_from: NonNegative
    min_lr: NonNegative
    b1: Share
    b2: Share
    eps: Positive
    weight_decay: NonNegative
    grad_clip: Positive | None
    frozen: tuple[str, ...]  # regular expressions over parameter paths


@record
class CheckpointConfig:
    every_steps: Count  # these checkpoints are scored, and teachers chosen among them
    keep: Count = free()  # the newest of a stage, beside those that teach or are best at a domain


@record
class RewardConfig:
    """How completions are graded: worker processes and their limits."""

    workers: Natural = free()  # 0: in this process, for tests
    cpu_s: Positive = free()
    memory_mb: Count = free()


@record
class EvaluationConfig:
    """Held-out rows a domain, scored on every kept checkpoint with common random numbers.

    `confirmation` of a domain's rows, spread evenly, are a second set, on which a chosen teacher is
    measured again: the score it was chosen by is flattered by the choice.
    """

    domains: dict[str, SourceConfig]
    sampling: SamplingConfig
    turns: TurnsConfig | None
    greedy: bool  # at a stage's end also the greedy answers
    seed: Natural
    confirmation: Natural
    fallen_errors: Positive  # paired standard errors below its best at which a domain has fallen

    def check(self) -> None:
        _check_turns(self.turns, self.sampling)
        for name, source in self.domains.items():
            if source.count is not None and source.count <= self.confirmation:
                raise ConfigError(
                    "confirmation",
                    f"{self.confirmation} rows leave none of the {source.count} of domains.{name} "
                    "for the first set; raise its count",
                )


# --- stages --------------------------------------------------------------------------------------


@record
class StageConfig:
    """Any stage; `kind` tells which record holds it."""

    kind: Literal["sft", "grpo", "mopd"]

    @staticmethod
    def choose(block: Any) -> type:
        kinds = {"sft": SFTConfig, "grpo": GRPOConfig, "mopd": MOPDConfig}
        if "kind" not in list(block.keys()):
            raise ConfigError("kind", f"missing key, expected one of {sorted(kinds)}")
        if block["kind"] not in kinds:
            raise ConfigError(
                "kind", f"unknown stage kind {block['kind']!r}{_nearest(block['kind'], kinds)}"
            )
        return kinds[block["kind"]]


@record
class SFTConfig:
    kind: Literal["sft"]
    parent: str | None  # None: the stage before in `order`; "init": the run's starting weights
    steps: Count
    microbatches: Count
    data: dict[str, SourceConfig]
    packing: PackingConfig
    balance_coef: NonNegative  # of the routers' sequence-level balance loss, summed over MoE layers
    bias_update_rate: NonNegative  # step of the selection bias towards an even load, an update
    optim: OptimConfig
    checkpoint: CheckpointConfig

    def check(self) -> None:
        if self.packing.rows_per_step % self.microbatches:
            raise ConfigError(
                "microbatches",
                f"{self.microbatches} does not divide packing.rows_per_step {self.packing.rows_per_step}",
            )


ROWS_MULTIPLE = 64  # an RL batch's packed rows are rounded up to this: few programs are compiled


def _check_turns(turns: TurnsConfig | None, sampling: SamplingConfig) -> None:
    limit = sampling.max_completion_tokens
    if turns is not None and turns.turn_tokens > limit:
        raise ConfigError(
            "turns.turn_tokens",
            f"{turns.turn_tokens} is more than sampling.max_completion_tokens {limit}, which all "
            "turns share",
        )


@record
class GRPOConfig:
    kind: Literal["grpo"]
    parent: str | None
    steps: Count
    microbatches: Count
    prompts_per_step: Count
    group_size: Annotated[int, Limits(at_least=2)]
    data: dict[str, SourceConfig]
    sampling: SamplingConfig
    turns: TurnsConfig | None  # None: rows of an environment are refused
    advantage: Literal["group", "leave_one_out"]
    denominator: Literal["global", "per_group"]
    overlong: Literal["mask", "zero", "keep"]
    dynamic_filtering: bool
    refill_batches: Count
    max_failed_share: Share
    max_sampler_gap: (
        Positive | None
    )  # stops the run when sampler and trainer log-probs part further
    kl_coef: NonNegative
    reward: RewardConfig
    optim: OptimConfig
    checkpoint: CheckpointConfig
    rollouts_keep: Literal["all", "none"] | Count = free()

    def check(self) -> None:
        if self.sampling.temperature == 0:
            raise ConfigError("sampling.temperature", "0.0 is greedy; RL samples, set it above 0")
        _check_turns(self.turns, self.sampling)
        if (self.prompts_per_step * self.group_size) % self.microbatches:
            raise ConfigError(
                "microbatches",
                f"{self.microbatches} does not divide prompts_per_step x group_size "
                f"= {self.prompts_per_step * self.group_size}",
            )

    @property
    def rows_multiple(self) -> int:
        """What the batch's packed rows are rounded up to: no more than one each for a few samples."""
        samples = self.prompts_per_step * self.group_size
        return min(ROWS_MULTIPLE, 2 ** math.ceil(math.log2(samples)))


class TeacherName(NamedTuple):
    """What a teacher's entry says: the ledger's best, a stage (its last step or one), or a folder."""

    stage: str | None
    step: int | None
    folder: str | None


NARROW_GAP = 0.1  # nats; smaller differences are rounding where the model computes in bfloat16

BEST = TeacherName(None, None, None)
INIT = "init"  # the weights of `config.init`, as a parent


def parse_teacher(text: str) -> TeacherName:
    """Returns "best", "STAGE", "STAGE@STEP" or a folder (with a slash in it) taken apart."""
    if text == "best":
        return BEST
    if "/" in text:
        return TeacherName(None, None, text)
    stage, at, step = text.partition("@")
    if at and not step.isdecimal():
        raise ConfigError("", f"{text!r}: after @ stands the step, a whole number")
    return TeacherName(stage, int(step) if at else None, None)


@record
class MOPDConfig:
    """Multi-domain on-policy distillation (paper 3); `teachers` by the short name of the domain."""

    kind: Literal["mopd"]
    parent: str | None
    steps: Count
    microbatches: Count
    prompts_per_step: Count
    group_size: Count
    data: dict[str, SourceConfig]
    sampling: SamplingConfig
    turns: TurnsConfig | None
    teachers: dict[str, str]  # "best", STAGE, STAGE@STEP, or a folder with a slash in its name
    teacher_rows: Count  # packed rows a teacher scores at a time
    trigger: Literal["always", "fallen"]  # "fallen": over at once when no domain has fallen
    ratio_low: Positive
    ratio_high: Positive
    max_sampler_gap: Positive | None
    reward: RewardConfig  # answers are graded for the log; the loss does not use it
    optim: OptimConfig
    checkpoint: CheckpointConfig
    teacher_memory: Literal["device", "host", "disk"] = free()  # where they wait between steps
    rollouts_keep: Literal["all", "none"] | Count = free()

    def check(self) -> None:
        _check_turns(self.turns, self.sampling)
        if not self.teachers:
            raise ConfigError("teachers", "empty; name a teacher for each domain of `data`")
        for domain, text in self.teachers.items():
            try:
                parse_teacher(text)
            except ConfigError as error:
                raise error.under(f"teachers.{domain}") from None
        for name, plain in (("temperature", 1.0), ("top_p", 1.0), ("top_k", None)):
            if getattr(self.sampling, name) != plain:
                raise ConfigError(
                    f"sampling.{name}",
                    f"{getattr(self.sampling, name)!r}, but distillation compares the plain "
                    f"distributions of student and teacher; set {plain}",
                )
        if not self.ratio_low <= 1 <= self.ratio_high:
            raise ConfigError(
                "ratio_low",
                f"the band {self.ratio_low} to {self.ratio_high} leaves out the ratio 1",
            )
        if (self.prompts_per_step * self.group_size) % self.microbatches:
            raise ConfigError(
                "microbatches",
                f"{self.microbatches} does not divide prompts_per_step x group_size "
                f"= {self.prompts_per_step * self.group_size}",
            )


@record
class RunConfig:
    """A cascade: `stages` by name, run in `order`."""

    seed: Natural
    init: str  # "scratch" or a native checkpoint or Hugging Face folder
    tokenizer: str  # "tiny" or a folder or file
    model: ModelConfig
    mesh: MeshConfig
    order: tuple[str, ...]
    stages: dict[str, StageConfig]
    evaluation: EvaluationConfig

    def check(self) -> None:
        if not self.order:
            raise ConfigError("order", "empty; name at least one stage")
        for index, name in enumerate(self.order):
            if name == INIT:
                raise ConfigError(f"order[{index}]", "'init' names the starting weights; rename it")
            if name not in self.stages:
                raise ConfigError(
                    f"order[{index}]", f"no stage {name!r}{_nearest(name, self.stages)}"
                )
            if self.order.index(name) != index:
                raise ConfigError(f"order[{index}]", f"stage {name!r} is named twice")
        for index, name in enumerate(self.order):
            self._check_parent(index, name)
            stage = self.stages[name]
            if isinstance(stage, GRPOConfig | MOPDConfig):
                self._check_lengths(stage.sampling, f"stages.{name}.sampling")
            self._check_precision(name, getattr(stage, "max_sampler_gap", None))
            if isinstance(stage, SFTConfig):
                self._check_balancing(name, stage)
            ways = math.prod(self.mesh.shape[axis] for axis in self.mesh.rules.batch)
            if isinstance(stage, GRPOConfig) and stage.rows_multiple % ways:
                raise ConfigError(
                    f"stages.{name}.prompts_per_step",
                    f"batches of {stage.rows_multiple} packed rows cannot be laid over the mesh's "
                    f"{ways} batch shards; sample more, or use fewer shards",
                )
            if isinstance(stage, MOPDConfig):
                if stage.teacher_rows % ways:
                    raise ConfigError(
                        f"stages.{name}.teacher_rows",
                        f"{stage.teacher_rows} rows cannot be laid over the mesh's {ways} batch "
                        f"shards; take a multiple of {ways}",
                    )
                for domain, text in stage.teachers.items():
                    self._check_teacher(index, domain, text)
        self._check_lengths(self.evaluation.sampling, "evaluation.sampling")

    def parent(self, name: str) -> str | None:
        """Returns the stage that `name` starts from: its own `parent`, or the one before in `order`.

        None means the weights of `init`.
        """
        index = self.order.index(name)
        said: str | None = self.stages[name].parent  # type: ignore[attr-defined]
        before = self.order[index - 1] if index else None
        return None if said == INIT else said or before

    def _check_precision(self, name: str, gap: float | None) -> None:
        precision = self.model.precision
        if precision.params != "float32":
            raise ConfigError(
                "model.precision.params",
                f"{precision.params!r}, but stage {name!r} trains, and its updates would be rounded "
                "away; set 'float32' (precision.compute may be 'bfloat16')",
            )
        if precision.compute != "float32" and gap is not None and gap < NARROW_GAP:
            raise ConfigError(
                f"stages.{name}.max_sampler_gap",
                f"{gap:g} is a limit for float32; programs that compute in {precision.compute} part "
                f"by more: set None, or at least {NARROW_GAP:g}",
            )

    def _check_balancing(self, name: str, stage: SFTConfig) -> None:
        moe = self.model.moe if "E" in self.model.pattern else None
        for key, there, lacks in (
            ("balance_coef", moe is not None, "MoE layers"),
            ("bias_update_rate", moe is not None and moe.router == "sigmoid", "selection bias"),
        ):
            if getattr(stage, key) and not there:
                raise ConfigError(
                    f"stages.{name}.{key}",
                    f"{getattr(stage, key):g}, but the model has no {lacks}; set 0.0",
                )

    def _check_parent(self, index: int, name: str) -> None:
        said: str | None = self.stages[name].parent  # type: ignore[attr-defined]
        if said is None or said == INIT or said in self.order[:index]:
            return
        where = f"stages.{name}.parent"
        if said not in self.order:
            raise ConfigError(where, f"{said!r} is not in order{_nearest(said, self.order)}")
        chain = [name, said]
        while chain[-1] != name and (above := self.parent(chain[-1])) and above not in chain[1:]:
            chain.append(above)
        if chain[-1] == name:
            raise ConfigError(
                where, f"the parents go in a circle: {' <- '.join(chain)}; one must start elsewhere"
            )
        raise ConfigError(where, f"{said!r} does not run before {name!r}; put it first in order")

    def _check_teacher(self, index: int, domain: str, text: str) -> None:
        where = f"stages.{self.order[index]}.teachers.{domain}"
        named, before = parse_teacher(text), self.order[:index]
        if named == BEST:
            if domain not in self.evaluation.domains:
                raise ConfigError(
                    where,
                    "'best' needs scores, and evaluation.domains has no "
                    f"{domain!r}{_nearest(domain, self.evaluation.domains)}",
                )
            if not before and self.init == "scratch":
                raise ConfigError(where, "'best', but no checkpoint is scored before this stage")
        elif named.stage is not None and named.stage not in before:
            hint = _nearest(named.stage, before) or "; no stage runs before it"
            raise ConfigError(where, f"no stage {named.stage!r} runs before this one{hint}")
        elif named.stage is not None and named.step is not None:
            stage: Any = self.stages[named.stage]
            every = stage.checkpoint.every_steps
            if named.step > stage.steps or (named.step % every and named.step != stage.steps):
                raise ConfigError(
                    where,
                    f"stage {named.stage!r} keeps no step {named.step}; it saves every {every} steps "
                    f"and at {stage.steps}",
                )

    def _check_lengths(self, sampling: SamplingConfig, path: str) -> None:
        total = sampling.max_prompt_tokens + sampling.max_completion_tokens
        if total > self.model.max_positions:
            raise ConfigError(
                f"{path}.max_completion_tokens",
                f"max_prompt_tokens {sampling.max_prompt_tokens} + max_completion_tokens "
                f"{sampling.max_completion_tokens} = {total} is more than model.max_positions "
                f"{self.model.max_positions}; lower one of them",
            )
