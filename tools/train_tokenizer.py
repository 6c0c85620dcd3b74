"""Trains the tiny tokenizer of nemocascade_jax/assets, the same bytes at every run.

    python tools/train_tokenizer.py            writes the package's files
    python tools/train_tokenizer.py --report   prints token lengths of generated rows, writes nothing

A sentencepiece model of 512 ids: 18 low ids as in the published vocabulary (`<unk>` 0, `<s>` 1,
`</s>` 2, `<|im_start|>` 10 ...), the newline, 256 bytes, the space, and 236 words and parts of words
of the text that the project generates. The pieces are chosen for short sequences: sentencepiece's
own training maximises likelihood and leaves frequent words in three parts at this size. Single ASCII
characters are byte pieces: one id either way, and more room for words.
"""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.rows.generators import GENERATORS

ASSETS = pathlib.Path(__file__).resolve().parents[1] / "nemocascade_jax" / "assets"
SIZE = 512
LOW = 19  # special tokens and the newline
CAPITALS = 2  # weight of words in capitals
RESERVED = [f"<SPECIAL_{number}>" for number in range(3, 10)]
NAMED = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
NAMED += ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPACE = "\u2581"


def generated_texts(count: int) -> Iterator[str]:
    """Yields the prompts and answers of every generator, user and assistant turns alike."""
    for name in sorted(GENERATORS):
        for conversation in GENERATORS[name].conversations("train", count, 0):
            for message in conversation.messages:
                yield f"{message.role}\n{message.content}"
            yield "system\n"


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Counts words, a space in front belonging to them; no piece reaches over such a border.

    A word in capitals counts twice: spelled in bytes, texts all in capitals would be the ones
    that run over length limits.
    """
    words: Counter[str] = Counter()
    for text in texts:
        words.update(re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z0-9]+", text))
    shouted = [word for word in words if word.isupper() and len(word.strip()) > 1]
    words.update({word: (CAPITALS - 1) * words[word] for word in shouted})
    return words


def choose_pieces(words: Counter[str], count: int) -> list[str]:
    """Returns the `count` pieces that keep the text short, found by pruning.

    Starts from the substrings that save most and drops, a tenth at a time, those whose absence costs
    the fewest tokens. A character without a piece of its own costs one token, its byte.
    """
    gain: Counter[str] = Counter()
    for word, times in words.items():
        for start in range(len(word)):
            for end in range(start + 2, len(word) + 1):
                gain[word[start:end]] += times * (end - start - 1)
    pieces = set(sorted(gain, key=lambda piece: (-gain[piece], piece))[: 12 * count])
    while len(pieces) > count:
        cost = dict.fromkeys(pieces, 0)
        for word, times in words.items():
            best = split(word, pieces)
            for piece in {piece for piece in best if len(piece) > 1}:
                cost[piece] += times * (len(split(word, pieces - {piece})) - len(best))
        ranked = sorted(pieces, key=lambda piece: (-cost[piece], piece))
        pieces = set(ranked[: max(count, len(pieces) * 9 // 10)])
    return sorted(pieces, key=lambda piece: (-gain[piece], piece))


def split(word: str, pieces: Set[str]) -> list[str]:
    """Returns the fewest pieces or single characters that spell a word."""
    best: list[list[str]] = [[]]
    for end in range(1, len(word) + 1):
        ways = [
            [*best[start], word[start:end]]
            for start in range(end)
            if end - start == 1 or word[start:end] in pieces
        ]
        best.append(min(ways, key=len))
    return best[-1]


def train(texts: list[str]) -> bytes:
    """Returns the model file: sentencepiece's own settings, with the chosen words as its pieces."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"] * 8),
        model_writer=out,
        model_type="unigram",
        vocab_size=LOW + 256 + 8,
        hard_vocab_limit=False,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        control_symbols=RESERVED + NAMED,
        user_defined_symbols=["\n"],
        num_threads=1,
        minloglevel=2,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    normal = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
    fixed = [entry for entry in proto.pieces if entry.type != normal]
    assert len(fixed) == LOW + 256, len(fixed)
    del proto.pieces[:]
    proto.pieces.extend(fixed)
    chosen = choose_pieces(count_words(texts), SIZE - len(fixed) - 1)
    for rank, piece in enumerate([" ", *chosen]):
        # Nearly equal scores: the fewest pieces win, and among those the more useful ones.
        score = -100 - rank / SIZE
        proto.pieces.add(piece=piece.replace(" ", SPACE), score=score, type=normal)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString(deterministic=True)


def write_assets(model: bytes) -> None:
    """Writes the files that load_tokenizer("tiny") reads."""
    (ASSETS / "tokenizer.model").write_bytes(model)
    config = {"add_bos_token": False, "bos_token": "<s>", "eos_token": "<|im_end|>"}
    config |= {"pad_token": "<unk>", "unk_token": "<unk>"}
    (ASSETS / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (ASSETS / "generation_config.json").write_text('{"eos_token_id": [2, 11]}\n')


def report(count: int) -> None:
    """Prints percentiles of prompt and answer lengths on held-out rows, and the longest answers."""
    tokenizer = load_tokenizer("tiny")
    for name in sorted(GENERATORS):
        prompts, answers = [], []
        for conversation in GENERATORS[name].conversations("heldout", count, 0):
            rendered = chat.render_conversation(conversation.messages, tokenizer)
            answers.append(sum(rendered.produced))
            prompts.append(rendered.produced.index(True))
        for what, sizes in (("prompt", prompts), ("answer", answers)):
            at = {f"p{p}": int(np.percentile(sizes, p)) for p in (50, 90, 95, 99, 100)}
            print(f"{name:20} {what}: mean {np.mean(sizes):.1f}", at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="print lengths and write nothing")
    if not parser.parse_args().report:
        write_assets(train([*generated_texts(4000)]))
    report(1000)


if __name__ == "__main__":
    main()
