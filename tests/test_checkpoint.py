import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nemocascade_jax.config import ModelConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.checkpoint import (
    Checkpoints,
    checkpoint_steps,
    load_model_files,
    load_params,
    model_files,
    remove_checkpoint,
)
from nemocascade_jax.formats.families import FLOAT32
from nemocascade_jax.state import HostState, fresh_state

MODEL = ModelConfig(
    pattern="-",
    vocab_size=8,
    width=4,
    mlp_inner=4,
    activation="relu2",
    norm_eps=1e-5,
    max_positions=16,
    tied_embeddings=False,
    init_std=0.1,
    rescale_prenorm_residual=True,
    attention=None,
    mamba=None,
    moe=None,
    precision=FLOAT32,
)
TX = optax.adamw(0.1)


def make_state(seed=0):
    params = {"a": jax.random.normal(jax.random.key(seed), (4, 8)), "units": [[{"b": jnp.ones(3)}]]}
    state = fresh_state(params, TX.init(params))
    return state.replace(step=jnp.int32(3), cursor=jnp.int32(17))


def save(folder, state, step=3):
    checkpoints = Checkpoints(folder)
    host = HostState("sft", step, {"metrics.jsonl": 120}, {"skipped_updates": 1})
    checkpoints.save(state, host, model_files(MODEL, {"tokenizer.model": b"\x00pieces"}))
    checkpoints.wait()
    return checkpoints


def test_a_state_comes_back_bit_for_bit(tmp_path):
    state = make_state()
    checkpoints = save(tmp_path / "checkpoints", state)
    again, host = checkpoints.restore(3, make_state(seed=1))
    assert jax.tree.structure(again) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(state), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert host == HostState("sft", 3, {"metrics.jsonl": 120}, {"skipped_updates": 1})
    checkpoints.close()


def test_a_step_folder_is_a_model_by_itself(tmp_path):
    state = make_state()
    save(tmp_path, state).close()
    params = load_params(tmp_path / "3", jax.eval_shape(lambda: make_state().params))
    np.testing.assert_array_equal(params["a"], state.params["a"])
    cfg, files = load_model_files(tmp_path / "3")
    assert cfg == MODEL
    assert files == {"tokenizer.model": b"\x00pieces"}


def test_a_removed_step_is_gone_and_the_others_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(make_state(), HostState("sft", step, {}, {}), model_files(MODEL, {}))
    checkpoints.wait()
    (tmp_path / ".removed-0").mkdir()  # what a kill in the middle of a removal leaves
    remove_checkpoint(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]
    assert checkpoint_steps(tmp_path) == [1, 3]
    assert checkpoints.latest() == 3
    checkpoints.close()


def test_a_half_written_checkpoint_is_invisible(tmp_path):
    save(tmp_path, make_state()).close()
    half = tmp_path / "5.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "3", half)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() == 3
    checkpoints.close()


def test_a_damaged_checkpoint_is_named(tmp_path):
    save(tmp_path, make_state()).close()
    shutil.rmtree(tmp_path / "3" / "params")
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(InputError, match=rf"checkpoint {tmp_path}/3: "):
        checkpoints.restore(3, make_state())
    checkpoints.close()


def test_another_models_checkpoint_is_refused(tmp_path):
    save(tmp_path, make_state()).close()
    other = make_state().params | {"a": jnp.ones((4, 9))}
    with pytest.raises(InputError, match=f"checkpoint {tmp_path}/3"):
        load_params(tmp_path / "3", other)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(InputError, match="no native checkpoint: model/model.json is not there"):
        load_model_files(tmp_path)


def test_the_model_file_is_plain_json():
    files = model_files(MODEL, {})
    assert json.loads(files["model.json"])["pattern"] == "-"
