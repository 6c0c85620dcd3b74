"""The published reference outputs against this model: how far each array of a fixture folder is off."""

import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.formats import families, hf
from nemocascade_jax.models import hybrid, mamba2, moe
from nemocascade_jax.models.layers import rms_norm
from nemocascade_jax.sharding import no_shard

LIMIT = (0.01, 0.2)  # of the fixture with a finite `time_step_limit`
BF16 = "published_bf16"  # another model than the other dialects': its weights are rounded

Differences = dict[str, float]


@functools.partial(jax.jit, static_argnames="cfg")
def forward(params: Any, tokens: jax.Array, segment_ids: jax.Array, cfg: ModelConfig) -> Any:
    hidden, aux = hybrid.forward(params, tokens, segment_ids, cfg, no_shard)
    return hybrid.logits(params, hidden, cfg), hidden, aux


@functools.partial(jax.jit, static_argnames="cfg")
def insides(
    params: Any, tokens: jax.Array, seen: jax.Array, cfg: ModelConfig
) -> dict[str, jax.Array]:
    """Returns the stream after each layer, each router's logits and choice, the first Mamba's parts.

    Layers, if any, come first, then rows, then tokens.
    """
    m = cfg.moe
    stream = hybrid.residual_stream(params, tokens, seen, cfg, no_shard)
    raw, routed, parts = [], [], {}
    for x, (letter, layer) in zip(stream, hybrid.published_layers(params, cfg), strict=False):
        normed = rms_norm(x, layer["pre_norm"], cfg.norm_eps)
        if letter == "E" and m is not None:
            raw.append(normed @ layer["router"])
            routed.append(moe.route(layer, normed, seen, m))
        if letter == "M" and "mamba0_scan" not in parts and cfg.mamba is not None:
            scan, _ = mamba2.mamba2_scan(layer, normed, seen, cfg, no_shard)
            gated = (scan, normed @ layer["w_gate"], layer["norm"], cfg.mamba.groups, cfg.norm_eps)
            parts = {"mamba0_scan": scan, "mamba0_gated": mamba2.gated_norm(*gated)}
    ids = jnp.stack([routing.expert_ids for routing in routed])
    order = jnp.argsort(ids, axis=-1)
    weights = jnp.take_along_axis(jnp.stack([r.weights for r in routed]), order, axis=-1)
    # The published stream has one entry a block, which in the other families is two of our layers.
    stream = stream[:: 1 if "M" in cfg.pattern else 2]
    return parts | {
        "hidden": stream,
        "router_logits": jnp.stack(raw),
        "topk_idx": jnp.take_along_axis(ids, order, axis=-1),
        "topk_w": weights,
    }


@functools.partial(jax.jit, static_argnames=("cfg", "max_len"))
def prefill(params: Any, tokens: jax.Array, cfg: ModelConfig, max_len: int) -> Any:
    lengths = jnp.full(tokens.shape[:1], tokens.shape[1])
    return hybrid.prefill(params, tokens, lengths, cfg, no_shard, max_len=max_len)


@functools.partial(jax.jit, static_argnames="cfg")
def decode(params: Any, token: jax.Array, cache: Any, cfg: ModelConfig) -> Any:
    return hybrid.decode_step(params, token, cache, cfg, no_shard)


@functools.partial(jax.jit, static_argnames="cfg")
def loss_and_grad(params: Any, tokens: jax.Array, weight: jax.Array, cfg: ModelConfig) -> Any:
    """Returns ((sum(weight nll) / sum(weight), log-probs of the next tokens), gradients)."""

    def loss(params: Any) -> Any:
        logits, _, _ = forward(params, tokens, jnp.ones_like(tokens), cfg)
        logprobs = jax.nn.log_softmax(logits)[:, :-1]
        logprobs = jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=2)[..., 0]
        return -jnp.sum(weight * logprobs) / jnp.sum(weight), logprobs

    return jax.value_and_grad(loss, has_aux=True)(params)


def differences(folder: pathlib.Path, dialect: str) -> Differences:
    """Returns the largest |difference| of each array of a fixture folder, read in one dialect.

    Of whole numbers the count that differ; of gradients the difference over the tensor's largest
    entry. `published_bf16` has rounded weights: it is compared with its own array, and by the mean KL
    from the unrounded model's distribution.
    """
    oracle = dict(np.load(folder / "oracle.npz"))
    cfg = families.model_config_from_hf(hf.read_config(folder / dialect))
    params = hf.load_hf(folder / dialect, cfg)
    if dialect == BF16:
        return _rounded(params, cfg, oracle)
    found = (
        _lengths(params, cfg, oracle) | _rows(params, cfg, oracle) | _decoded(params, cfg, oracle)
    )
    if "logits_limit_0.01_0.2" in oracle:
        assert cfg.mamba is not None
        mamba = dataclasses.replace(cfg.mamba, time_step_limit=LIMIT)
        tokens, seen = _ids(oracle, "L37_ids")
        limited = forward(params, tokens, seen, dataclasses.replace(cfg, mamba=mamba))[0]
        found["logits_limit_0.01_0.2"] = _off(limited, oracle["logits_limit_0.01_0.2"])
    return found | _gradients(params, cfg, oracle, folder)


def _off(got: Any, want: np.ndarray) -> float:
    got = np.asarray(got)
    assert got.shape == want.shape, (got.shape, want.shape)
    if np.issubdtype(want.dtype, np.integer):
        return float((got != want).sum())
    return float(np.abs(got.astype(np.float64) - want).max())


def _ids(oracle: dict[str, np.ndarray], name: str) -> tuple[jax.Array, jax.Array]:
    tokens = jnp.asarray(oracle[name], jnp.int32)
    return tokens, jnp.ones_like(tokens)


def _lengths(params: Any, cfg: ModelConfig, oracle: dict[str, np.ndarray]) -> Differences:
    """Compares rows of each length: logits, final state, stream, routing, the first Mamba's parts."""
    found = {}
    for length in oracle["lengths"]:
        tokens, seen = _ids(oracle, f"L{length}_ids")
        logits, final, _ = forward(params, tokens, seen, cfg)
        got = {f"L{length}_logits": logits, f"L{length}_final": final}
        # The insides of all lengths are taken at one width, so that one program serves them all.
        pad = ((0, 0), (0, int(max(oracle["lengths"]) - length)))
        for name, x in insides(params, jnp.pad(tokens, pad), jnp.pad(seen, pad), cfg).items():
            if name.startswith("mamba0"):
                got |= {name: x[:, :length]} if length == 37 else {}
            else:
                got[f"L{length}_{name}"] = x[:, :, :length]
        found |= {name: _off(x, oracle[name]) for name, x in got.items() if name in oracle}
    return found


def _rows(params: Any, cfg: ModelConfig, oracle: dict[str, np.ndarray]) -> Differences:
    """Compares padded rows, whose reference is zero on padding, and the packed row."""
    found = {}
    for name in ("pad_left", "pad_right"):
        if f"{name}_ids" in oracle:
            mask = oracle[f"{name}_mask"]
            tokens, _ = _ids(oracle, f"{name}_ids")
            logits, _, _ = forward(params, tokens, jnp.asarray(mask, jnp.int32), cfg)
            found[f"{name}_logits"] = _off(logits * mask[..., None], oracle[f"{name}_logits"])
    segments = jnp.asarray(oracle["pack_segment_ids"], jnp.int32)
    logits, _, _ = forward(params, _ids(oracle, "pack_ids")[0], segments, cfg)
    return found | {"pack_logits": _off(logits, oracle["pack_logits"])}


def _decoded(params: Any, cfg: ModelConfig, oracle: dict[str, np.ndarray]) -> Differences:
    """Compares greedy decoding, and the caches after the prompt and after the last token but one."""
    steps = oracle["greedy_tokens"].shape[1]
    prompt = _ids(oracle, f"L{_prompt_length(oracle)}_ids")[0]
    hidden, cache, _ = prefill(params, prompt, cfg, prompt.shape[1] + steps)
    found = _cache(cache, oracle, "prefill")
    ids, rows = [], []
    for number in range(steps):
        rows.append(hybrid.logits(params, hidden, cfg))
        ids.append(rows[-1].argmax(-1).astype(jnp.int32))
        if number < steps - 1:
            hidden, cache, _ = decode(params, ids[-1], cache, cfg)
    found |= _cache(cache, oracle, "decoded")
    found["greedy_tokens"] = _off(jnp.stack(ids, 1), oracle["greedy_tokens"])
    if "greedy_logits" in oracle:
        found["greedy_logits"] = _off(jnp.stack(rows, 1), oracle["greedy_logits"])
    return found


def _prompt_length(oracle: dict[str, np.ndarray]) -> int:
    return 37 if "L37_ids" in oracle else 17


def _cache(cache: hybrid.Cache, oracle: dict[str, np.ndarray], when: str) -> Differences:
    found, length = {}, int(cache.length[0])
    for name in (name for name in oracle if name.startswith(f"{when}_")):
        _, part, place = name.split("_")
        got = np.asarray(cache.layers[0][int(place)][part][0])
        if part == "conv":  # the reference keeps one more column, which is never read again
            found[name] = _off(np.swapaxes(got, 1, 2), oracle[name][..., 1:])
        else:
            found[name] = _off(got if part == "ssm" else got[:, :, :length], oracle[name])
    return found


def _gradients(
    params: Any, cfg: ModelConfig, oracle: dict[str, np.ndarray], folder: pathlib.Path
) -> Differences:
    tokens, _ = _ids(oracle, f"L{_prompt_length(oracle)}_ids")
    weight = oracle.get("grad_weight", np.ones((tokens.shape[0], tokens.shape[1] - 1)))
    (value, logprobs), grad = loss_and_grad(params, tokens, jnp.asarray(weight, jnp.float32), cfg)
    found = {
        "grad_loss": _off(value, oracle["grad_loss"]),
        "grad_token_logprob": _off(logprobs, oracle["grad_token_logprob"]),
    }
    expected = _published_gradients(folder, cfg)
    leaves = jax.tree_util.tree_leaves_with_path(grad)
    for (path, got), want in zip(leaves, jax.tree.leaves(expected), strict=True):
        largest = np.abs(want).max()  # 0 for the selection bias alone, whose gradient must be 0
        name = "/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
        found[f"grad/{name}"] = _off(got, np.asarray(want)) / float(largest or 1)
    return found


def _published_gradients(folder: pathlib.Path, cfg: ModelConfig) -> Any:
    """Returns the reference gradients as a parameter tree: they have the tensors' published names."""
    tensors = load_file(folder / "grads.safetensors")
    if cfg.moe is not None and cfg.moe.router == "sigmoid":
        for number in (n for n, letter in enumerate(cfg.pattern) if letter == "E"):
            name = f"backbone.layers.{number}.mixer.gate.e_score_correction_bias"
            tensors.setdefault(name, np.zeros(cfg.moe.experts, np.float32))
    with tempfile.TemporaryDirectory() as at:
        save_file(tensors, pathlib.Path(at) / "model.safetensors")
        return jax.tree.map(np.asarray, hf.load_hf(at, cfg))


def _rounded(params: Any, cfg: ModelConfig, oracle: dict[str, np.ndarray]) -> Differences:
    tokens, seen = _ids(oracle, "L37_ids")
    logits, _, _ = forward(params, tokens, seen, cfg)
    narrow = dataclasses.replace(cfg.precision, compute="bfloat16")
    computed, _, _ = forward(params, tokens, seen, dataclasses.replace(cfg, precision=narrow))
    whole = jnp.asarray(oracle["L37_logits"])
    return {
        "logits_bf16_weights": _off(logits, oracle["logits_bf16_weights"]),
        "kl/bf16_weights": mean_kl(whole, logits),
        "kl/bf16_weights_and_compute": mean_kl(whole, computed),
    }


def mean_kl(p: jax.Array, q: jax.Array) -> float:
    """Returns the mean over positions of KL(p || q) of two arrays of logits, in nats."""
    p, q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
    return float((jnp.exp(p) * (p - q)).sum(-1).mean())
