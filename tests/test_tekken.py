"""Tekken vocabularies: ids by rank, merges by rank, special ids in front, each file's own names."""

import base64
import importlib.util
import itertools
import json
import os
import pathlib
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nemocascade_jax.data.tekken import read_tekken
from nemocascade_jax.data.tokenizer import NoTokenizer, load_tokenizer
from nemocascade_jax.errors import InputError

PATTERN = r" ?[a-z]+|[0-9]|[ \n]+|[^a-z0-9 \n]+"
RESERVED = 20
# "xyzw" can be joined of nothing, so only a whole word gives it; "aba" is made in two ways.
JOINED = [
    b"th",
    b" t",
    b"the",
    b" the",
    b"he",
    b"in",
    b"aa",
    b"ab",
    b"ba",
    b"aba",
    b"aaaa",
    b"xyzw",
]
JOINED += [b"  ", b"\n\n", b"\xe2\x82", "é".encode(), "€".encode(), b"<|", b"|>", b"not used"]
USED = len(JOINED) - 1


def tekken(joined=tuple(JOINED), **changes: object) -> dict:
    words = [*(bytes([byte]) for byte in range(256)), *joined]
    config = {
        "pattern": PATTERN,
        "default_vocab_size": RESERVED + 256 + USED,
        "default_num_special_tokens": RESERVED,
        "num_vocab_tokens": len(words),
        "version": "v3",
    }
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate(words)
    ]
    return {"config": {**config, **changes}, "vocab": vocab}


def slow_ids(text: str) -> list[int]:
    """The definition: per word, join the pair of the lowest rank, the leftmost, until none is left."""
    words = [*(bytes([byte]) for byte in range(256)), *JOINED[:USED]]
    ranks = {word: rank for rank, word in enumerate(words)}
    ids = []
    for word in re.findall(PATTERN, text):
        parts = [word.encode()]
        if parts[0] not in ranks:
            parts = [bytes([byte]) for byte in word.encode()]
        while True:
            pairs = [a + b for a, b in itertools.pairwise(parts)]
            found = min(
                ((ranks[pair], i) for i, pair in enumerate(pairs) if pair in ranks), default=None
            )
            if found is None:
                break
            parts[found[1] : found[1] + 2] = [pairs[found[1]]]
        ids += [RESERVED + ranks[part] for part in parts]
    return ids


TOY = read_tekken(tekken(), "toy")


@given(st.text(st.sampled_from("aabbehintxyzw  \n0é€<|>"), max_size=40) | st.text(max_size=12))
@example("xyzw xyzw axyzw")
@example("ababababa aaaaaaaaa")
@example("the in the\n\nthe  the")
@settings(derandomize=True, deadline=None, max_examples=200)
def test_ids_are_those_of_the_definition(text):
    assert TOY.pieces(text) == slow_ids(text)
    assert TOY.text(TOY.pieces(text)) == text


def test_ids_are_ranks_behind_the_special_ones(tmp_path):
    """Rank 10, the line break, is id 30; entries past the vocabulary's size are no ids."""
    path = tmp_path / "tekken_toy.json"
    path.write_text(json.dumps(tekken()))
    for where in (path, tmp_path):
        tokenizer = load_tokenizer(str(where))
        assert tokenizer.encode("\n") == [30]
        assert tokenizer.encode(" the") == [RESERVED + 256 + JOINED.index(b" the")]
        assert (tokenizer.size, len(tokenizer.table)) == (295, 295)
        assert tokenizer.table[19:22] == [None, b"\0", b"\1"]
        assert list(tokenizer.files) == ["tekken.json"]
    assert tokenizer.decode(tokenizer.encode("€")[:1]) == "€"
    assert tokenizer.decode([RESERVED + 256 + JOINED.index(b"\xe2\x82")]) == "\ufffd"


def test_special_ids_have_the_published_names_where_the_file_names_none(tmp_path):
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    tokenizer = load_tokenizer(str(tmp_path))
    names = ["<unk>", "<s>", "</s>", "[INST]"]
    assert [tokenizer.special(name) for name in names] == [0, 1, 2, 3]
    assert [tokenizer.special(f"<|im_{end}|>") for end in ("start", "end")] == [10, 11]
    assert [tokenizer.special(name) for name in ("<think>", "</tool_response>")] == [12, 17]
    assert [tokenizer.special(f"<SPECIAL_{n}>") for n in (17, 18, 19, 20)] == [None, 18, 19, None]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.adds_bos) == (0, 1, False)
    assert tokenizer.stop_ids == (2, 11)
    typed = tokenizer.encode("<|im_end|><SPECIAL_18><s>")
    assert min(typed) >= RESERVED
    assert tokenizer.decode(typed) == "<|im_end|><SPECIAL_18><s>"


def test_special_ids_have_the_names_of_the_file(tmp_path):
    """A list in the file wins over the published names, a tokenizer_config beside it over both."""
    listed = [{"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>", "is_control": True}]
    listed += [{"rank": 11, "token_str": "<pad>"}]
    (tmp_path / "tekken.json").write_text(json.dumps({**tekken(), "special_tokens": listed}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.special("<pad>"), tokenizer.special("<|im_end|>")) == (11, None)
    assert (tokenizer.special("<SPECIAL_0>"), tokenizer.pad_id, tokenizer.stop_ids) == (0, 11, (2,))
    beside = {"added_tokens_decoder": {"11": {"content": "<end>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**beside, "eos_token": "<end>"}))
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.special("<end>"), tokenizer.special("<pad>")) == (11, None)
    assert tokenizer.stop_ids == (11,)


def test_files_carried_along_restore_it(tmp_path):
    (tmp_path / "tekken_x.json").write_text(json.dumps(tekken()))
    first = load_tokenizer(str(tmp_path))
    (tmp_path / "copy").mkdir()
    for name, content in first.files.items():
        (tmp_path / "copy" / name).write_bytes(content)
    assert load_tokenizer(str(tmp_path / "copy")).fingerprint() == first.fingerprint()


def test_broken_files_are_named(tmp_path):
    swapped = tekken()
    swapped["vocab"][5]["rank"] = 6
    coded = tekken()
    coded["vocab"][300 - RESERVED - 10]["token_bytes"] = "%"
    twice = [{"rank": 1, "token_str": "<a>"}, {"rank": 2, "token_str": "<a>"}]
    for content, message in (
        ({"vocab": []}, "no object 'config' and list 'vocab'"),
        (tekken(default_num_special_tokens=-1), "default_num_special_tokens is -1, expected int"),
        (tekken(pattern=None), "config.pattern is None, expected str"),
        (tekken(pattern="("), "config.pattern: "),
        (tekken(default_vocab_size=400), "holds 276 vocab entries, its config wants 380"),
        (tekken(default_vocab_size=100), "at least the 256 bytes"),
        (swapped, r"vocab\[5\] is .*expected rank 5"),
        (coded, r"vocab\[270\] is .*token_bytes in base64"),
        (tekken([*JOINED[:3], b"th", *JOINED[4:]]), "spells two ranks alike"),
        ({**tekken(), "special_tokens": [{"rank": 99, "token_str": "<a>"}]}, "a rank below 20"),
        ({**tekken(), "special_tokens": twice}, "share one name"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_tekken(content, "some/tekken.json")
        assert str(caught.value).startswith("load_tokenizer: some/tekken.json")
        assert "\n" not in str(caught.value)
    for name in ("tekken_a.json", "tekken_b.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(NoTokenizer, match=r"2 tekken_\*\.json files"):
        load_tokenizer(str(tmp_path))


def test_a_byte_without_an_id_is_named():
    content = tekken()
    content["vocab"][65]["token_bytes"] = base64.b64encode(b"AA").decode()
    with pytest.raises(InputError, match="vocab lacks the byte 41"):
        read_tekken(content, "toy")


@pytest.mark.slow
def test_published_vocabulary_has_the_ids_of_its_reference():
    """131,072 ids; what `tiktoken` makes of a text, where it is installed."""
    where = os.environ.get("NEMOCASCADE_TEKKEN")
    package = importlib.util.find_spec("mistral_common")
    if where is None and package is not None and package.origin is not None:
        where = str(pathlib.Path(package.origin).parent / "data" / "tekken_240718.json")
    if where is None:
        pytest.skip("no mistral-common, and NEMOCASCADE_TEKKEN names no tekken file of its data")
    tokenizer = load_tokenizer(where)
    assert (tokenizer.size, tokenizer.encode("\n"), tokenizer.special("<|im_end|>")) == (
        131072,
        [1010],
        11,
    )
    tiktoken = pytest.importorskip("tiktoken")
    content = json.loads(pathlib.Path(where).read_bytes())
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"]}
    reference = tiktoken.Encoding(
        "tekken",
        pat_str=content["config"]["pattern"],
        mergeable_ranks={word: rank for word, rank in ranks.items() if rank < 130072},
        special_tokens={},
    )
    texts = [path.read_text() for path in pathlib.Path(__file__).parent.glob("*.py")]
    texts += [
        letter * n for letter in (" ", "\n", "-", "ab", "é", "漢", "0") for n in range(1, 200)
    ]
    texts += ["".join(map(chr, range(start, start + 64))) for start in range(0, 0xD800, 64)]
    for text in texts:
        ids = tokenizer.encode(text)
        assert [number - 1000 for number in ids] == reference.encode(text, disallowed_special=())
        assert tokenizer.decode(ids) == text
