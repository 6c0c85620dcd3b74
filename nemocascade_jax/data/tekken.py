"""Tokenizer files of the tekken form: byte strings in rank order behind a block of special ids; no jax.

A word is encoded by merging, of all neighbours whose joined bytes are in the vocabulary, the pair of
the lowest rank, the leftmost first, until no pair is left.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tokenizers

from nemocascade_jax.data.backends import Backend, byte_letters, table_text
from nemocascade_jax.errors import InputError


class Vocabulary(NamedTuple):
    """A checked file: what each rank spells, the ids in front of them, how text is cut into words."""

    words: list[bytes]
    specials: dict[str, int]
    reserved: int
    pattern: str


def read_tekken(content: Mapping[str, Any], where: str) -> Backend:
    """Returns the facts of a tekken file; id = rank + number of special ids."""
    known = _check(content, where)
    model = _byte_pairs(known, where)
    table: list[bytes | None] = [*[None] * known.reserved, *known.words]
    named = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    return Backend(
        specials=known.specials,
        defaults={kind: known.specials.get(name) for kind, name in named.items()},
        adds_bos=None,
        pieces=lambda text: model.encode(text, add_special_tokens=False).ids,
        text=table_text(table, strip=False),
        table=table,
    )


def _check(content: Mapping[str, Any], where: str) -> Vocabulary:
    config, entries = content.get("config"), content.get("vocab")
    if not isinstance(config, dict) or not isinstance(entries, list):
        raise InputError(f"load_tokenizer: {where} has no object 'config' and list 'vocab'")
    pattern = _setting(config, "pattern", str, where)
    size = _setting(config, "default_vocab_size", int, where)
    reserved = _setting(config, "default_num_special_tokens", int, where)
    count = size - reserved
    if not 256 <= count <= len(entries):
        raise InputError(
            f"load_tokenizer: {where} holds {len(entries)} vocab entries, its config wants {count} "
            f"({size} ids, {reserved} of them special); at least the 256 bytes and at most the entries"
        )
    words = [_word(entry, rank, where) for rank, entry in enumerate(entries[:count])]
    missing = {bytes([byte]) for byte in range(256)} - set(words)
    if missing or len(set(words)) != count:
        what = f"lacks the byte {min(missing).hex()}" if missing else "spells two ranks alike"
        raise InputError(f"load_tokenizer: {where}: vocab {what}; restore the file")
    return Vocabulary(words, _specials(content, reserved, where), reserved, pattern)


def _setting(config: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = config.get(name)
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise InputError(
            f"load_tokenizer: {where}: config.{name} is {value!r}, expected {kind.__name__}"
        )
    return value


def _word(entry: Any, rank: int, where: str) -> bytes:
    try:
        if entry["rank"] == rank:
            return base64.b64decode(entry["token_bytes"], validate=True)
    except (TypeError, KeyError, binascii.Error):
        pass
    raise InputError(
        f"load_tokenizer: {where}: vocab[{rank}] is {str(entry)[:60]}, expected rank {rank} and "
        "token_bytes in base64"
    )


def _specials(content: Mapping[str, Any], reserved: int, where: str) -> dict[str, int]:
    """Returns every special id by name: the file's own, else the published model's, else a number."""
    listed = content.get("special_tokens")
    names = dict(enumerate(PUBLISHED)) if listed is None else {}
    for index, entry in enumerate(listed or ()):
        said = entry if isinstance(entry, dict) else {}
        name, number = said.get("token_str"), said.get("rank")
        if type(name) is not str or type(number) is not int or not 0 <= number < reserved:
            raise InputError(
                f"load_tokenizer: {where}: special_tokens[{index}] is {str(entry)[:60]}, expected "
                f"token_str and a rank below {reserved}"
            )
        names[number] = name
    specials = {names.get(number, f"<SPECIAL_{number}>"): number for number in range(reserved)}
    if len(specials) != reserved:
        raise InputError(f"load_tokenizer: {where}: two special_tokens share one name or rank")
    return specials


def _byte_pairs(known: Vocabulary, where: str) -> tokenizers.Tokenizer:
    """Returns a byte-level BPE that takes every way to join two words into a third as a merge."""
    letters = {byte: letter for letter, byte in byte_letters().items()}
    spelled = [word.decode("latin-1").translate(letters) for word in known.words]
    model = tokenizers.models.BPE(
        {word: rank + known.reserved for rank, word in enumerate(spelled)},
        _merges(spelled),
        ignore_merges=True,  # a word that is in the vocabulary whole is one id
    )
    made = tokenizers.Tokenizer(model)
    pre = tokenizers.pre_tokenizers
    try:
        cut = pre.Split(tokenizers.Regex(known.pattern), "isolated")
    except Exception as error:
        if type(error) is not Exception:  # what the library raises itself has no narrower type
            raise
        raise InputError(f"load_tokenizer: {where}: config.pattern: {error}") from None
    made.pre_tokenizer = pre.Sequence([cut, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    return made


def _merges(spelled: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the merges by the rank of what they make, then by the ranks of their parts."""
    ranks = {word: rank for rank, word in enumerate(spelled)}
    merges: list[tuple[str, str]] = []
    for word in spelled:
        ways = []
        for cut in range(1, len(word)):
            left, right = word[:cut], word[cut:]
            if left in ranks and right in ranks:
                ways.append((left, right))
        ways.sort(key=lambda way: (ranks[way[0]], ranks[way[1]]))
        merges += ways
    return merges


PUBLISHED = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
