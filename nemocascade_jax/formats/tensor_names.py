"""Published tensor names: one table a family, read in both directions.

An entry says where a parameter of ours lies: the tensor's name and which of our axes each stored axis
is. Parameters that share a tensor lie one after another along their last axis, in table order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.formats.families import family_of
from nemocascade_jax.models.hybrid import layer_places, model_specs
from nemocascade_jax.sharding import ParamSpec, map_specs

Order = tuple[int | None, ...]  # our axis of each stored axis; None: a stored axis of length one

SAME: Order = (0, 1)
VECTOR: Order = (0,)
MATRIX: Order = (1, 0)  # stored [out, in], ours [in, out]
TAPS: Order = (1, None, 0)  # stored [channel, 1, tap], ours [tap, channel]
STACK: Order = (0, 2, 1)  # stored [expert, out, in], ours [expert, in, out]

# Stored in float32 on the hub. Never narrowed: a selection bias of 7.03 ties with 7.02 in bfloat16.
KEPT_FLOAT32 = ("A_log", "D", "correction_bias")

Table = dict[str, tuple[str, Order]]


class Names(NamedTuple):
    """How a family names its tensors; the first prefix is the hub's. `{e}` stands for an expert."""

    prefixes: tuple[str, ...]
    letters_a_layer: int
    ends: Table  # what lies before and after the layers
    layers: Mapping[str, Table]
    stacked: Table  # how memory names of transformers join the experts, where they do


class Part(NamedTuple):
    """The place of one parameter, or of one layer or expert of it, in a tensor."""

    path: str  # as `map_specs` writes it
    lead: tuple[int, ...]  # indices of our leading axes that one tensor holds one entry of
    start: int  # first column of the tensor, seen with our axes, that is the parameter's
    stop: int


class Tensor(NamedTuple):
    """One published tensor and what of our parameters it holds."""

    name: str
    shape: tuple[int, ...]  # as stored
    order: Order
    parts: tuple[Part, ...]

    @property
    def kept_float32(self) -> bool:
        return self.parts[0].path.split("/")[-1] in KEPT_FLOAT32


def hub_tensors(cfg: ModelConfig) -> list[Tensor]:
    """Returns every tensor of a published checkpoint, in the order of the layers."""
    return tensors(cfg, NAMES[family_of(cfg)].prefixes[0], stacked=False)


def tensors(cfg: ModelConfig, prefix: str, *, stacked: bool) -> list[Tensor]:
    """Returns every tensor under a prefix, the experts of a layer one by one or joined."""
    names = NAMES[family_of(cfg)]
    specs: dict[str, ParamSpec] = {}
    map_specs(specs.__setitem__, model_specs(cfg))
    ends = [(prefix + name, order, path, ()) for path, (name, order) in names.ends.items()]
    head = ("lm_head.weight", MATRIX, "head", ())  # the one name without a prefix
    first, *last = _join([*ends, head], specs)
    layers: list[Tensor] = []
    for number, (unit, place, repeat) in enumerate(layer_places(cfg.pattern)):
        letter = cfg.pattern[number]
        table = names.layers[letter] | (names.stacked if stacked and letter == "E" else {})
        at = f"{prefix}layers.{number // names.letters_a_layer}."
        layers += _layer(table, at, f"units/{unit}/{place}", repeat, specs)
    found = [first, *layers, *last]
    assert {part.path for tensor in found for part in tensor.parts} == set(specs)
    return found


Entry = tuple[str, Order, str, tuple[int, ...]]


def _layer(
    table: Table, at: str, path: str, repeat: int, specs: Mapping[str, ParamSpec]
) -> list[Tensor]:
    entries: list[Entry] = []
    for name, (template, order) in table.items():
        spec = specs.get(f"{path}/{name}")
        if spec is None:
            continue
        if "{e}" in template:
            entries += [
                (at + template.format(e=e), order, f"{path}/{name}", (repeat, e))
                for e in range(spec.shape[1])
            ]
        else:
            entries.append((at + template, order, f"{path}/{name}", (repeat,)))
    return _join(entries, specs)


def _join(entries: list[Entry], specs: Mapping[str, ParamSpec]) -> list[Tensor]:
    """Joins the entries of one tensor; what the model does not have is left out."""
    found: dict[str, Tensor] = {}
    for name, order, path, lead in entries:
        if path not in specs:
            continue
        ours = specs[path].shape[len(lead) :]
        before = found[name].parts if name in found else ()
        start = before[-1].stop if before else 0
        part = Part(path, lead, start, start + ours[-1])
        whole = (*ours[:-1], part.stop)
        shape = tuple(1 if axis is None else whole[axis] for axis in order)
        found[name] = Tensor(name, shape, order, (*before, part))
    return list(found.values())


NEMOTRON_H = Names(
    prefixes=("backbone.", "model."),
    letters_a_layer=1,
    ends={"embed": ("embeddings.weight", SAME), "norm": ("norm_f.weight", VECTOR)},
    layers={
        "M": {
            "pre_norm": ("norm.weight", VECTOR),
            "w_gate": ("mixer.in_proj.weight", MATRIX),
            "w_xbc": ("mixer.in_proj.weight", MATRIX),
            "w_dt": ("mixer.in_proj.weight", MATRIX),
            "conv_w": ("mixer.conv1d.weight", TAPS),
            "conv_b": ("mixer.conv1d.bias", VECTOR),
            "A_log": ("mixer.A_log", VECTOR),
            "D": ("mixer.D", VECTOR),
            "dt_bias": ("mixer.dt_bias", VECTOR),
            "norm": ("mixer.norm.weight", VECTOR),
            "w_out": ("mixer.out_proj.weight", MATRIX),
        },
        "*": {
            "pre_norm": ("norm.weight", VECTOR),
            "w_q": ("mixer.q_proj.weight", MATRIX),
            "w_k": ("mixer.k_proj.weight", MATRIX),
            "w_v": ("mixer.v_proj.weight", MATRIX),
            "w_o": ("mixer.o_proj.weight", MATRIX),
        },
        "E": {
            "pre_norm": ("norm.weight", VECTOR),
            "router": ("mixer.gate.weight", MATRIX),
            "correction_bias": ("mixer.gate.e_score_correction_bias", VECTOR),
            "w_up": ("mixer.experts.{e}.up_proj.weight", MATRIX),
            "w_down": ("mixer.experts.{e}.down_proj.weight", MATRIX),
            "shared_up": ("mixer.shared_experts.up_proj.weight", MATRIX),
            "shared_down": ("mixer.shared_experts.down_proj.weight", MATRIX),
            "latent_in": ("mixer.fc1_latent_proj.weight", MATRIX),
            "latent_out": ("mixer.fc2_latent_proj.weight", MATRIX),
        },
        "-": {
            "pre_norm": ("norm.weight", VECTOR),
            "w_up": ("mixer.up_proj.weight", MATRIX),
            "w_down": ("mixer.down_proj.weight", MATRIX),
        },
    },
    stacked={
        "w_up": ("mixer.experts.up_proj", STACK),
        "w_down": ("mixer.experts.down_proj", STACK),
    },
)

LLAMA = Names(
    prefixes=("model.",),
    letters_a_layer=2,
    ends={"embed": ("embed_tokens.weight", SAME), "norm": ("norm.weight", VECTOR)},
    layers={
        "*": {
            "pre_norm": ("input_layernorm.weight", VECTOR),
            "w_q": ("self_attn.q_proj.weight", MATRIX),
            "w_k": ("self_attn.k_proj.weight", MATRIX),
            "w_v": ("self_attn.v_proj.weight", MATRIX),
            "w_o": ("self_attn.o_proj.weight", MATRIX),
            "q_norm": ("self_attn.q_norm.weight", VECTOR),
            "k_norm": ("self_attn.k_norm.weight", VECTOR),
        },
        "E": {
            "pre_norm": ("post_attention_layernorm.weight", VECTOR),
            "router": ("mlp.gate.weight", MATRIX),
            "w_gate": ("mlp.experts.{e}.gate_proj.weight", MATRIX),
            "w_up": ("mlp.experts.{e}.up_proj.weight", MATRIX),
            "w_down": ("mlp.experts.{e}.down_proj.weight", MATRIX),
        },
        "-": {
            "pre_norm": ("post_attention_layernorm.weight", VECTOR),
            "w_gate": ("mlp.gate_proj.weight", MATRIX),
            "w_up": ("mlp.up_proj.weight", MATRIX),
            "w_down": ("mlp.down_proj.weight", MATRIX),
        },
    },
    stacked={
        "w_gate": ("mlp.experts.gate_up_proj", STACK),
        "w_up": ("mlp.experts.gate_up_proj", STACK),
        "w_down": ("mlp.experts.down_proj", STACK),
    },
)

NAMES = {"nemotron_h": NEMOTRON_H, "qwen3_moe": LLAMA, "qwen3": LLAMA, "llama": LLAMA}
