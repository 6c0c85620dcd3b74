"""Sentencepiece models with byte fallback and user-defined pieces, and the special tokens beside them."""

import functools
import io
import json
import random

import pytest
import sentencepiece

from nemocascade_jax.data.tokenizer import load_tokenizer

PIECES = ["[INST]", "<turn>", "<mask>", "\u2581\u2581\u2581\u2581", "\n\n"]  # ids 3 to 7
DUMMY, IDENTITY = {}, {"add_dummy_prefix": False, "normalization_rule_name": "identity"}


@functools.cache
def model(*, dummy: bool) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            ["the cat sat on the mat", "a dog ate it", "def f(x): return 1"] * 20
        ),
        model_writer=out,
        vocab_size=300,
        hard_vocab_limit=False,
        byte_fallback=True,
        user_defined_symbols=PIECES,
        remove_extra_whitespaces=False,
        minloglevel=2,
        **(DUMMY if dummy else IDENTITY),
    )
    return out.getvalue()


def load(folder, *, dummy=False, **beside):
    (folder / "tokenizer.model").write_bytes(model(dummy=dummy))
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return load_tokenizer(str(folder))


def texts() -> list[str]:
    draw = random.Random(0)
    letters = [*"abcthe cat<>_/0\n\té€漢\U0001f600  ", *PIECES[:3], "    ", "\n\n"]
    found = ["".join(draw.choices(letters, k=draw.randrange(1, 25))) for _ in range(200)]
    return [*found, "<0xE2>", "<s>the</s>", " the  mat ", "<unk>"]


@pytest.mark.parametrize("dummy", [True, False])
def test_ids_and_text_are_those_of_the_library(tmp_path, dummy):
    """User-defined pieces that are no control tokens are matched whole, letters without one are bytes."""
    tokenizer = load(tmp_path, dummy=dummy)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model(dummy=dummy))
    for text in texts():
        ids = tokenizer.encode(text)
        assert ids == reference.EncodeAsIds(text)
        assert tokenizer.decode(ids) == reference.DecodeIds(ids)
        assert dummy or tokenizer.decode(ids) == text


def test_pieces_that_are_special_by_the_files_beside_stay_text(tmp_path):
    """`<turn>` is an ordinary piece for the model and a special token for the checkpoint."""
    decoder = {
        "0": {"content": "<unk>", "special": True},
        "4": {"content": "<turn>", "special": True},
        "5": {"content": "<renamed>", "special": True},
    }
    tokenizer = load(tmp_path, tokenizer_config={"added_tokens_decoder": decoder})
    assert (tokenizer.special("<turn>"), tokenizer.special("<renamed>")) == (4, 5)
    for text in ("a<turn>b", "<renamed><mask>", *texts()):
        ids = tokenizer.encode(text)
        assert not {4, 5} & set(ids)
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([3, 4, 5], specials=True) == "[INST]<turn><renamed>"
    assert tokenizer.decode([3, 4, 5]) == "[INST]"


def test_added_tokens_beyond_the_model_are_written_by_id_only(tmp_path):
    """`[PAD]` at the first free id, ordinary by its name: never given for text, but the pad id."""
    bare = load(tmp_path)
    more = {"[PAD]": bare.size, "word": bare.size + 1}
    tokenizer = load(tmp_path, added_tokens=more, special_tokens_map={"pad_token": "[PAD]"})
    assert (tokenizer.pad_id, tokenizer.size) == (bare.size, bare.size + 2)
    assert tokenizer.encode("a[PAD]word") == bare.encode("a[PAD]word")
    assert tokenizer.decode([bare.size, bare.size + 1], specials=True) == "[PAD]word"
