"""Small models whose numbers are known: by hand (unigram, next id) or by computing them two ways."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from nemocascade_jax.config import AttentionConfig, MambaConfig, ModelConfig, MoEConfig
from nemocascade_jax.formats.families import FLOAT32
from nemocascade_jax.models import hybrid
from nemocascade_jax.sharding import Params, map_specs

UNUSED = -40.0  # log-odds of ids that never occur
OUTPUTS = ("w_out", "w_o", "w_down", "shared_down", "latent_out")


def tiny_config(pattern: str = "M*EM", **changes) -> ModelConfig:
    """Returns the config of the tiny hybrid: width 32, vocabulary 64, every kind of layer."""
    cfg = ModelConfig(
        pattern=pattern,
        vocab_size=64,
        width=32,
        mlp_inner=40,
        activation="relu2",
        norm_eps=1e-5,
        max_positions=512,
        tied_embeddings=False,
        init_std=0.02,
        rescale_prenorm_residual=True,
        attention=AttentionConfig(heads=4, kv_heads=2, head_dim=8, rope_theta=None, qk_norm=False),
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
            router="sigmoid",
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
        precision=FLOAT32,
    )
    return dataclasses.replace(cfg, **changes)


def variant_config(name: str) -> ModelConfig:
    """Returns the tiny config of a variant: what the default `M*EM` lacks, several options at once."""
    cfg = tiny_config("M*EM")
    assert cfg.attention is not None
    assert cfg.moe is not None
    limited = {"experts": 8, "groups": 4, "top_groups": 2, "latent": 12}
    softmax = {"router": "softmax", "scale": 1.0, "shared_inner": 20}
    rotary = dataclasses.replace(cfg.attention, rope_theta=100.0, qk_norm=True)
    variants: dict[str, dict] = {
        "default": {},
        "latent": {
            "pattern": "M-*E",
            "moe": dataclasses.replace(cfg.moe, **limited),
            "tied_embeddings": True,
        },
        "mamba": {"pattern": "MM"},
        "rotary": {
            "pattern": "*E*-",
            "moe": dataclasses.replace(cfg.moe, **softmax),
            "attention": rotary,
            "activation": "gated_silu",
        },
    }
    return dataclasses.replace(cfg, **variants[name])


def random_params(cfg: ModelConfig, seed: int = 0) -> Params:
    """Returns parameters of which every one is random and matters; NumPy, so nothing compiles."""
    rng = np.random.default_rng(seed)
    specs = hybrid.model_specs(cfg)
    return map_specs(lambda path, spec: _draw(path.split("/")[-1], spec.shape, rng), specs)


def _draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> jax.Array:
    noise = rng.normal(size=shape)
    if name == "correction_bias":
        drawn = 3 + 0.2 * noise
    elif name in ("embed", "conv_w"):
        drawn = 0.5 * noise
    elif name.startswith(("w_", "shared", "router", "latent")) or name == "head":
        drawn = noise / math.sqrt(shape[-2])
    elif name == "A_log":
        drawn = np.log(np.arange(1, shape[-1] + 1)) + 0.2 * noise
    elif name == "dt_bias":
        drawn = -4 + 1.5 * noise  # steps of about 0.02, from below 0.001 to above 0.1
    else:
        drawn = (0 if name == "conv_b" else 1) + 0.2 * noise
    return jnp.asarray(drawn, jnp.float32)


def tiny_hybrid_config(
    pattern: str = "M*EM", seed: int = 0, **changes
) -> tuple[ModelConfig, Params]:
    """Returns the tiny hybrid with random weights, for computing the same thing two ways."""
    cfg = tiny_config(pattern, **changes)
    return cfg, random_params(cfg, seed)


def _silent_params(cfg: ModelConfig) -> Params:
    """Returns parameters whose layers all add zero."""
    assert not cfg.tied_embeddings
    params = random_params(cfg)
    params["norm"] = jnp.ones_like(params["norm"])
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
