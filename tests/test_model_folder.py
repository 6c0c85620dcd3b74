"""Both kinds of model folder load to the same weights; a folder that is none is refused at once."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import next_id_params, tiny_config
from model_folders import write_hf

from nemocascade_jax import state
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.digest import weights_digest
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats import checkpoint
from nemocascade_jax.formats.model_folder import carried_files, check_model_folder, load_model

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
    mesh = jax.make_mesh((2,), ("x",))
    laid = jax.tree.map(
        lambda leaf: jax.NamedSharding(mesh, jax.P(*[None] * (leaf.ndim - 1), "x")), params
    )
    for folder in (tmp_path / "hf", tmp_path / "sft" / "checkpoints" / "3"):
        spread = load_model(str(folder), laid).params
        assert jax.tree.map(lambda leaf: leaf.sharding, spread) == laid
        jax.tree.map(np.testing.assert_array_equal, spread, params)


def test_small_files_of_a_published_model_go_on_with_its_steps(tmp_path):
    """Its config.json and the types of its tensors lie beside model.json, and come out again."""
    cfg = tiny_config("-", vocab_size=512)
    folder = check_model_folder(str(write_hf(tmp_path / "hf", cfg, next_id_params(cfg), TINY)))
    files = carried_files(folder)
    assert files["hf_config.json"] == (tmp_path / "hf" / "config.json").read_bytes()
    assert set(json.loads(files["dtypes.json"]).values()) == {"F32"}
    params = load_model(folder).params
    checkpoint.save_model(tmp_path, params, checkpoint.model_files(folder.cfg, files))
    again = check_model_folder(str(tmp_path))
    assert carried_files(again) == files
    assert again.cfg == folder.cfg
    assert weights_digest(load_model(again).params) == weights_digest(params)


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
