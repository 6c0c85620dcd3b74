"""What is exported, as transformers loads and runs it; skipped where torch is not installed."""

import math
import pathlib

import numpy as np
import pytest
from crafted import random_params
from model_folders import TINY_HF
from reference_model import reference_logits
from safetensors.numpy import load_file
from test_families import BLOCKS

from nemocascade_jax.formats import families, hf, hf_export
from nemocascade_jax.formats.model_folder import carried_files, check_model_folder, load_model
from tolerances import PUBLISHED_LOGITS

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

FIXTURES = pathlib.Path(__file__).parent / "fixtures" / "published"


def run(folder, tokens):
    """Returns the logits of transformers; any key too many or too few fails."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, experts_implementation="eager"
    )
    assert not any(info.values()), info
    for layer in model.model.layers:
        if hasattr(getattr(layer, "mixer", None), "time_step_limit"):
            # It takes `time_step_min` for a floor where the published model has none.
            layer.mixer.time_step_limit = (0.0, math.inf)
    with torch.no_grad():
        return model(torch.tensor(np.asarray(tokens)).long()).logits.numpy()


@pytest.mark.parametrize(
    "source", ["nemotron_h/published", "nemotron_h/fused", "qwen3_moe/published"]
)
def test_transformers_computes_the_same_logits_from_an_export(source, tmp_path):
    folder = check_model_folder(str(FIXTURES / source))
    params = load_model(folder).params
    hf_export.save_hf(tmp_path, params, folder.cfg, carried_files(folder), limit=30_000)
    expected = np.load(FIXTURES / source.split("/")[0] / "expected.npz")
    got = run(tmp_path, expected["tokens"])
    np.testing.assert_allclose(got, expected["logits"], *PUBLISHED_LOGITS)


@pytest.mark.parametrize(
    "config",
    [BLOCKS, BLOCKS | {"model_type": "qwen3", "head_dim": 16}, TINY_HF],
    ids=lambda c: c["model_type"],
)
def test_transformers_loads_a_model_that_never_had_a_config(config, tmp_path, rng):
    """Tied and untied, with a config.json of our own making; logits of the second implementation."""
    cfg = families.model_config_from_hf(config)
    hf_export.save_hf(tmp_path, random_params(cfg), cfg, {}, dtype="float32")
    written = hf.read_config(tmp_path)
    tokens = rng.integers(0, cfg.vocab_size, (1, 11))
    want = reference_logits(load_file(tmp_path / "model.safetensors"), written, tokens[0])
    np.testing.assert_allclose(run(tmp_path, tokens)[0], want, *PUBLISHED_LOGITS)
