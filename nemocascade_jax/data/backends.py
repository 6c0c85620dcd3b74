"""Sentencepiece models and `tokenizer.json`, each read into the same few facts; no jax."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import sentencepiece
import tokenizers
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from nemocascade_jax.errors import InputError

MARKUP = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
FRAMING = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<pad>")
UNKNOWN = "\ufffd".encode()
SPACE = "\u2581"  # how sentencepiece writes a space inside a piece


class Backend(NamedTuple):
    """What a tokenizer file says by itself; `adds_bos` is None where the file cannot say."""

    specials: dict[str, int]
    defaults: dict[str, int | None]  # ids of bos, eos, pad, unk
    adds_bos: bool | None
    pieces: Callable[[str], list[int]]  # plain text to ordinary ids
    text: Callable[[Sequence[int]], str]  # ordinary ids to text
    table: Sequence[bytes | None]  # what each ordinary id writes, None for a special one


def is_special(name: str) -> bool:
    """Says whether a piece is a control token by its name, whatever its file calls it."""
    return name in MARKUP or name in FRAMING or re.fullmatch(r"<\|[^<>]+\|>", name) is not None


def read_sentencepiece(content: bytes, where: str, added: Mapping[str, int]) -> Backend:
    """Returns the facts of a sentencepiece model; `added` names special tokens from beside it."""
    schema: Any = sentencepiece_model_pb2  # generated code, which no type checker can read
    proto = schema.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        raise InputError(f"load_tokenizer: {where} is no sentencepiece model") from None
    kinds = schema.ModelProto.SentencePiece
    specials: dict[str, int] = {}
    table: list[bytes | None] = []
    taken = frozenset(added.values())
    for number, entry in enumerate(proto.pieces):
        own = entry.type == kinds.USER_DEFINED and is_special(entry.piece)
        beside = entry.piece in added or number in taken
        if own or (beside and entry.type in (kinds.NORMAL, kinds.USER_DEFINED)):
            entry.type = kinds.CONTROL  # other pieces are matched in plain text
        if entry.type in (kinds.CONTROL, kinds.UNKNOWN):
            specials[entry.piece] = number
            table.append(None)
        elif entry.type == kinds.BYTE:
            table.append(_byte(entry.piece))
        else:
            table.append(entry.piece.replace(SPACE, " ").encode())
    model = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    named = {"bos": model.bos_id(), "eos": model.eos_id(), "pad": model.pad_id()}
    named["unk"] = model.unk_id()
    dummy = proto.normalizer_spec.add_dummy_prefix
    has_bytes = any(entry.type == kinds.BYTE for entry in proto.pieces)
    # With a dummy prefix the parts of a cut text would each get a space of their own.
    cut = has_bytes and not dummy
    mark = [table.index(bytes([byte])) for byte in SPACE.encode()] if cut else []
    return Backend(
        specials=specials,
        defaults={kind: number if number >= 0 else None for kind, number in named.items()},
        adds_bos=None,
        pieces=_with_typed_marks(model.EncodeAsIds, mark),
        text=table_text(table, strip=dummy),
        table=table,
    )


def _with_typed_marks(encode: Callable[[str], list[int]], mark: list[int]) -> Any:
    """Wraps an encoder that reads its own space mark as a space: a typed mark goes in as bytes."""

    def pieces(text: str) -> list[int]:
        first, *rest = text.split(SPACE) if mark else [text]
        ids = encode(first) if first else []
        for part in rest:
            ids = ids + mark + (encode(part) if part else [])
        return ids

    return pieces


def table_text(table: Sequence[bytes | None], *, strip: bool) -> Callable[[Sequence[int]], str]:
    """Makes the decoder that joins bytes before it reads characters, so none is cut by a token.

    `strip` takes off the one space that the encoder puts in front of every stretch of text.
    """

    def text(ids: Sequence[int]) -> str:
        known = [table[number] if number < len(table) else None for number in ids]
        joined = b"".join(UNKNOWN if entry is None else entry for entry in known)
        said = joined.decode("utf-8", "replace")
        return said[1:] if strip and said.startswith(" ") else said

    return text


def read_json(content: Mapping[str, Any], where: str, added: Mapping[str, int]) -> Backend:
    """Returns the facts of a `tokenizer.json`; `added` names special tokens from beside it."""
    if not isinstance(content.get("model"), dict):
        raise InputError(f"load_tokenizer: {where} has no object 'model' in tokenizer.json")
    front = _prepended(content.get("post_processor"))
    listed = [
        {
            **entry,
            "special": entry["special"]
            or is_special(entry["content"])
            or entry["content"] in added
            or entry["content"] == front,
        }
        for entry in content.get("added_tokens") or []
    ]
    specials = {entry["content"]: entry["id"] for entry in listed if entry["special"]}
    model = tokenizers.Tokenizer.from_str(json.dumps({**content, "added_tokens": listed}))
    model.no_truncation()
    model.no_padding()
    model.encode_special_tokens = True  # special tokens are then not matched in text
    vocabulary = model.get_vocab(with_added_tokens=True)
    unk = vocabulary.get(content["model"].get("unk_token") or "")
    if front is not None and front in vocabulary:
        specials[front] = vocabulary[front]
    bos = specials.get("<s>" if front is None else front)
    raw = {entry["content"] for entry in listed}
    reserved = frozenset([*specials.values(), *added.values()])
    table: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    read = _piece_reader(content)
    for piece, number in vocabulary.items():
        if number not in reserved:
            table[number] = piece.encode() if piece in raw or read is None else read(piece)
    return Backend(
        specials=specials,
        defaults={"bos": bos, "eos": specials.get("</s>"), "unk": unk},
        adds_bos=front is not None,
        pieces=_without_specials(model, reserved - {unk}, unk),
        text=table_text(table, strip=_strips(content)) if read else model.decode,
        table=table,
    )


def _prepended(processor: Mapping[str, Any] | None) -> str | None:
    """Returns the token that a post-processor puts in front of a text, None if it puts none."""
    if processor is None:
        return None
    if processor["type"] == "Sequence":
        found = [_prepended(entry) for entry in processor["processors"]]
        return next((name for name in found if name is not None), None)
    if processor["type"] == "TemplateProcessing":
        return processor["single"][0].get("SpecialToken", {}).get("id")
    return processor["cls"][0] if "cls" in processor else None


def _without_specials(
    model: tokenizers.Tokenizer, specials: frozenset[int], unk: int | None
) -> Callable[[str], list[int]]:
    """Makes the encoder of plain text; a vocabulary that spells a special token whole is evaded.

    Such a piece is encoded letter by letter, and letters it has no piece for become `unk` or vanish
    as they would anywhere in that vocabulary.
    """

    def pieces(text: str) -> list[int]:
        found = model.encode(text, add_special_tokens=False)
        if specials.isdisjoint(found.ids):
            return found.ids
        out: list[int] = []
        for number, (start, end) in zip(found.ids, found.offsets, strict=True):
            if number not in specials:
                out.append(number)
                continue
            for letter in text[start:end]:
                ids = model.encode(letter, add_special_tokens=False).ids
                plain = [entry for entry in ids if entry not in specials]
                out += plain or ([] if unk is None else [unk])
        return out

    return pieces


def _decoders(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    decoder = content.get("decoder") or {"type": "none"}
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {part["type"]: part for part in parts}


def _strips(content: Mapping[str, Any]) -> bool:
    parts = _decoders(content)
    space = parts.get("Metaspace", {"prepend_scheme": "never"})
    return "Strip" in parts or space.get("prepend_scheme", "always") != "never"


def _piece_reader(content: Mapping[str, Any]) -> Callable[[str], bytes] | None:
    """Returns how a piece reads as bytes, None where the file's own decoder has to do it."""
    parts = _decoders(content)
    if "ByteLevel" in parts:
        letters = byte_letters()
        return lambda piece: (
            bytes(letters[letter] for letter in piece)
            if all(letter in letters for letter in piece)
            else piece.encode()
        )
    if "ByteFallback" in parts:
        return lambda piece: _byte(piece) or piece.replace(SPACE, " ").encode()
    if "Metaspace" in parts:
        return lambda piece: piece.replace(SPACE, " ").encode()
    return None


def _byte(piece: str) -> bytes | None:
    """Returns the byte of a fallback piece such as `<0xE2>`, None for any other piece."""
    found = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
    return bytes.fromhex(found[1]) if found else None


def byte_letters() -> dict[str, int]:
    """Returns the letter that byte-level vocabularies write for each byte.

    Bytes that print in Latin-1 stand for themselves, the others follow from U+0100 on in order.
    """
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}
