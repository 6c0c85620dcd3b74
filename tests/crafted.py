"""Small models whose numbers are known: by hand (unigram, next id) or by computing them two ways."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from nemocascade_jax.config import AttentionConfig, MambaConfig, ModelConfig, MoEConfig
from nemocascade_jax.models import hybrid
from nemocascade_jax.sharding import Params, init_params

UNUSED = -40.0  # log-odds of ids that never occur
OUTPUTS = ("w_out", "w_o", "w_down", "shared_down", "latent_out")


def tiny_config(pattern: str = "M*EM", **changes) -> ModelConfig:
    """Returns the config of the tiny hybrid: width 32, vocabulary 64, every kind of layer."""
    cfg = ModelConfig(
        pattern=pattern,
        vocab_size=64,
        width=32,
        mlp_inner=40,
        norm_eps=1e-5,
        max_positions=512,
        tied_embeddings=False,
        init_std=0.02,
        rescale_prenorm_residual=True,
        attention=AttentionConfig(heads=4, kv_heads=2, head_dim=8),
        mamba=MambaConfig(
            heads=4,
            head_dim=16,
            state=8,
            groups=2,
            conv=4,
            chunk=8,
            time_step_min=0.001,
            time_step_max=0.1,
            time_step_floor=1e-4,
            time_step_limit=None,
        ),
        moe=MoEConfig(
            experts=4,
            top_k=2,
            inner=24,
            shared_inner=32,
            groups=1,
            top_groups=1,
            scale=2.5,
            normalise=True,
            latent=None,
        ),
    )
    return dataclasses.replace(cfg, **changes)


def random_params(cfg: ModelConfig, seed: int = 0) -> Params:
    """Returns parameters of which every one is random and matters."""

    @jax.jit  # one program: drawn leaf by leaf it takes ten times as long
    def draw(seed: int) -> Params:
        params = init_params(hybrid.model_specs(cfg), jax.random.key(seed))
        leaves, tree = jax.tree_util.tree_flatten_with_path(params)
        keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
        pairs = zip(leaves, keys, strict=True)
        return tree.unflatten([_stir(path[-1].key, leaf, key) for (path, leaf), key in pairs])

    return draw(seed)


def _stir(name: str, leaf: jax.Array, key: jax.Array) -> jax.Array:
    noise = jax.random.normal(key, leaf.shape)
    if name == "correction_bias":
        return 3.0 + 0.2 * noise
    if name in ("embed", "conv_w"):
        return 0.5 * noise
    if name.startswith(("w_", "shared", "router", "latent")) or name == "head":
        return noise / math.sqrt(leaf.shape[-2])
    if name == "dt_bias":
        return leaf + noise
    return leaf + 0.2 * noise


def tiny_hybrid_config(
    pattern: str = "M*EM", seed: int = 0, **changes
) -> tuple[ModelConfig, Params]:
    """Returns the tiny hybrid with random weights, for computing the same thing two ways."""
    cfg = tiny_config(pattern, **changes)
    return cfg, random_params(cfg, seed)


def _silent_params(cfg: ModelConfig) -> Params:
    """Returns parameters whose layers all add zero."""
    assert not cfg.tied_embeddings
    params = init_params(hybrid.model_specs(cfg), jax.random.key(0))
    for unit in params["units"]:
        for layer in unit:
            for name in OUTPUTS:
                if name in layer:
                    layer[name] = jnp.zeros_like(layer[name])
    return params


def unigram_params(cfg: ModelConfig, probs: Sequence[float] = (0.5, 0.25, 0.125, 0.125)) -> Params:
    """Returns a model whose logits are ln probs at every position, whatever the prompt."""
    logs = [math.log(p) if p > 0 else UNUSED for p in probs]
    logs += [UNUSED] * (cfg.vocab_size - len(probs))
    params = _silent_params(cfg)
    params["embed"] = jnp.ones_like(params["embed"])
    params["head"] = jnp.broadcast_to(jnp.asarray(logs)[None] / cfg.width, params["head"].shape)
    return params


def next_id_params(cfg: ModelConfig) -> Params:
    """Returns a model that gives 0.7 to the next id modulo 4 and 0.1 to each other id of 0-3."""
    assert cfg.width >= 4
    ids = jnp.arange(cfg.vocab_size)
    after = jnp.arange(4)[:, None]
    table = jnp.where(ids[None] == (after + 1) % 4, math.log(0.7), math.log(0.1))
    table = jnp.where(ids[None] < 4, table, UNUSED) / math.sqrt(cfg.width)
    params = _silent_params(cfg)
    params["embed"] = jax.nn.one_hot(ids % 4, cfg.width)
    params["head"] = jnp.zeros_like(params["head"]).at[:4].set(table)
    return params
