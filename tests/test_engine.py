"""The sampler: a sample depends on its prompt and key path only; stops, lengths, refusals."""

import jax
import numpy as np
import pytest
from crafted import next_id_params, tiny_config, unigram_params

from nemocascade_jax.config import MeshConfig, RulesConfig, SamplingConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.models import hybrid
from nemocascade_jax.sampler import sampling as distribution
from nemocascade_jax.sampler.engine import make_sampler
from nemocascade_jax.sampler.stops import find_stop
from nemocascade_jax.sharding import make_mesh, make_shard, map_specs, no_shard, param_shardings
from tolerances import ORDER_F32, SAMPLER_GAP

PROMPTS = [[7, 9], [3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2]]
PIECES = {0: b"!", 1: b"foo E", 2: b"N", 3: b"D bar"}
EURO = {0: b"_", 1: b"\xe2\x82", 2: b"\xac", 3: b"."}


def settings(**changes):
    block = {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 1.0,
        "max_prompt_tokens": 64,
        "max_completion_tokens": 10,
        "stop": (),
        "ignore_eos": False,
        "thinking": True,
    }
    return SamplingConfig(**(block | changes))


def reader(pieces):
    return lambda ids: b"".join(pieces[number] for number in ids).decode(errors="replace")


def drawn_params(cfg, seed=0):
    """Random weights from numpy, which has nothing to compile."""
    rng = np.random.default_rng(seed)

    def one(path, spec):
        noise, name = rng.normal(size=spec.shape).astype(np.float32), path.split("/")[-1]
        if name in ("norm", "pre_norm", "D", "dt_bias", "A_log", "conv_b"):
            return jax.numpy.asarray((name.endswith("norm") or name == "D") + 0.3 * noise)
        return jax.numpy.asarray(
            noise * (0.5 if name in ("embed", "conv_w") else spec.shape[-2] ** -0.5)
        )

    return map_specs(one, hybrid.model_specs(cfg))


def flat(groups):
    return [sample for group in groups for sample in group]


def key(step=0):
    return distribution.sample_key(3, "sample", step)


@pytest.fixture(scope="module")
def tiny():
    """A random hybrid of all kinds of layers and its sampler at temperature 0.8."""
    cfg = tiny_config("ME*")
    params = drawn_params(cfg)
    sampler = make_sampler(
        cfg, settings(temperature=0.8), no_shard, vocab_limit=60, stop_ids=(5, 6)
    )
    return cfg, params, sampler


@pytest.fixture(scope="module")
def batch(tiny):
    _, params, sampler = tiny
    return sampler(params, PROMPTS, [0, 1, 2], 2, key())


def test_samples_do_not_depend_on_order(tiny, batch):
    """Prompts in another order, each with its draw index: the same bits."""
    _, params, sampler = tiny
    again = sampler(params, [PROMPTS[2], PROMPTS[0], PROMPTS[1]], [2, 0, 1], 2, key())
    assert [again[1], again[2], again[0]] == batch


@pytest.mark.slow
def test_single_prompt_equals_the_batch(tiny, batch):
    """A prompt by itself, in another program: equal ids, log-probs up to the order of sums."""
    _, params, sampler = tiny
    heard = []
    alone = sampler(
        params, PROMPTS, [0, 1, 2], 2, key(), max_rows=2, report=lambda *a: heard.append(a)
    )
    for one, many in zip(flat(alone), flat(batch), strict=True):
        assert one.completion_tokens == many.completion_tokens
        np.testing.assert_allclose(one.logprobs, many.logprobs, *ORDER_F32)
    assert [samples for samples, _ in heard] == [2, 4, 6]


def test_logprobs_equal_those_of_the_forward_pass(tiny, batch):
    """Prefill and decoding score as the trainer's forward pass does, temperature included (T07)."""
    cfg, params, _ = tiny
    tokens, targets, places = (np.zeros((6, 24), np.int32) for _ in range(3))
    rows = [(p, s) for p, group in zip(PROMPTS, batch, strict=True) for s in group]
    for row, (prompt, sample) in enumerate(rows):
        ids = [*prompt, *sample.completion_tokens]
        tokens[row, : len(ids) - 1], targets[row, : len(ids) - 1] = ids[:-1], ids[1:]
        places[row, : len(ids) - 1] = 1

    @jax.jit
    def score(params, tokens, targets, segments):
        hidden, aux = hybrid.forward(params, tokens, segments, cfg, no_shard)
        logits = hybrid.logits(params, hidden, cfg)
        cut = {"temperature": 0.8, "top_k": None, "top_p": 1.0, "vocab_limit": 60}
        return distribution.token_logprobs(logits, targets, **cut), aux.router_margin

    logprobs, margins = score(params, tokens, targets, places)
    for row, (prompt, sample) in enumerate(rows):
        at = slice(len(prompt) - 1, len(prompt) - 1 + len(sample.completion_tokens))
        np.testing.assert_allclose(sample.logprobs, logprobs[row, at], *SAMPLER_GAP)
        np.testing.assert_allclose(sample.router_margin, margins[row, at], *SAMPLER_GAP)


def test_key_path_decides_the_sample(tiny, batch):
    """The same call gives the same bits; another draw, sample or step gives other tokens."""
    _, params, sampler = tiny
    assert sampler(params, PROMPTS, [0, 1, 2], 2, key()) == batch
    moved = sampler(params, PROMPTS, [1, 0, 2], 2, key())
    later = sampler(params, PROMPTS, [0, 1, 2], 2, key(1))
    assert moved[2] == batch[2]
    drawn = {g[i].completion_tokens for g in (batch[0], moved[0], later[0]) for i in (0, 1)}
    assert len(drawn) == 6


@pytest.fixture(scope="module")
def unigram():
    cfg = tiny_config("-")
    return cfg, unigram_params(cfg)


def test_stop_ids_and_settings_reach_every_row(unigram):
    """T = 2 gives 0.369, 0.261, 0.185, 0.185; top-k 3 and then top-p 0.7 leave 0.5858, 0.4142.

    Without top-k, top-p 0.7 would keep three; without T = 2 it would keep two at 2/3 and 1/3. Id 1
    stops: it is the last token, has its log-prob, and is no text.
    """
    cfg, params = unigram
    chosen = settings(temperature=2.0, top_k=3, top_p=0.7, max_completion_tokens=4)
    sampler = make_sampler(cfg, chosen, no_shard, vocab_limit=64, stop_ids=(1,))
    samples = sampler(params, [[1], [2, 2]], [0, 1], 40, key(), max_rows=16)
    assert {sample.finish_reason for sample in flat(samples)} == {"stop", "length"}
    for sample in flat(samples):
        ids = sample.completion_tokens
        golden = np.log([0.585786, 0.414214])[list(ids)]
        np.testing.assert_allclose(sample.logprobs, golden, *SAMPLER_GAP)
        stopped = sample.finish_reason == "stop"
        assert 1 not in ids[:-1]
        assert (ids[-1] == 1) == stopped
        assert sample.stop == (1 if stopped else None)
        assert len(ids) == 4 or stopped
        assert sample.text_tokens == (ids[:-1] if stopped else ids)
        assert sample.text is None
    # Every token has a key of its own: rows stop after one, two, three and four tokens.
    assert {len(sample.completion_tokens) for sample in flat(samples)} == {1, 2, 3, 4}
    # A group cut into parts has the samples of a whole one.
    assert [len(group) for group in samples] == [40, 40]
    assert sampler(params, [[2, 2]], [1], 16, key())[0] == samples[1][:16]


@pytest.fixture(scope="module")
def counting():
    """Returns a greedy run of the model that counts 1, 2, 3, 0, ... on from a prompt's last id.

    Id 2 would stop it, were it not for ignore_eos.
    """
    cfg = tiny_config("-")
    params = next_id_params(cfg)

    def run(prompt, pieces, stop):
        chosen = settings(temperature=0.0, stop=stop, max_completion_tokens=20, ignore_eos=True)
        decode = reader(pieces)
        sampler = make_sampler(cfg, chosen, no_shard, vocab_limit=64, stop_ids=(2,), decode=decode)
        return sampler(params, [prompt], [0], 1, key())[0][0]

    return run


def test_stop_string_across_tokens_cuts_text_only(counting):
    """T08: 'foo E', 'N', 'D bar' with stop 'END' gives text 'foo ' and three ids."""
    one = counting([0], PIECES, ("END",))
    assert (one.completion_tokens, one.text, one.text_tokens) == ((1, 2, 3), "foo ", ())
    assert (one.finish_reason, one.stop, len(one.logprobs)) == ("stop", "END", 3)
    # The prompt ends in 'foo E': what it holds of a stop string does not count.
    two = counting([1], PIECES, ("END",))
    assert (two.completion_tokens, two.text) == ((2, 3, 0, 1, 2, 3), "ND bar!foo ")


def test_stop_string_is_found_in_a_later_block(counting):
    """A string completed by token 18, in the second block of 16, ends the row there."""
    pieces = {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
    one = counting([0], pieces, ("bcda" * 4 + "bc",))
    assert (len(one.completion_tokens), one.text, one.finish_reason) == (18, "", "stop")
    none = counting([0], pieces, ("bb",))
    assert (len(none.completion_tokens), none.finish_reason, none.stop) == (20, "length", None)


def test_character_over_two_tokens_is_one_character(counting):
    """T08: E2 82 | AC is the euro sign; cut between the two nothing fails and the id stays."""
    assert counting([0], EURO, (".",)).text == "€"
    cut = counting([1], EURO, ())  # the 20th token is id 1 again
    assert (cut.completion_tokens[-1], cut.finish_reason) == (1, "length")
    assert cut.text.endswith("\ufffd")
    assert cut.text.count("€") == 4
    np.testing.assert_allclose(cut.logprobs, [np.log(0.7)] * 20, *SAMPLER_GAP)


@pytest.mark.parametrize(
    ("pieces", "ids", "stops", "found"),
    [
        (PIECES, [1, 2, 3], ["END"], (3, 0, "foo ", "END")),
        (PIECES, [2, 1, 2, 3, 0], ["END"], (4, 1, "Nfoo ", "END")),
        (PIECES, [2, 1], ["N"], (1, 0, "", "N")),  # at the very first token
        (PIECES, [0, 3, 0], ["D b", "D"], (2, 1, "!", "D")),  # a prefix ends first
        (PIECES, [0, 3, 0], [" bar", "bar"], (2, 1, "!D", " bar")),  # ending together: the longer
        (PIECES, [0, 0, 1], ["END", "Q"], None),
        (EURO, [1, 2, 3], ["€"], (2, 0, "", "€")),  # one character over two tokens
    ],
)
def test_find_stop_reads_text_and_not_tokens(pieces, ids, stops, found):
    """The stop string whose last character comes first wins, wherever tokens begin."""
    assert find_stop(ids, 0, stops, reader(pieces)) == found


def test_find_stop_does_not_depend_on_where_blocks_end(rng):
    """Looking after every token or once at the end finds the same place."""
    pieces = dict(enumerate([b"a", b"b", b"ab", b"", b"\xe2\x82", b"\xac", b"c"]))
    decode = reader(pieces)
    for _ in range(60):
        ids = rng.integers(0, 7, size=40).tolist()
        stops = ["abc", "bca", "€c", "aaaa"]
        whole = find_stop(ids, 0, stops, decode)
        steps = (find_stop(ids[:end], end - 4, stops, decode) for end in range(4, 41, 4))
        assert next((found for found in steps if found), None) == whole


@pytest.mark.slow
def test_cache_size_does_not_change_the_tokens():
    """T09: three new tokens equal the first three of forty, for lengths 2, 8 and 16 in one batch."""
    cfg = tiny_config("*")
    params = drawn_params(cfg, seed=4)
    prompts = [[1, 2], [3] * 8, list(range(10, 26))]
    drawn = []
    for new in (3, 40):
        chosen = settings(temperature=0.0, max_completion_tokens=new)
        sampler = make_sampler(cfg, chosen, no_shard, vocab_limit=64, stop_ids=())
        drawn.append(sampler(params, prompts, [0, 1, 2], 1, key()))
    for (short,), (long,) in zip(*drawn, strict=True):
        assert len(long.completion_tokens) == 40
        assert short.completion_tokens == long.completion_tokens[:3]
        assert short.finish_reason == "length"


def test_sampler_refuses_what_it_cannot_sample(unigram):
    """Empty and overlong prompts and stop strings without text are named with their numbers."""
    cfg, params = unigram
    sampler = make_sampler(
        cfg, settings(max_prompt_tokens=4), no_shard, vocab_limit=64, stop_ids=(), max_len=13
    )
    for prompts, said in [
        ([[1], []], "prompt 1 has no tokens"),
        ([[1] * 5], "prompt 0 has 5 tokens, max_prompt_tokens is 4"),
        ([[1] * 4], "prompt 0 has 4 tokens, with 10 new ones 14, the limit is 13"),
    ]:
        with pytest.raises(InputError, match=said):
            sampler(params, prompts, [0, 1], 1, key())
    with pytest.raises(InputError, match="need a tokenizer"):
        make_sampler(cfg, settings(stop=("a",)), no_shard, vocab_limit=64, stop_ids=())


@pytest.mark.slow
def test_samples_are_the_same_on_a_mesh(tiny, batch):
    """Rows over data and weights over tensor, three prompts on four devices: equal ids."""
    cfg, params, _ = tiny
    axes = dict.fromkeys(RulesConfig.__dataclass_fields__, ())
    axes |= {"batch": ("data",), "vocab": ("tensor",), "heads": ("tensor",), "mlp": ("tensor",)}
    config = MeshConfig(data=2, fsdp=1, expert=1, tensor=2, context=1, rules=axes)
    mesh = make_mesh(config)
    laid = jax.device_put(params, param_shardings(hybrid.model_specs(cfg), mesh, config.rules))
    sampler = make_sampler(
        cfg,
        settings(temperature=0.8),
        make_shard(mesh, config.rules),
        vocab_limit=60,
        stop_ids=(5, 6),
    )
    spread = sampler(laid, PROMPTS, [0, 1, 2], 2, key())
    for one, many in zip(flat(spread), flat(batch), strict=True):
        assert one.completion_tokens == many.completion_tokens
        np.testing.assert_allclose(one.logprobs, many.logprobs, *ORDER_F32)


@pytest.mark.slow
def test_padding_does_not_reach_the_state(tiny, batch):
    """T11: forty more pads, forced by a long neighbour, leave ids equal."""
    _, params, sampler = tiny
    padded = sampler(params, [*PROMPTS, [9] * 49], [0, 1, 2, 3], 2, key())
    for one, many in zip(flat(padded[:3]), flat(batch), strict=True):
        assert one.completion_tokens == many.completion_tokens
        np.testing.assert_allclose(one.logprobs, many.logprobs, *ORDER_F32)
