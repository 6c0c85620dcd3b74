"""Scores given tokens: rows of ids in, one line of log-probs a row out, in the order of the rows.

python launch/logprobs.py --model DIR --rows samples.jsonl --out scored.jsonl

A row holds `prompt_tokens` and `completion_tokens` (one log-prob a completion token comes back) or
`tokens` (one a token after the first); lines of `sample.py` are such rows. With --temperature,
--top_k or --top_p the distribution so made is scored, the given token always kept in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import token_rows
from absl import flags

import command
from nemocascade_jax.formats.model_folder import ModelFolder, check_model_folder, load_model
from nemocascade_jax.rows import schema

flags.DEFINE_string("model", None, "Hugging Face checkpoint folder, or STAGE/checkpoints/STEP")
flags.DEFINE_string("rows", None, "JSON Lines file of rows to score")
flags.DEFINE_string("out", None, "file to write, one line a row")
flags.DEFINE_bool("pack", False, "let rows share packed sequences; the numbers stay the same")
flags.DEFINE_integer("batch_tokens", 8192, "tokens scored at a time", 1)
token_rows.define_distribution()

FLAGS = flags.FLAGS
GOOD = '{"id": "a", "prompt_tokens": [1, 2], "completion_tokens": [3, 4]}'
SMALLEST_WIDTH = 16  # sequences are padded to this times a power of two
PACKED_WIDTH = 256  # and packed ones to at least this
LOGITS = 2**25  # numbers of one block of logits, so that a large vocabulary fits


class Entry(NamedTuple):
    """A row: all its tokens, and from which one on log-probs are asked for."""

    id: str | int
    tokens: list[int]
    first: int


class Place(NamedTuple):
    """Where a row's inputs lie in the padded sequences."""

    entry: int
    start: int


def main() -> None:
    folder = check_model_folder(command.required("model"))
    path, out = command.required("rows"), token_rows.check_out(command.required("out"))
    entries = read(path, folder)
    settings = token_rows.distribution() | {"vocab_limit": folder.vocab_limit}
    command.start_jax()
    model = load_model(folder)
    score = make_score(model.cfg, settings)
    progress = token_rows.Progress("logprobs", "rows", len(entries))
    scored: dict[int, list[float]] = {}
    for width, sequences in layouts(entries, FLAGS.pack):
        size = max(1, FLAGS.batch_tokens // width)
        size = min(size, len(sequences))
        for first in range(0, len(sequences), size):
            batch = sequences[first : first + size]
            logprobs = np.asarray(score(model.params, *arrays(entries, batch, (size, width))))
            for row, places in enumerate(batch):
                for place in places:
                    entry = entries[place.entry]
                    begin = place.start + entry.first - 1
                    end = place.start + len(entry.tokens) - 1
                    scored[place.entry] = logprobs[row, begin:end].tolist()
            progress.show(len(scored))
    token_rows.write_rows(
        out, ({"id": e.id, "logprobs": scored.get(i, [])} for i, e in enumerate(entries))
    )


def read(path: str, folder: ModelFolder) -> list[Entry]:
    """Returns every row; the first that cannot be scored raises."""
    entries = []
    for index, (number, obj) in enumerate(schema.read_jsonl(path, GOOD)):
        where = f"{path}:{number}"
        name = token_rows.row_name(obj, index, where, GOOD)
        entries.append(Entry(name, *row_ids(obj, where, folder.vocab_limit)))
    return entries


def row_ids(obj: dict[str, Any], where: str, limit: int) -> tuple[list[int], int]:
    """Returns a row's ids and the place of the first one to score."""
    pair = ("prompt_tokens", "completion_tokens")
    held = [field for field in (*pair, "tokens") if obj.get(field) is not None]
    if held != ["tokens"] and held != list(pair):
        problem = f"the row needs prompt_tokens and completion_tokens, or tokens; it has {held}"
        raise schema.bad(where, held[0] if held else "tokens", problem, GOOD)
    parts = [token_rows.parse_ids(obj, field, where, limit=limit, good=GOOD) for field in held]
    if not parts[0]:
        raise schema.bad(where, held[0], "empty, the first token has nothing before it", GOOD)
    return list(itertools.chain(*parts)), len(parts[0]) if len(parts) == 2 else 1


def layouts(entries: list[Entry], pack: bool) -> list[tuple[int, list[list[Place]]]]:
    """Returns (width, sequences): rows of like length by themselves, or packed first-fit into one width."""
    sizes = {i: len(e.tokens) - 1 for i, e in enumerate(entries) if len(e.tokens) > e.first}
    if not sizes:
        return []
    if not pack:
        widths: dict[int, list[list[Place]]] = {}
        for index, size in sizes.items():
            widths.setdefault(padded(size), []).append([Place(index, 0)])
        return sorted(widths.items())
    width = max(padded(max(sizes.values())), PACKED_WIDTH)
    sequences: list[list[Place]] = []
    used: list[int] = []
    for index, size in sizes.items():
        at = next((row for row, full in enumerate(used) if full + size <= width), len(used))
        if at == len(used):
            used.append(0)
            sequences.append([])
        sequences[at].append(Place(index, used[at]))
        used[at] += size
    return [(width, sequences)]


def padded(size: int) -> int:
    """Returns the smallest width that holds `size` inputs: few different ones, so few programs."""
    width = SMALLEST_WIDTH
    while width < size:
        width *= 2
    return width


def arrays(
    entries: list[Entry], batch: list[list[Place]], shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns tokens, targets and segment ids; targets are the tokens shifted once, here."""
    tokens, targets, segments = (np.zeros(shape, np.int32) for _ in range(3))
    for row, places in enumerate(batch):
        for segment, place in enumerate(places, start=1):
            ids = entries[place.entry].tokens
            at = slice(place.start, place.start + len(ids) - 1)
            tokens[row, at], targets[row, at], segments[row, at] = ids[:-1], ids[1:], segment
    return tokens, targets, segments


def make_score(cfg: Any, settings: dict[str, Any]) -> Callable[..., Any]:
    """Returns the jitted function from parameters and arrays to log-probs of the targets."""
    import jax

    from nemocascade_jax.models import hybrid
    from nemocascade_jax.sampler.sampling import token_logprobs
    from nemocascade_jax.sharding import no_shard

    @jax.jit
    def score(params: Any, tokens: jax.Array, targets: jax.Array, segments: jax.Array) -> jax.Array:
        hidden, _ = hybrid.forward(params, tokens, segments, cfg, no_shard)
        block = tokens.size
        while block * cfg.vocab_size > LOGITS and block % 2 == 0:
            block //= 2

        def one(part: tuple[jax.Array, jax.Array]) -> jax.Array:
            return token_logprobs(hybrid.logits(params, part[0], cfg), part[1], **settings)

        parts = hidden.reshape(-1, block, cfg.width), targets.reshape(-1, block)
        return jax.lax.map(one, parts).reshape(targets.shape)

    return score


if __name__ == "__main__":
    command.run(main)
