"""Generates: rows of prompts in, one line a sample out, in the order of the rows.

python launch/sample.py --model DIR --prompts prompts.jsonl --out samples.jsonl --num_samples 4

A row holds one of `prompt` (text, used as it is), `messages` (rendered by the chat template, with
`tools` if it lists some) and `prompt_tokens` (ids), and may hold an `id`. A sample depends on the
weights, its prompt, the seed, its row number and its sample number, and on nothing else of the file.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import token_rows
from absl import flags

import command
from nemocascade_jax.config import SamplingConfig
from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import Tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.model_folder import ModelFolder, check_model_folder, load_model
from nemocascade_jax.rows import schema
from nemocascade_jax.rows.records import RowError
from nemocascade_jax.rows.turns import read_turns

flags.DEFINE_string("model", None, "Hugging Face checkpoint folder, or STAGE/checkpoints/STEP")
flags.DEFINE_string("prompts", None, "JSON Lines file of `prompt`, `messages` or `prompt_tokens`")
flags.DEFINE_string("out", None, "file to write, one line a sample")
flags.DEFINE_integer("num_samples", 1, "samples a prompt", 1)
flags.DEFINE_integer("max_new_tokens", 256, "tokens a completion may have", 1)
flags.DEFINE_integer("seed", 0, "seed of the draws", 0, 2**32 - 1)
flags.DEFINE_multi_string("stop", [], "text that ends a completion; may be given several times")
flags.DEFINE_bool("ignore_eos", False, "go on after end-of-text ids")
flags.DEFINE_integer("max_seq_len", None, "prompt and new tokens together; default: the model's", 1)
flags.DEFINE_bool("thinking", True, "open a `<think>` in the generation prompt of `messages` rows")
flags.DEFINE_bool(
    "truncate_history_thinking", True, "cut reasoning from turns before the last user turn"
)
flags.DEFINE_integer("reasoning_budget", None, "thinking tokens, said behind the last user turn", 1)
flags.DEFINE_integer("batch_rows", 256, "samples decoded at a time", 1)
token_rows.define_distribution()

FLAGS = flags.FLAGS
GOOD = '{"id": "a", "messages": [{"role": "user", "content": "1+1?"}]}'
KINDS = ("prompt", "messages", "prompt_tokens")


class Prompt(NamedTuple):
    id: str | int
    tokens: list[int]


def main() -> None:
    folder = check_model_folder(command.required("model"))
    path, out = command.required("prompts"), token_rows.check_out(command.required("out"))
    prompts = read(path, folder)
    sampling = settings(prompts, folder)
    command.start_jax()
    from nemocascade_jax.digest import weights_digest
    from nemocascade_jax.sampler.engine import make_sampler
    from nemocascade_jax.sampler.sampling import sample_key
    from nemocascade_jax.sharding import no_shard

    model = load_model(folder)
    sampler = make_sampler(
        model.cfg,
        sampling,
        no_shard,
        vocab_limit=folder.vocab_limit,
        stop_ids=model.stop_ids,
        decode=model.tokenizer.decode if model.tokenizer else None,
    )
    total = len(prompts) * FLAGS.num_samples
    progress, began = token_rows.Progress("sample", "samples", total), time.monotonic()

    def report(samples: int, tokens: int) -> None:
        progress.show(samples, f"{tokens / (time.monotonic() - began):.0f} tokens/s")

    groups = sampler(
        model.params,
        [prompt.tokens for prompt in prompts],
        range(len(prompts)),
        FLAGS.num_samples,
        sample_key(FLAGS.seed, "sample", 0),
        max_rows=FLAGS.batch_rows,
        report=report,
    )
    weights = weights_digest(model.params)
    token_rows.write_rows(
        out,
        (
            line(prompt, number, sample, folder) | {"weights": weights}
            for prompt, group in zip(prompts, groups, strict=True)
            for number, sample in enumerate(group)
        ),
    )


def settings(prompts: list[Prompt], folder: ModelFolder) -> SamplingConfig:
    """Returns the flags as the record that the sampler takes."""
    if any(not stop for stop in FLAGS.stop):
        raise InputError(
            "--stop: empty text ends every completion at once; give at least one letter"
        )
    if FLAGS.stop and folder.tokenizer is None:
        raise InputError(
            f"--stop {FLAGS.stop[0]!r}: {folder.path} has no tokenizer, so there is no text to find "
            "it in; leave --stop out"
        )
    return SamplingConfig(
        **token_rows.distribution(),
        max_prompt_tokens=max(len(prompt.tokens) for prompt in prompts),
        max_completion_tokens=FLAGS.max_new_tokens,
        stop=tuple(FLAGS.stop),
        ignore_eos=FLAGS.ignore_eos,
        thinking=FLAGS.thinking,
    )


def read(path: str, folder: ModelFolder) -> list[Prompt]:
    """Returns every row's prompt ids; the first row that cannot be sampled from raises."""
    limit = FLAGS.max_seq_len or folder.cfg.max_positions
    prompts = []
    for index, (number, obj) in enumerate(schema.read_jsonl(path, GOOD)):
        where = f"{path}:{number}"
        name = token_rows.row_name(obj, index, where, GOOD)
        field, tokens = prompt_ids(obj, where, folder)
        if not tokens:
            raise schema.bad(where, field, "empty, generation needs at least one token", GOOD)
        if len(tokens) + FLAGS.max_new_tokens > limit:
            raise InputError(
                f"{where}: field {field}: {len(tokens)} prompt tokens and --max_new_tokens "
                f"{FLAGS.max_new_tokens} are {len(tokens) + FLAGS.max_new_tokens}, --max_seq_len is "
                f"{limit}; lower --max_new_tokens, raise --max_seq_len or cut the prompt"
            )
        prompts.append(Prompt(name, tokens))
    return prompts


def prompt_ids(obj: dict[str, Any], where: str, folder: ModelFolder) -> tuple[str, list[int]]:
    """Returns which kind of prompt a row holds, and its ids."""
    held = [kind for kind in KINDS if obj.get(kind) is not None]
    if len(held) != 1:
        problem = f"the row needs exactly one of {', '.join(KINDS)}, it has {len(held)}"
        raise schema.bad(where, held[1] if held else "prompt", problem, GOOD)
    kind = held[0]
    if kind == "prompt_tokens":
        ids = token_rows.parse_ids(obj, kind, where, limit=folder.vocab_limit, good=GOOD)
        return kind, ids
    if folder.tokenizer is None:
        problem = f"{folder.path} has no tokenizer, give prompt_tokens"
        raise schema.bad(where, kind, problem, '{"prompt_tokens": [1, 2, 3]}')
    if kind == "prompt":
        if not isinstance(obj[kind], str):
            problem = f"expected text, got {type(obj[kind]).__name__}"
            raise schema.bad(where, kind, problem, GOOD)
        return kind, folder.tokenizer.encode_prompt(obj[kind])
    return kind, rendered(obj, where, folder.tokenizer)


def rendered(obj: dict[str, Any], where: str, tokenizer: Tokenizer) -> list[int]:
    """Returns the prompt of a row's messages and tools."""
    messages, tools = obj["messages"], schema.parse_tools(obj.get("tools"), where, "tools", GOOD)
    if not isinstance(messages, list) or not messages:
        raise schema.bad(where, "messages", "expected a list of messages, not empty", GOOD)
    options = chat.Options(FLAGS.truncate_history_thinking, FLAGS.reasoning_budget)
    try:
        turns = read_turns(messages, where, "messages")
    except RowError as error:
        raise RowError(f"{error}; a good row: {GOOD}") from None
    try:
        return chat.render_prompt(
            turns, tokenizer, thinking=FLAGS.thinking, tools=tools, options=options
        )
    except InputError as error:
        raise InputError(f"{where}: field messages: {error}") from None


def line(prompt: Prompt, number: int, sample: Any, folder: ModelFolder) -> dict[str, Any]:
    """Returns the line of one sample; a stop id is named by its text where there is a tokenizer."""
    stop = sample.stop
    if isinstance(stop, int) and folder.tokenizer is not None:
        stop = folder.tokenizer.decode([stop], specials=True)
    return {
        "id": prompt.id,
        "sample": number,
        "prompt_tokens": prompt.tokens,
        "completion_tokens": list(sample.completion_tokens),
        "logprobs": list(sample.logprobs),
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "stop": stop,
    }


if __name__ == "__main__":
    command.run(main)
