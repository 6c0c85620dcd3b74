"""One record for every kind of tokenizer file; no jax.

Text is always ordinary: what a user types as `<|im_end|>` becomes ordinary pieces, never the id of
the special token. Special ids enter a sequence only by `special(name)`, in `data/chat.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.resources
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.data import backends, tekken
from nemocascade_jax.data.backends import MARKUP, Backend, is_special
from nemocascade_jax.errors import InputError

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)


class NoTokenizer(InputError):
    """A folder without tokenizer files, which serves rows of token ids only."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to ids and back. `size` counts ids, so a model's columns from `size` on mean nothing.

    `table` holds the bytes of every ordinary id, None for a special one.
    """

    size: int
    specials: Mapping[str, int]
    pad_id: int
    bos_id: int | None
    unk_id: int | None
    adds_bos: bool
    stop_ids: tuple[int, ...]
    chat_template: str | None
    names: Mapping[str, str]  # what a template calls bos_token, eos_token, ...
    files: Mapping[str, bytes]
    pieces: Callable[[str], list[int]]
    text: Callable[[Sequence[int]], str]
    table: Sequence[bytes | None]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text` as plain text: no special id, no begin or end of text.

        A surrogate without its partner, which is no character, becomes U+FFFD.
        """
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self.pieces(text) if text else []

    def encode_prompt(self, text: str) -> list[int]:
        """Returns a text prompt's ids: begin of text once where the tokenizer prepends it."""
        start = [self.bos_id] if self.adds_bos and self.bos_id is not None else []
        return start + self.encode(text)

    def special(self, name: str) -> int | None:
        """Returns the id of a special token, None where the tokenizer has no such token."""
        return self.specials.get(name)

    def decode(self, ids: Sequence[int], *, specials: bool = False) -> str:
        """Returns the text of a whole list of ids; bytes that are no character give U+FFFD.

        Think and tool tags are part of the text; the other special tokens only with `specials`.
        """
        names = {number: name for name, number in self.specials.items()}
        out, ordinary = [], list[int]()
        for number in map(int, ids):
            if 0 <= number < len(self.table) and self.table[number] is not None:
                ordinary.append(number)
                continue
            out.append(self.text(ordinary))
            ordinary = []
            if number in names and (specials or names[number] in MARKUP):
                out.append(names[number])
            elif number not in names or number == self.unk_id:
                out.append("\ufffd")
        return "".join([*out, self.text(ordinary)])

    def fingerprint(self) -> str:
        """Returns a digest of what every id means, equal exactly for equal vocabularies."""
        digest = hashlib.sha256(str(self.size).encode())
        for name, number in sorted(self.specials.items()):
            digest.update(f"\n{number} {name!r}".encode())
        for entry in self.table:
            digest.update(b"\n" + (b"-" if entry is None else entry.hex().encode()))
        return digest.hexdigest()


def load_tokenizer(where: str) -> Tokenizer:
    """Returns the tokenizer "tiny" of the package, or that of a folder or file.

    A folder holds `tokenizer.json`, or else one `tekken.json` or `tekken_*.json`, or else one
    sentencepiece `*.model`, and may hold the files of `FILES` beside it. Raises NoTokenizer for a
    folder with none of them.
    """
    files = _read_files(where)
    beside = _read_beside(files, where)
    if "tokenizer.json" in files:
        backend = backends.read_json(_json(files, "tokenizer.json", where), where, beside.special)
    elif "tekken.json" in files:
        backend = tekken.read_tekken(_json(files, "tekken.json", where), where)
    else:
        backend = backends.read_sentencepiece(files["tokenizer.model"], where, beside.special)
    return _join(files, where, backend, beside)


def stop_ids_of(files: Mapping[str, bytes], where: str) -> tuple[int, ...]:
    """Returns `eos_token_id` of `generation_config.json`, one id or several, () where unset."""
    said = _json(files, "generation_config.json", where).get("eos_token_id")
    given = said if isinstance(said, list) else [] if said is None else [said]
    if not all(type(number) is int and number >= 0 for number in given):
        raise InputError(
            f"{where}/generation_config.json: eos_token_id is {said!r}, expected an id or a list of ids"
        )
    return tuple(dict.fromkeys(given))


def _read_files(where: str) -> dict[str, bytes]:
    if where == "tiny":
        folder = importlib.resources.files("nemocascade_jax.assets")
        return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name in FILES}
    path = pathlib.Path(where)
    if path.is_file() and path.suffix in (".json", ".model"):
        kind = "tekken" if path.name.startswith("tekken") else "tokenizer"
        return {kind + path.suffix: path.read_bytes()}
    if not path.is_dir():
        raise InputError(
            f"load_tokenizer: {where!r} is neither 'tiny' nor a folder nor a .json or .model file"
        )
    files = {name: (path / name).read_bytes() for name in FILES if (path / name).is_file()}
    if not {"tokenizer.json", "tokenizer.model", "tekken.json"} & files.keys():
        name, found = _only_vocabulary(path)
        files[name] = found.read_bytes()
    return files


def _only_vocabulary(folder: pathlib.Path) -> tuple[str, pathlib.Path]:
    """Returns the one vocabulary of a folder that has none under a usual name, and that name."""
    patterns = {"tekken.json": "tekken_*.json", "tokenizer.model": "*.model"}
    found = {name: sorted(folder.glob(pattern)) for name, pattern in patterns.items()}
    for name, paths in found.items():
        if len(paths) == 1:
            return name, paths[0]
    counts = [f"{len(paths)} {patterns[name]} files" for name, paths in found.items() if paths]
    raise NoTokenizer(
        f"load_tokenizer: {folder} has no tokenizer.json, tekken.json or tokenizer.model and "
        f"{', '.join(counts) or 'no *.model file'}; name a folder or file that has one"
    )


def _json(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except ValueError as error:
        raise InputError(f"{where}/{name}: not JSON ({error}); restore the file") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}/{name}: expected an object, got {type(value).__name__}")
    return value


def _settings(files: Mapping[str, bytes], where: str) -> dict[str, Any]:
    """Returns tokenizer_config with the names of special_tokens_map beneath it, as plain strings."""
    named = {
        **_json(files, "special_tokens_map.json", where),
        **_json(files, "tokenizer_config.json", where),
    }
    return {
        key: value["content"]
        if isinstance(value, dict) and key.endswith("_token") and "content" in value
        else value
        for key, value in named.items()
    }


class Beside(NamedTuple):
    """What lies beside the vocabulary: settings, and the ids of added tokens by name."""

    settings: dict[str, Any]
    special: dict[str, int]  # never given for text
    added: dict[str, int]  # these and the ordinary ones


def _read_beside(files: Mapping[str, bytes], where: str) -> Beside:
    settings = _settings(files, where)
    added = dict(_json(files, "added_tokens.json", where))
    values = (value for key, value in settings.items() if key.endswith("_token"))
    named = {value for value in values if isinstance(value, str)}
    for number, entry in settings.get("added_tokens_decoder", {}).items():
        added[entry["content"]] = int(number)
        if entry.get("special"):
            named.add(entry["content"])
    special = {name: n for name, n in added.items() if name in named or is_special(name)}
    return Beside(settings, special, added)


def _template(files: Mapping[str, bytes], settings: dict[str, Any]) -> str | None:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode()
    said = settings.get("chat_template")
    if isinstance(said, list):
        said = {entry["name"]: entry["template"] for entry in said}.get("default")
    return said


def _join(files: dict[str, bytes], where: str, backend: Backend, beside: Beside) -> Tokenizer:
    """Joins what the backend knows with the files beside it, which win.

    An added token that the vocabulary has no piece for can only be written by its id.
    """
    beyond = {name: n for name, n in beside.added.items() if n >= len(backend.table)}
    renamed = frozenset(beside.special.values())
    own = {name: number for name, number in backend.specials.items() if number not in renamed}
    specials = {**own, **beyond, **beside.special}
    settings = beside.settings
    named = {
        kind: specials.get(settings.get(f"{kind}_token") or "", backend.defaults.get(kind))
        for kind in ("bos", "eos", "pad", "unk")
    }
    words = {number: name for name, number in specials.items()}
    stops = stop_ids_of(files, where) or ((named["eos"],) if named["eos"] is not None else ())
    ends = [specials["<|im_end|>"]] if "<|im_end|>" in specials else []
    llama = settings.get("tokenizer_class") in ("LlamaTokenizer", "GemmaTokenizer")
    prepends = settings.get(
        "add_bos_token", backend.adds_bos or (backend.adds_bos is None and llama)
    )
    return Tokenizer(
        size=max([len(backend.table), *(number + 1 for number in specials.values())]),
        specials=dict(sorted(specials.items(), key=lambda entry: entry[1])),
        pad_id=next((n for n in (named["pad"], named["unk"]) if n is not None), 0),
        bos_id=named["bos"],
        unk_id=named["unk"],
        adds_bos=bool(prepends) and named["bos"] is not None,
        stop_ids=tuple(dict.fromkeys([*stops, *ends])),
        chat_template=_template(files, settings),
        names={f"{kind}_token": words[number] for kind, number in named.items() if number in words},
        files=files,
        pieces=backend.pieces,
        text=backend.text,
        table=backend.table,
    )
