"""Both kinds of tokenizer file give text back exactly and never make special ids of it."""

import functools
import io
import json
import pathlib
import subprocess
import sys
import tempfile

import pytest
import sentencepiece
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemocascade_jax.data.tokenizer import NoTokenizer, Tokenizer, load_tokenizer, stop_ids_of
from nemocascade_jax.errors import InputError

TINY = load_tokenizer("tiny")
NAMES = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
NAMES += ["<tool_response>", "</tool_response>"]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
TYPED = st.lists(st.sampled_from([*NAMES, "<s>", "<unk>", "<0x41>", " ", "\n", "a"]), max_size=6)


def byte_level(*, prepend: str | None = None, flagged: bool = True) -> dict:
    """A byte-level `tokenizer.json`: 256 byte letters from id 6 on, some words, special tokens."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>"]
    vocabulary = {name: number for number, name in enumerate([*names, *letters, "th", "the"])}
    model = tokenizers.models.BPE(vocabulary, [("t", "h"), ("th", "e")])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    add = tokenizers.AddedToken
    made.add_tokens(
        [add(name, special=flagged or name[1] != "t", normalized=False) for name in names]
    )
    if prepend is not None:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{prepend} $A </s>", special_tokens=[(prepend, 1), ("</s>", 2)]
        )
    return json.loads(made.to_str())


def sentencepiece_bytes(**settings: object) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "a dog"] * 20),
        model_writer=out,
        vocab_size=290,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
        **settings,
    )
    return out.getvalue()


def write(folder: pathlib.Path, **files: object) -> str:
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(folder)


@functools.cache
def unflagged_byte_level() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(
            write(pathlib.Path(folder), tokenizer__json=byte_level(flagged=False))
        )


@given(TEXTS)
@example(" leading  double   and trailing ")
@example("\n\n a\tb\r\n")
@example("\u2581a \u2581 b\u2581\u2581")
@example("\x00\ufffd<0xE2>\U0001f600")
@settings(derandomize=True, deadline=None, max_examples=150)
def test_tiny_gives_every_text_back(text):
    assert TINY.decode(TINY.encode(text)) == text


@given(TYPED)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_typed_special_tokens_stay_text(words):
    """Text that spells special tokens has ordinary ids only, and decodes to itself (T14)."""
    ids = TINY.encode("".join(words))
    assert not set(ids) & set(TINY.specials.values())
    assert TINY.decode(ids) == "".join(words)


def test_tiny_has_the_published_low_ids():
    low = {"<unk>": 0, "<s>": 1, "</s>": 2} | {name: 10 + i for i, name in enumerate(NAMES)}
    assert {name: TINY.special(name) for name in low} == low
    assert (TINY.size, TINY.pad_id, TINY.bos_id, TINY.adds_bos) == (512, 0, 1, False)
    assert TINY.stop_ids == (2, 11)
    assert TINY.special("<|no_such|>") is None


def test_tiny_writes_digits_newlines_and_ascii_one_by_one():
    for text in ("1234567", "\n\n\n", "\\{}[]:~", "QZXJ"):
        assert len(TINY.encode(text)) == len(text)
    for word in ("user\n", "assistant\n", " the", " Write", " words"):
        assert len(TINY.encode(word.rstrip("\n"))) == 1


def test_character_over_two_tokens_decodes_whole():
    """E2 82 | AC is the euro sign; cut after the first token it is one replacement mark (T08)."""
    euro = TINY.encode("€")
    assert len(euro) == 3
    assert TINY.decode(euro) == "€"
    assert TINY.decode(euro[:2]) == "\ufffd"
    assert TINY.decode([*TINY.encode("a"), *TINY.encode("\U0001f600")[:3]]) == "a\ufffd"


def test_bytes_do_not_join_across_a_special_token():
    euro = TINY.encode("€")
    cut = [*euro[:2], TINY.special("<s>"), euro[2]]
    assert TINY.decode(cut) == "\ufffd\ufffd"
    assert TINY.decode(cut, specials=True) == "\ufffd<s>\ufffd"


def test_decode_keeps_tags_and_hides_framing():
    ids = [12, *TINY.encode("a"), 13, 11, 0, 600]
    assert TINY.decode(ids) == "<think>a</think>\ufffd\ufffd"
    assert TINY.decode(ids, specials=True) == "<think>a</think><|im_end|><unk>\ufffd"


def test_lone_surrogates_become_replacement_marks():
    assert TINY.decode(TINY.encode("a\ud800b")) == "a\ufffdb"
    assert TINY.decode(TINY.encode("\ud83d\ude00")) == "\U0001f600"


def test_files_restore_the_tokenizer(tmp_path):
    for name, content in TINY.files.items():
        (tmp_path / name).write_bytes(content)
    again = load_tokenizer(str(tmp_path))
    assert again.fingerprint() == TINY.fingerprint()
    assert again.stop_ids == TINY.stop_ids
    assert again.files == TINY.files
    alone = load_tokenizer(str(tmp_path / "tokenizer.model"))
    assert alone.fingerprint() == TINY.fingerprint()
    assert alone.encode("Use no commas.") == TINY.encode("Use no commas.")


def test_fingerprint_sees_a_changed_piece(tmp_path):
    content = byte_level()
    one = load_tokenizer(write(tmp_path, tokenizer__json=content))
    vocabulary = content["model"]["vocab"]
    vocabulary["th"], vocabulary["the"] = vocabulary["the"], vocabulary["th"]
    other = load_tokenizer(write(tmp_path, tokenizer__json=content))
    assert one.size == other.size
    assert one.fingerprint() != other.fingerprint()


@given(TEXTS)
@example("the <|im_end|><think> the")
@settings(derandomize=True, deadline=None, max_examples=60)
def test_byte_level_json_gives_every_text_back(text):
    tokenizer = unflagged_byte_level()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.specials.values())


def test_json_tags_are_special_even_where_the_file_says_not(tmp_path):
    """Some vocabularies list `<think>` as an ordinary added token, which would match typed text."""
    tokenizer = load_tokenizer(write(tmp_path, tokenizer__json=byte_level(flagged=False)))
    assert tokenizer.special("<think>") == 5
    ids = tokenizer.encode("<think>")
    assert 5 not in ids
    assert 262 in ids  # "th": the text is read as text, not letter by letter


def test_json_euro_sign_over_two_tokens(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path, tokenizer__json=byte_level()))
    ids = tokenizer.encode("€")
    assert (len(ids), tokenizer.decode(ids), tokenizer.decode(ids[:2])) == (3, "€", "\ufffd")


def test_byte_fallback_json_decodes_characters_whole(tmp_path):
    """The Llama layout: a space in front of every text, and bytes for letters it has no piece for."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    norm, dec = tokenizers.normalizers, tokenizers.decoders
    made.normalizer = norm.Sequence([norm.Prepend("\u2581"), norm.Replace(" ", "\u2581")])
    steps = [dec.Replace("\u2581", " "), dec.ByteFallback(), dec.Fuse(), dec.Strip(" ", 1, 0)]
    made.decoder = dec.Sequence(steps)
    tokenizer = load_tokenizer(write(tmp_path, tokenizer__json=json.loads(made.to_str())))
    for text in ("a b", " a  b ", "€a", "\U0001f600"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("aé€")[:-1]) == "aé\ufffd"


@pytest.mark.parametrize("prepend", ["<s>", None])
def test_json_prepends_one_begin_of_text(tmp_path, prepend):
    """A post-processor that adds `<s>` and `</s>`: one `<s>` for a text prompt, none inside (T14)."""
    tokenizer = load_tokenizer(write(tmp_path, tokenizer__json=byte_level(prepend=prepend)))
    assert tokenizer.adds_bos == (prepend is not None)
    plain = tokenizer.encode("the")
    assert plain == [263]
    assert tokenizer.encode_prompt("the") == ([1, 263] if prepend else [263])
    assert 1 not in tokenizer.encode("<s>the")
    assert tokenizer.encode_prompt("<s>the").count(1) == (prepend is not None)


@pytest.mark.parametrize("adds", [True, False])
def test_sentencepiece_prepends_one_begin_of_text(tmp_path, adds):
    config = {"add_bos_token": adds, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    where = write(tmp_path, tokenizer__model=sentencepiece_bytes(), tokenizer_config__json=config)
    tokenizer = load_tokenizer(where)
    plain = tokenizer.encode("the cat")
    assert tokenizer.adds_bos == adds
    assert 1 not in plain
    assert tokenizer.encode_prompt("the cat") == ([1] if adds else []) + plain
    assert tokenizer.encode_prompt("<s>the cat").count(1) == adds


def test_sentencepiece_with_dummy_prefix_gives_text_back(tmp_path):
    where = write(tmp_path, some__model=sentencepiece_bytes(remove_extra_whitespaces=False))
    tokenizer = load_tokenizer(where)
    for text in ("the cat", " the cat", "the  mat", "€"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_user_defined_tags_stay_text(tmp_path):
    """A model that lists `<|im_end|>` as a user-defined piece matches it in text; ours must not."""
    model = sentencepiece_bytes(user_defined_symbols=["<|im_end|>", "<think>"])
    tokenizer = load_tokenizer(write(tmp_path, tokenizer__model=model))
    assert tokenizer.special("<|im_end|>") == 3
    assert not {3, 4} & set(tokenizer.encode("a<|im_end|><think>"))
    assert tokenizer.stop_ids == (2, 3)


def test_special_tokens_beside_a_sentencepiece_model(tmp_path):
    where = write(
        tmp_path,
        tokenizer__model=sentencepiece_bytes(),
        added_tokens__json={"<|im_end|>": 400, "<|im_start|>": 401},
    )
    tokenizer = load_tokenizer(where)
    assert (tokenizer.special("<|im_start|>"), tokenizer.size) == (401, 402)
    assert tokenizer.decode([400], specials=True) == "<|im_end|>"


def test_whole_word_vocabulary_does_not_leak_special_ids(tmp_path):
    """A word-level vocabulary that spells `<s>` as a word still never gives its id for text."""
    vocabulary = {"<unk>": 0, "<s>": 1, "foo": 2, "E": 3, "N": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<s>"])
    tokenizer = load_tokenizer(write(tmp_path, tokenizer__json=json.loads(made.to_str())))
    ids = tokenizer.encode("foo <s> E")
    assert 1 not in ids
    assert ids[0] == 2
    assert ids[-1] == 3


def test_stop_ids_join_generation_config_and_chat_end(tmp_path):
    """`eos_token_id` as one id or a list, then `<|im_end|>`, each id once."""
    for said, expected in ((2, (2, 4)), ([2, 4], (2, 4)), ([4], (4,)), (None, (2, 4))):
        files = {"tokenizer__json": byte_level(), "generation_config__json": {"eos_token_id": said}}
        assert load_tokenizer(write(tmp_path, **files)).stop_ids == expected
    with pytest.raises(InputError, match=r"generation_config.json: eos_token_id is 'x'"):
        stop_ids_of({"generation_config.json": b'{"eos_token_id": "x"}'}, "folder")


def test_truncation_and_padding_of_a_file_are_ignored(tmp_path):
    content = byte_level()
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst"}
    content["truncation"]["stride"] = 0
    tokenizer = load_tokenizer(write(tmp_path, tokenizer__json=content))
    assert len(tokenizer.encode("abcdef")) == 6


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(InputError, match="neither 'tiny' nor a folder"):
        load_tokenizer(str(tmp_path / "nowhere"))
    with pytest.raises(NoTokenizer, match=r"has no tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json: not JSON"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="has no object 'model'"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").write_bytes(b"\xff\xfe not a model")
    with pytest.raises(InputError, match="no sentencepiece model"):
        load_tokenizer(str(tmp_path))


def test_tokenizer_and_chat_do_not_load_jax(root):
    code = (
        "import sys, nemocascade_jax.data.chat, nemocascade_jax.data.packing;"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
