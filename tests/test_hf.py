"""Published checkpoint folders: names, shapes, types, shards, and what is refused."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from model_folders import TINY_HF as CONFIG
from reference_model import reference_logits
from safetensors.numpy import load_file, save_file

from nemocascade_jax.config import MeshConfig, build
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats import families, hf, tensor_names
from nemocascade_jax.models import hybrid
from nemocascade_jax.sharding import make_mesh, map_specs, no_shard, param_shardings
from tolerances import PUBLISHED_LOGITS, SAME_F32

FIXTURES = pathlib.Path(__file__).parent / "fixtures" / "published"
F8 = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
FOLDERS = ("nemotron_h/published", "nemotron_h/fused", "qwen3_moe/published")

# Inner width 6, conv channels 6 + 2 x 5 = 16, in_proj rows 6 + 16 + 2.
SHAPES = {
    "backbone.embeddings.weight": (10, 8),
    "backbone.norm_f.weight": (8,),
    "lm_head.weight": (10, 8),
    **{f"backbone.layers.{i}.norm.weight": (8,) for i in range(4)},
    "backbone.layers.0.mixer.in_proj.weight": (24, 8),
    "backbone.layers.0.mixer.conv1d.weight": (16, 1, 4),
    "backbone.layers.0.mixer.conv1d.bias": (16,),
    "backbone.layers.0.mixer.A_log": (2,),
    "backbone.layers.0.mixer.D": (2,),
    "backbone.layers.0.mixer.dt_bias": (2,),
    "backbone.layers.0.mixer.norm.weight": (6,),
    "backbone.layers.0.mixer.out_proj.weight": (8, 6),
    "backbone.layers.1.mixer.gate.weight": (2, 8),
    "backbone.layers.1.mixer.gate.e_score_correction_bias": (2,),
    **{f"backbone.layers.1.mixer.experts.{e}.up_proj.weight": (7, 8) for e in range(2)},
    **{f"backbone.layers.1.mixer.experts.{e}.down_proj.weight": (8, 7) for e in range(2)},
    "backbone.layers.1.mixer.shared_experts.up_proj.weight": (9, 8),
    "backbone.layers.1.mixer.shared_experts.down_proj.weight": (8, 9),
    "backbone.layers.2.mixer.q_proj.weight": (8, 8),
    "backbone.layers.2.mixer.k_proj.weight": (4, 8),
    "backbone.layers.2.mixer.v_proj.weight": (4, 8),
    "backbone.layers.2.mixer.o_proj.weight": (8, 8),
    "backbone.layers.3.mixer.up_proj.weight": (12, 8),
    "backbone.layers.3.mixer.down_proj.weight": (8, 12),
}


@pytest.fixture
def tensors(rng):
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def cfg():
    return families.model_config_from_hf(CONFIG)


def test_tensors_land_where_the_specs_say(tensors, cfg, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    params = hf.load_hf(tmp_path, cfg)
    shapes = map_specs(lambda path, spec: spec.shape, hybrid.model_specs(cfg))
    assert jax.tree.map(lambda leaf: leaf.shape, params) == shapes
    mamba, moe, attention, mlp = params["units"][0]
    fused = tensors["backbone.layers.0.mixer.in_proj.weight"]
    np.testing.assert_array_equal(mamba["w_gate"][0], fused[:6].T)
    np.testing.assert_array_equal(mamba["w_xbc"][0], fused[6:22].T)
    np.testing.assert_array_equal(mamba["w_dt"][0], fused[22:].T)
    conv = tensors["backbone.layers.0.mixer.conv1d.weight"]
    np.testing.assert_array_equal(mamba["conv_w"][0, 3], conv[:, 0, 3])
    up = tensors["backbone.layers.1.mixer.experts.1.up_proj.weight"]
    np.testing.assert_array_equal(moe["w_up"][0, 1], up.T)
    output = tensors["backbone.layers.2.mixer.o_proj.weight"]
    np.testing.assert_array_equal(attention["w_o"][0], output.T)
    np.testing.assert_array_equal(
        mlp["w_down"][0], tensors["backbone.layers.3.mixer.down_proj.weight"].T
    )
    np.testing.assert_array_equal(params["head"], tensors["lm_head.weight"].T)


def test_future_heads_are_ignored(tensors, cfg, tmp_path):
    save_file(tensors | {"mtp.0.weight": np.zeros(3)}, tmp_path / "model.safetensors")
    hf.load_hf(tmp_path, cfg)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("backbone.layers.0.mixer.D", None, "is missing"),
        ("backbone.layers.0.mixer.D", np.zeros(3, np.float32), r"shape \[3\], expected \[2\]"),
        ("backbone.layers.0.mixer.D", np.zeros(2, np.int32), "holds I32, expected floats"),
        ("backbone.layers.0.mixer.E", np.zeros(2, np.float32), "is not part of pattern 'ME"),
        (
            "lm_head.weight",
            np.zeros((8, 10), np.float32),
            r"shape \[8, 10\], expected \[10, 8\]; transpose it",
        ),
    ],
)
def test_wrong_tensors_are_refused_by_name(name, change, message, tensors, cfg, tmp_path):
    tensors.pop(name, None)
    if change is not None:
        tensors[name] = change
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=message) as caught:
        hf.load_hf(tmp_path, cfg)
    assert name in str(caught.value)


def write_shards(tensors, folder):
    names = sorted(tensors)
    table = {
        name: f"model-{index % 3 + 1:05}-of-00003.safetensors" for index, name in enumerate(names)
    }
    for file in sorted(set(table.values())):
        save_file({name: tensors[name] for name in names if table[name] == file}, folder / file)
    return table


def test_shards_are_read_through_the_index(tensors, cfg, tmp_path):
    table = write_shards(tensors, tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": table}))
    params = hf.load_hf(tmp_path, cfg)
    np.testing.assert_array_equal(params["embed"], tensors["backbone.embeddings.weight"])
    files = sorted(set(table.values()))
    table["lm_head.weight"] = files[(files.index(table["lm_head.weight"]) + 1) % 3]
    index.write_text(json.dumps({"weight_map": table}))
    with pytest.raises(InputError, match=r"lm_head.weight is missing, but .* places it there"):
        hf.load_hf(tmp_path, cfg)
    table["lm_head.weight"] = "model-00004-of-00003.safetensors"
    index.write_text(json.dumps({"weight_map": table}))
    with pytest.raises(
        InputError, match=r"00004-of-00003.safetensors: no such file, but .* lm_head"
    ):
        hf.load_hf(tmp_path, cfg)
    del table["lm_head.weight"]
    index.write_text(json.dumps({"weight_map": table}))
    with pytest.raises(
        InputError, match="tensor lm_head.weight is not listed in model.safetensors"
    ):
        hf.load_hf(tmp_path, cfg)


def test_folders_without_weights_or_config_are_refused(cfg, tmp_path):
    with pytest.raises(InputError, match=r"holds neither model.safetensors nor"):
        hf.load_hf(tmp_path, cfg)
    with pytest.raises(InputError, match=r"config.json: no such file"):
        hf.read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json:1: not JSON"):
        hf.read_config(tmp_path)
    (tmp_path / "model.safetensors").write_text("not a tensor file")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        hf.load_hf(tmp_path, cfg)


# --- shards, types, blocks -----------------------------------------------------------------------


def equal_trees(one, other):
    for (path, want), got in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        np.testing.assert_array_equal(got, want, err_msg=str(path))


@pytest.fixture
def laid():
    """Returns the shardings of a fixture folder's parameters over four devices."""
    rules = {**dict.fromkeys(("seq", "heads", "kv_heads", "mamba_heads", "layers"), ())}
    rules |= {"batch": ("data",), "embed": ("fsdp",), "vocab": (), "mlp": ("tensor",)}
    rules |= {"expert": (), "mamba_inner": ("tensor",)}
    shape = {"data": 2, "fsdp": 2, "expert": 1, "tensor": 2, "context": 1}
    mesh = build(MeshConfig, {**shape, "rules": rules})
    return lambda cfg: param_shardings(hybrid.model_specs(cfg), make_mesh(mesh), mesh.rules)


@pytest.mark.parametrize("folder", FOLDERS[1:])
def test_each_shard_reads_its_own_bytes_once(folder, laid, monkeypatch):
    """On a mesh: the same numbers, each held as its sharding says, no byte for a second replica."""
    cfg = families.model_config_from_hf(hf.read_config(FIXTURES / folder))
    whole = hf.load_hf(FIXTURES / folder, cfg)
    read, largest = 0, 0
    plain = hf._read

    def counted(source, spans):
        nonlocal read, largest
        out = plain(source, spans)
        read, largest = read + out.size, max(largest, out.size)
        return out

    monkeypatch.setattr(hf, "_read", counted)
    shardings = laid(cfg)
    params = hf.load_hf(FIXTURES / folder, cfg, shardings)
    equal_trees(whole, params)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == shardings
    leaves = jax.tree.leaves(params)
    assert read == sum(leaf.size for leaf in leaves)
    assert largest == max(s.data.size for leaf in leaves for s in leaf.addressable_shards)
    assert 2 * largest <= max(leaf.size for leaf in leaves)


def test_large_shards_are_put_together_from_blocks(laid, monkeypatch):
    """Blocks of 512 bytes: the same numbers on a mesh, cut inside experts and inside matrices."""
    folder = FIXTURES / "nemotron_h" / "published"
    cfg = families.model_config_from_hf(hf.read_config(folder))
    whole = hf.load_hf(folder, cfg)
    monkeypatch.setattr(hf, "BLOCK_BYTES", 512)
    sizes = []
    plain = hf._read
    monkeypatch.setattr(hf, "_read", lambda *a: sizes.append(plain(*a).nbytes) or plain(*a))
    equal_trees(whole, hf.load_hf(folder, cfg, laid(cfg)))
    assert max(sizes) <= 512
    assert len(sizes) > 100


@pytest.mark.parametrize("kind", [np.float64, np.float16, ml_dtypes.bfloat16, *F8])
def test_every_float_type_is_read(kind, tensors, cfg, tmp_path):
    narrow = {name: value.astype(kind) for name, value in tensors.items()}
    save_file(narrow, tmp_path / "model.safetensors")
    params = hf.load_hf(tmp_path, cfg)
    want = narrow["backbone.layers.2.mixer.o_proj.weight"].astype(np.float32).T
    np.testing.assert_array_equal(params["units"][0][2]["w_o"][0], want)
    assert set(hf.read_dtypes(tmp_path, cfg)) == set(tensors)
    (stored,) = set(hf.read_dtypes(tmp_path, cfg).values())
    assert hf.FLOATS[stored] == kind


def test_what_must_not_be_narrowed_is_held_in_float32(tensors, cfg, tmp_path):
    """Biases a hundredth apart at 7: in bfloat16 the last two are one number."""
    bias = np.asarray([7.02, 7.03], np.float32)
    assert len(set(bias.astype(ml_dtypes.bfloat16))) == 1
    tensors["backbone.layers.1.mixer.gate.e_score_correction_bias"] = bias
    save_file(tensors, tmp_path / "model.safetensors")
    held = dataclasses.replace(cfg.precision, params="bfloat16")
    params = hf.load_hf(tmp_path, dataclasses.replace(cfg, precision=held))
    mamba, moe, *_ = params["units"][0]
    np.testing.assert_array_equal(moe["correction_bias"][0], bias)
    for name in ("A_log", "D"):
        np.testing.assert_array_equal(mamba[name][0], tensors[f"backbone.layers.0.mixer.{name}"])
    assert {moe["router"].dtype, mamba["dt_bias"].dtype} == {np.dtype(np.float32)}
    assert {moe["w_up"].dtype, mamba["w_gate"].dtype, params["embed"].dtype} == {jnp.bfloat16.dtype}


@pytest.mark.slow
def test_memory_of_an_import_stays_near_what_is_held(root):
    """A checkpoint of 0.3 GB on four devices: the arrays and less than 0.6 GB beside them."""
    command = [sys.executable, "tools/import_memory.py", "--gb", "0.3"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["held_bytes"] > 0.59e9
    assert found["peak_bytes"] < found["held_bytes"] + 0.6e9
    assert done.returncode == 0


# --- the project's own published folders ---------------------------------------------------------


def test_dialects_hold_one_model():
    """Names of the hub in bfloat16, names of transformers in float32: the same tree and config."""
    published, fused = (FIXTURES / folder for folder in FOLDERS[:2])
    cfg = families.model_config_from_hf(hf.read_config(published))
    assert families.model_config_from_hf(hf.read_config(fused)) == cfg
    equal_trees(hf.load_hf(published, cfg), hf.load_hf(fused, cfg))
    read = hf.read_dtypes(published, cfg)
    assert list(read) == [tensor.name for tensor in tensor_names.hub_tensors(cfg)]
    kept = {name for name, kind in read.items() if kind == "F32"}
    assert {name.split(".")[-1] for name in kept} == {"A_log", "D", "e_score_correction_bias"}
    assert set(hf.read_dtypes(fused, cfg)) == set(read)


@pytest.mark.parametrize("folder", ["nemotron_h", "qwen3_moe"])
def test_logits_are_those_of_the_second_implementation(folder):
    """Of `reference_model.py`: float64, a token at a time, straight from the stored tensors."""
    published = FIXTURES / folder / "published"
    expected = np.load(FIXTURES / folder / "expected.npz")
    cfg = families.model_config_from_hf(hf.read_config(published))
    tokens = jnp.asarray(expected["tokens"])

    @jax.jit
    def logits(params):
        hidden, _ = hybrid.forward(params, tokens, jnp.ones_like(tokens), cfg, no_shard)
        return hybrid.logits(params, hidden, cfg)

    got = logits(hf.load_hf(published, cfg))
    np.testing.assert_allclose(got, expected["logits"], *PUBLISHED_LOGITS)


def test_fixtures_are_what_the_tool_writes(root, tmp_path):
    """The same tensors and configs byte for byte; the logits up to the rounding of another machine."""
    subprocess.run([sys.executable, "tools/make_fixtures.py", tmp_path], cwd=root, check=True)
    for path in sorted(path for path in FIXTURES.rglob("*") if path.is_file()):
        again = tmp_path / path.relative_to(FIXTURES)
        if path.suffix == ".npz":
            one, other = np.load(path), np.load(again)
            np.testing.assert_array_equal(one["tokens"], other["tokens"])
            np.testing.assert_allclose(one["logits"], other["logits"], *SAME_F32)
        else:
            assert path.read_bytes() == again.read_bytes(), path


# --- the published folders -----------------------------------------------------------------------

DIALECTS = {
    "nemotron_h_tiny": ("published_sharded", "published_bf16", "fused"),
    "qwen3_moe_tiny": ("published_sharded",),
}


@pytest.mark.parametrize(
    ("model", "dialect"), [(model, one) for model, all_ in DIALECTS.items() for one in all_]
)
def test_published_dialects_hold_the_same_weights(model, dialect, extra_dir):
    folder = extra_dir / "fixtures" / model
    cfg = families.model_config_from_hf(hf.read_config(folder / "published"))
    assert families.model_config_from_hf(hf.read_config(folder / dialect)) == cfg
    plain, other = hf.load_hf(folder / "published", cfg), hf.load_hf(folder / dialect, cfg)
    if dialect != "published_bf16":
        equal_trees(plain, other)
        return
    for (path, want), got in zip(
        jax.tree_util.tree_leaves_with_path(plain), jax.tree.leaves(other), strict=True
    ):
        if path[-1].key in tensor_names.KEPT_FLOAT32:  # kept beside bfloat16 weights
            np.testing.assert_array_equal(got, want)
        else:
            rounded = np.asarray(want).astype(ml_dtypes.bfloat16).astype(np.float32)
            np.testing.assert_array_equal(got, rounded)


@pytest.mark.parametrize("model", DIALECTS)
def test_second_implementation_agrees_with_the_published_one(model, extra_dir):
    folder = extra_dir / "fixtures" / model
    tensors = load_file(folder / "published" / "model.safetensors")
    oracle = np.load(folder / "oracle.npz")
    for ids, logits in zip(oracle["L17_ids"], oracle["L17_logits"], strict=True):
        got = reference_logits(tensors, hf.read_config(folder / "published"), ids)
        np.testing.assert_allclose(got, logits, *PUBLISHED_LOGITS)
