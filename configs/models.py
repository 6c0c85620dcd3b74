"""Model shapes: `tiny` and `micro` for a laptop's CPU, `nano_30b_a3b` for the published model (paper 1.1)."""

from ml_collections import ConfigDict


def micro() -> ConfigDict:
    """About 0.1M parameters: continuous integration and kill tests."""
    config = tiny()
    config.pattern = "ME*E"
    config.width = 48
    config.moe.experts = 4
    return config


def tiny() -> ConfigDict:
    """About 0.4M parameters, every kind of layer."""
    config = ConfigDict()
    config.pattern = "ME*EME*E"
    config.vocab_size = 512
    config.width = 64
    config.mlp_inner = None
    config.activation = "relu2"
    config.norm_eps = 1e-5
    config.max_positions = 2048
    config.tied_embeddings = False
    config.init_std = 0.05  # 0.02 of the published width 2,688 is too small a start at width 64
    config.rescale_prenorm_residual = True
    config.attention = ConfigDict(
        {"heads": 4, "kv_heads": 2, "head_dim": 16, "rope_theta": None, "qk_norm": False}
    )
    config.mamba = ConfigDict(
        {
            "heads": 4,
            "head_dim": 16,
            "state": 16,
            "groups": 2,
            "conv": 4,
            "chunk": 16,
            "time_step_min": 0.001,
            "time_step_max": 0.1,
            "time_step_floor": 1e-4,
            "time_step_limit": None,
        }
    )
    config.moe = ConfigDict(
        {
            "router": "sigmoid",
            "experts": 8,
            "top_k": 2,
            "inner": 64,
            "shared_inner": 64,
            "groups": 1,
            "top_groups": 1,
            "scale": 2.5,
            "normalise": True,
            "latent": None,
        }
    )
    config.precision = ConfigDict(
        {
            "params": "float32",
            "compute": "float32",
            "router": "float32",
            "ssm_state": "float32",
            "logits": "float32",
        }
    )
    return config


def nano_30b_a3b() -> ConfigDict:
    """Nemotron-3-Nano / Nemotron-Cascade-2 30B-A3B: 31,577,940,288 parameters, 3,580,076,352 active."""
    config = tiny()
    config.pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    config.vocab_size = 131_072
    config.width = 2688
    config.max_positions = 262_144
    config.init_std = 0.02
    config.attention.update({"heads": 32, "kv_heads": 2, "head_dim": 128})
    config.mamba.update({"heads": 64, "head_dim": 64, "state": 128, "groups": 8, "chunk": 128})
    config.precision.compute = "bfloat16"
    config.moe.update({"experts": 128, "top_k": 6, "inner": 1856, "shared_inner": 3712})
    return config
