"""Converting both ways: nothing is lost, other programs can read it, bad input is one line."""

import json
import math
import pathlib
import shutil
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from crafted import random_params, tiny_config
from model_folders import ROOT, run_command
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.formats import families, hf, hf_export, tensor_names
from nemocascade_jax.formats.model_folder import (
    HF_CONFIG,
    HF_DTYPES,
    carried_files,
    check_model_folder,
    load_model,
)
from nemocascade_jax.formats.new_folder import new_folder

FIXTURES = pathlib.Path(__file__).parent / "fixtures" / "published"
TINY = load_tokenizer("tiny")

# Runs the command several times in one process: what a start costs is paid once.
MANY = """
import contextlib, io, json, sys
sys.path.insert(0, "launch")
import command, convert
out = []
for argv in json.loads(sys.argv[1]):
    said = io.StringIO()
    sys.argv = ["convert.py", *argv]
    convert.FLAGS.unparse_flags()
    for name in ("src", "dst", "to", "dtype", "shard_gb"):
        convert.FLAGS[name].value = convert.FLAGS[name].default
    with contextlib.redirect_stderr(said):
        try:
            command.run(convert.main)
        except SystemExit as end:
            out.append((end.code, said.getvalue()))
print(json.dumps(out))
"""


def convert(*calls):
    """Returns (exit code, standard error) of each call's flags."""
    argvs = [[f"--{name}={value}" for name, value in call.items()] for call in calls]
    program = [sys.executable, "-c", MANY, json.dumps(argvs)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def stored(folder):
    """Returns every tensor of a folder with its file, as a plain reader of the files sees them."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, value in load_file(path).items():
            assert name not in found, f"{name} lies in two files"
            found[name] = (path.name, value)
    return found


def equal_trees(one, other):
    for (path, want), got in zip(
        jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True
    ):
        assert got.dtype == want.dtype, path
        np.testing.assert_array_equal(got, want, err_msg=str(path))


# --- round trips ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Returns folders in each dialect: hub names, transformers names, shards, another family."""
    at = tmp_path_factory.mktemp("sources")
    published = shutil.copytree(FIXTURES / "nemotron_h" / "published", at / "published")
    extra = {"auto_map": {"AutoConfig": "file.Class"}, "time_step_limit": [0.0, math.inf]}
    config = json.loads((published / "config.json").read_text()) | extra
    (published / "config.json").write_text(json.dumps(config))
    (published / "generation_config.json").write_text('{"eos_token_id": [2, 11]}')
    (published / "chat_template.jinja").write_text("{{ messages }}")
    sharded = shutil.copytree(published, at / "sharded")
    tensors = load_file(sharded / "model.safetensors")
    table = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(table.values()):
        save_file({n: t for n, t in tensors.items() if table[n] == file}, sharded / file)
    (sharded / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    return {
        "published": published,
        "sharded": sharded,
        "fused": FIXTURES / "nemotron_h" / "fused",
        "qwen3_moe": FIXTURES / "qwen3_moe" / "published",
    }


@pytest.fixture(scope="module")
def converted(sources, tmp_path_factory):
    """Returns where each dialect lies as native and as exported again, all done by the command."""
    at = tmp_path_factory.mktemp("converted")
    calls = []
    for name, src in sources.items():
        calls.append({"src": src, "dst": at / f"{name}-native", "to": "native"})
        exported = {"src": at / f"{name}-native", "dst": at / f"{name}-hf", "to": "hf"}
        calls.append(exported | {"shard_gb": 2e-5})
    narrow = {"src": sources["fused"], "dst": at / "narrow-hf", "to": "hf", "dtype": "bfloat16"}
    held = {"src": sources["fused"], "dst": at / "narrow-native", "to": "native"}
    done = convert(*calls, narrow, held | {"dtype": "bfloat16"})
    assert [code for code, _ in done] == [0] * len(done), done
    return at


@pytest.mark.parametrize("name", ["published", "sharded", "fused", "qwen3_moe"])
def test_import_export_import_is_the_same_model(name, sources, converted):
    """Trees byte for byte and configs, through a native checkpoint, whatever dialect came in."""
    first = load_model(str(sources[name]))
    native = load_model(str(converted / f"{name}-native"))
    again = load_model(str(converted / f"{name}-hf"))
    assert first.cfg == native.cfg == again.cfg
    assert first.stop_ids == native.stop_ids == again.stop_ids
    equal_trees(first.params, native.params)
    equal_trees(first.params, again.params)
    cfg = first.cfg
    assert hf.read_dtypes(converted / f"{name}-hf", cfg) == hf.read_dtypes(sources[name], cfg)


def test_exported_tensors_are_the_published_ones(sources, converted):
    """Names, types and bytes of the hub's own file, split into files as the index says."""
    original = load_file(sources["published"] / "model.safetensors")
    for name in ("published", "sharded"):
        written = stored(converted / f"{name}-hf")
        assert set(written) == set(original)
        for key, (_, value) in written.items():
            assert value.dtype == original[key].dtype, key
            np.testing.assert_array_equal(value, original[key])
    assert set(stored(converted / "fused-hf")) == set(original)


def test_what_came_with_the_weights_goes_with_them(sources, converted):
    for name in ("published-native/model", "published-hf"):
        for file in ("generation_config.json", "chat_template.jinja"):
            content = (sources["published"] / file).read_bytes()
            assert (converted / name / file).read_bytes() == content
    before = json.loads((sources["published"] / "config.json").read_text())
    after = json.loads((converted / "published-hf" / "config.json").read_text())
    assert before.pop("time_step_limit") == [0.0, math.inf]  # no word of JSON; absent says it too
    assert after == before
    fused = json.loads((converted / "fused-hf" / "config.json").read_text())
    assert fused["hybrid_override_pattern"] == "M*E-ME"
    assert "layers_block_type" not in fused
    assert not list(converted.glob(".*"))


def test_narrower_exports_keep_what_must_not_be_narrowed(sources, converted):
    """--dtype bfloat16: A_log, D and the correction bias stay in float32, bit for bit."""
    wide = load_file(FIXTURES / "nemotron_h" / "fused" / "model.safetensors")
    for key, (_, value) in stored(converted / "narrow-hf").items():
        kept = key.endswith(("A_log", ".D", "e_score_correction_bias"))
        assert value.dtype == (np.float32 if kept else ml_dtypes.bfloat16), key
        if kept:
            np.testing.assert_array_equal(value, wide[key.replace("backbone.", "model.")])
    config = json.loads((converted / "narrow-hf" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    native = load_model(str(converted / "narrow-native"))
    assert native.cfg.precision.params == "bfloat16"
    moe = native.params["units"][0][2]
    assert moe["w_up"].dtype == ml_dtypes.bfloat16
    assert moe["correction_bias"].dtype == np.float32


# --- shards and their index ----------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("limit", [1, 30_000, 10**9])
def test_index_and_files_are_one_list(tied, limit, tmp_path):
    """Tied or not, tensors over the limit, several files, one file: nothing listed that is not there."""
    cfg = families.used_parts(tiny_config("M*E-", tied_embeddings=tied))
    params = random_params(cfg)
    hf_export.save_hf(tmp_path, params, cfg, {}, dtype="float32", limit=limit)
    written = stored(tmp_path)
    assert set(written) == {tensor.name for tensor in tensor_names.hub_tensors(cfg)}
    assert ("lm_head.weight" in written) is not tied
    assert all(value.size for _, value in written.values())
    files = {file for file, _ in written.values()}
    index = tmp_path / "model.safetensors.index.json"
    if limit == 10**9:
        assert files == {"model.safetensors"}
        assert not index.exists()
    else:
        said = json.loads(index.read_text())
        assert said["weight_map"] == {name: file for name, (file, _) in written.items()}
        assert said["metadata"]["total_size"] == sum(v.nbytes for _, v in written.values())
        assert len(files) == (len(written) if limit == 1 else 4)
        count = len(files)
        assert files == {f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)}
        sizes = {file: sum(v.nbytes for f, v in written.values() if f == file) for file in files}
        assert limit == 1 or max(sizes.values()) <= limit
    if not tied:
        table = written["backbone.embeddings.weight"][1]
        assert not np.array_equal(written["lm_head.weight"][1], table)
    assert families.model_config_from_hf(hf.read_config(tmp_path)) == cfg
    equal_trees(params, hf.load_hf(tmp_path, cfg))


def test_types_are_those_read_else_the_hubs(tmp_path):
    """A short type is kept for A_log, D and the bias only while it holds them exactly."""
    cfg = families.used_parts(tiny_config("ME"))
    params = random_params(cfg)
    bias = "backbone.layers.1.mixer.gate.e_score_correction_bias"
    a_log = "backbone.layers.0.mixer.A_log"
    moe = params["units"][0][1]
    moe["correction_bias"] = moe["correction_bias"] * 0 + 7.5
    read = {bias: "BF16", a_log: "BF16", "lm_head.weight": "F16"}
    read["backbone.layers.1.mixer.gate.weight"] = "F32"
    plan = hf_export.plan_tensors(params, cfg, read=read, dtype=None)
    kinds = {one.tensor.name: one.dtype for one in plan}
    assert kinds[bias] == "BF16"
    assert kinds[a_log] == "F32"
    assert kinds["lm_head.weight"] == "F16"
    assert kinds["backbone.layers.1.mixer.gate.weight"] == "F32"
    assert kinds["backbone.layers.0.mixer.D"] == "F32"
    assert kinds["backbone.layers.0.mixer.dt_bias"] == "BF16"
    hf_export.save_tensors(tmp_path, params, plan, 10**9)
    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert {key: file.get_slice(key).get_dtype() for key in file.keys()} == kinds  # noqa: SIM118


def test_model_that_was_never_published_is_exported_with_its_tokenizer(tmp_path):
    cfg = families.used_parts(tiny_config("M*E-", vocab_size=512))
    params = random_params(cfg)
    ids = {"bos_token_id": 1, "eos_token_id": [2, 11], "pad_token_id": 0}
    files = {k: v for k, v in TINY.files.items() if k != "generation_config.json"}
    hf_export.save_hf(tmp_path, params, cfg, files, ids=ids)
    folder = check_model_folder(str(tmp_path))
    assert folder.cfg == cfg
    assert folder.stop_ids == (2, 11)
    assert folder.tokenizer.fingerprint() == TINY.fingerprint()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16"
    assert config["architectures"] == ["NemotronHForCausalLM"]
    assert config["pad_token_id"] == 0
    carried = carried_files(folder)
    assert set(carried) == {*TINY.files, "generation_config.json", HF_CONFIG, HF_DTYPES}


# --- what is refused -----------------------------------------------------------------------------


def broken_folders(published, at):
    """Returns (folder, what is said) of each fault."""
    config = json.loads((published / "config.json").read_text())
    tensors = load_file(published / "model.safetensors")

    def copy(name, **changes):
        folder = shutil.copytree(published, at / name)
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    truncated = copy("truncated")
    whole = (truncated / "model.safetensors").read_bytes()
    (truncated / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    absent = copy("absent")
    (absent / "model.safetensors").unlink()
    table = dict.fromkeys(tensors, "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": table}
    (absent / "model.safetensors.index.json").write_text(json.dumps(index))
    turned = copy("turned")
    name = "backbone.layers.2.mixer.experts.3.up_proj.weight"
    save_file(tensors | {name: np.ascontiguousarray(tensors[name].T)}, turned / "model.safetensors")
    larger = copy("larger")
    (larger / "tokenizer.model").write_bytes(TINY.files["tokenizer.model"])
    return [
        (truncated, ["truncated/model.safetensors: not a readable safetensors file"]),
        (absent, ["absent/model-00001-of-00002.safetensors: no such file", "copy the missing"]),
        (turned, [f"tensor {name} has shape [24, 12], expected [12, 24]; transpose it"]),
        (larger, ["the tokenizer has 512 ids, the model's vocab_size is 48"]),
        (copy("other", model_type="gpt2"), ["--src", "model_type 'gpt2' is not supported"]),
    ]


def test_bad_folders_are_one_line_and_leave_nothing(sources, tmp_path):
    cases = broken_folders(sources["published"], tmp_path)
    dst = tmp_path / "out"
    both = [{"src": src, "dst": dst, "to": to} for src, _ in cases for to in ("native", "hf")]
    for (code, said), (_, parts) in zip(
        convert(*both), [case for case in cases for _ in range(2)], strict=True
    ):
        assert code == 2
        assert said.count("\n") == 1
        assert all(part in said for part in parts), said
    assert not dst.exists()


def test_bad_flags_are_one_line(sources, tmp_path):
    src, new = sources["published"], tmp_path / "new"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    good = {"src": src, "dst": new, "to": "hf"}
    cases = [
        ({"dst": new, "to": "hf"}, "--src: missing"),
        (good | {"to": "gguf"}, "--to: 'gguf' is none of hf, native"),
        (good | {"dtype": "int8"}, "--dtype: 'int8' is none of float32, bfloat16, float16"),
        (good | {"to": "native", "dtype": "float16"}, "'float16' is none of float32, bfloat16"),
        (good | {"shard_gb": 0}, "--shard_gb: 0; must be above 0"),
        (good | {"dst": tmp_path / "full"}, "full: is not empty; name a new folder"),
        (good | {"dst": tmp_path / "no" / "where"}, "is no folder; make it first"),
        (good | {"dst": tmp_path / "full" / "file"}, "is a file; name a new folder"),
    ]
    for (code, said), (_, part) in zip(convert(*(c for c, _ in cases)), cases, strict=True):
        assert (code, said.count("\n")) == (2, 1)
        assert part in said, said
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_folder_appears_whole_or_not_at_all(tmp_path):
    (tmp_path / "there").mkdir()
    with new_folder(tmp_path / "there") as part:
        (part / "file").write_text("x")
        assert not any((tmp_path / "there").iterdir())
    assert (tmp_path / "there" / "file").read_text() == "x"

    def fail():
        with new_folder(tmp_path / "other") as part:
            (part / "file").write_text("x")
            raise OSError("disk full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_help_imports_no_jax():
    program = (
        "import sys; sys.path.insert(0, 'launch'); import convert; print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
    assert "--shard_gb" in run_command("convert", help=True).stdout


# --- the published folders -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "dialect",
    [f"nemotron_h_tiny/{d}" for d in ("published", "published_sharded", "published_bf16", "fused")]
    + ["qwen3_moe_tiny/published_sharded"],
)
def test_published_folders_round_trip(dialect, extra_dir, tmp_path):
    """import -> export -> import: byte-equal trees and equal configs; types as they were read."""
    folder = check_model_folder(str(extra_dir / "fixtures" / dialect))
    params = hf.load_hf(folder.path, folder.cfg)
    hf_export.save_hf(tmp_path, params, folder.cfg, carried_files(folder), limit=100_000)
    again = load_model(str(tmp_path))
    assert again.cfg == folder.cfg
    equal_trees(params, again.params)
    read = hf.read_dtypes(folder.path, folder.cfg)
    assert hf.read_dtypes(tmp_path, folder.cfg) == read
