"""Both kinds of model folder load to the same weights; a folder that is none is refused at once."""

import json

import jax
import jax.numpy as jnp
import pytest
from crafted import next_id_params, tiny_config
from model_folders import write_hf

from nemocascade_jax import state
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats import checkpoint
from nemocascade_jax.formats.model_folder import check_model_folder, load_model

TINY = load_tokenizer("tiny")


def test_native_step_and_published_folder_hold_the_same_model(tmp_path):
    """Weights bit for bit, config, tokenizer and stop ids."""
    cfg = tiny_config("-", vocab_size=512)
    params = next_id_params(cfg)
    published = load_model(str(write_hf(tmp_path / "hf", cfg, params, TINY)))
    steps = checkpoint.Checkpoints(tmp_path / "sft" / "checkpoints")
    host = state.HostState(stage="sft", step=3, log_bytes={}, counters={})
    fresh = state.fresh_state(params, {"count": jnp.zeros(())})
    steps.save(fresh, host, checkpoint.model_files(cfg, dict(TINY.files)))
    steps.wait()
    steps.close()
    native = load_model(str(tmp_path / "sft" / "checkpoints" / "3"))
    assert weights_digest(native.params) == weights_digest(published.params)
    assert weights_digest(native.params) == weights_digest(params)
    assert native.cfg == cfg
    assert native.stop_ids == published.stop_ids == (2, 11)
    assert native.tokenizer is not None
    assert native.tokenizer.fingerprint() == TINY.fingerprint()
    with pytest.raises(InputError, match=r"did you mean .*sft/checkpoints/3\?"):
        check_model_folder(str(tmp_path / "sft"))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(native.params))


def test_folder_that_holds_no_model_is_refused(tmp_path):
    """Absent, a file, empty, another family, broken JSON, a tokenizer larger than the model."""
    cfg = tiny_config("-")
    good = write_hf(tmp_path / "model", cfg, next_id_params(cfg))
    (tmp_path / "empty").mkdir()
    cases = [
        (tmp_path / "modell", rf"no such folder; did you mean {good}\?"),
        (good / "config.json", "is a file, not a folder"),
        (tmp_path / "empty", "holds neither config.json"),
        (tmp_path, rf"did you mean {good}\?"),
    ]
    for where, said in cases:
        with pytest.raises(InputError, match=said):
            check_model_folder(str(where))
    (good / "tokenizer.model").write_bytes(TINY.files["tokenizer.model"])
    with pytest.raises(InputError, match="the tokenizer has 512 ids, the model's vocab_size is 64"):
        check_model_folder(str(good))
    text = (good / "config.json").read_text()
    for content, said in [
        (json.dumps(json.loads(text) | {"model_type": "gpt2"}), "model: .*'gpt2' is not supported"),
        ("{", "config.json: not JSON"),
        ("[]", "config.json: expected an object"),
    ]:
        (good / "config.json").write_text(content)
        with pytest.raises(InputError, match=said):
            check_model_folder(str(good))
