"""The sampler: a sample depends on its prompt and key path only; stops, lengths, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crafted import next_id_params, tiny_config, tiny_hybrid_config, unigram_params

from nemocascade_jax.config import MeshConfig, RulesConfig, SamplingConfig
from nemocascade_jax.errors import InputError
from nemocascade_jax.models import hybrid
from nemocascade_jax.sampler import sampling as distribution
from nemocascade_jax.sampler.engine import make_sampler
from nemocascade_jax.sampler.stops import find_stop
from nemocascade_jax.sharding import make_mesh, make_shard, no_shard, param_shardings
from tolerances import ORDER_F32, SAMPLER_GAP

PROMPTS = [[7, 9], [3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2]]
PIECES = {0: b"!", 1: b"foo E", 2: b"N", 3: b"D bar"}
EURO = {0: b"\xac", 1: b"\xe2\x82", 2: b"\xac", 3: b"."}


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


def flat(groups):
    return [sample for group in groups for sample in group]


def key(step=0):
    return distribution.sample_key(3, "sample", step)


@pytest.fixture(scope="module")
def tiny():
    """A random hybrid of all kinds of layers and its sampler at temperature 0.8."""
    cfg, params = tiny_hybrid_config("ME*")
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
    cfg = tiny_config("*", attention=tiny_config().attention)
    return cfg, unigram_params(cfg)


def test_stop_ids_end_a_row_and_are_scored(unigram):
    """p(stop) = 1/8: the stop token is the last one, has its log-prob, and is no text."""
    cfg, params = unigram
    sampler = make_sampler(cfg, settings(), no_shard, vocab_limit=64, stop_ids=(3,))
    samples = sampler(params, [[1], [2, 2]], [0, 1], 40, key())
    every = flat(samples)
    assert {sample.finish_reason for sample in every} == {"stop", "length"}
    for sample in every:
        ids = sample.completion_tokens
        golden = np.log([1 / 2, 1 / 4, 1 / 8, 1 / 8])[list(ids)]
        np.testing.assert_allclose(sample.logprobs, golden, *SAMPLER_GAP)
        stopped = sample.finish_reason == "stop"
        assert 3 not in ids[:-1]
        assert (ids[-1] == 3) == stopped
        assert (sample.stop == 3) == stopped
        assert len(ids) == 10 or stopped
        assert sample.text_tokens == (ids[:-1] if stopped else ids)
        assert sample.text is None
    parts = sampler(params, [[1], [2, 2]], [0, 1], 40, key(), max_rows=16)
    assert [[s.completion_tokens for s in g] for g in parts] == [
        [s.completion_tokens for s in g] for g in samples
    ]


def test_ignore_eos_goes_on_after_a_stop_id(unigram):
    """With ignore_eos every row has all its tokens, stop ids among them."""
    cfg, params = unigram
    sampler = make_sampler(cfg, settings(ignore_eos=True), no_shard, vocab_limit=64, stop_ids=(3,))
    (group,) = sampler(params, [[1]], [0], 8, key())
    assert {len(sample.completion_tokens) for sample in group} == {10}
    assert {sample.finish_reason for sample in group} == {"length"}
    assert any(3 in sample.completion_tokens for sample in group)


def test_temperature_reaches_the_reported_logprobs(unigram):
    """T07: id 0 of G at T = 2 has log-prob -0.9959; at T = 0 the draw is id 0 at -0.6931."""
    cfg, params = unigram
    for temperature, golden in [(2.0, -0.9959), (0.0, -0.6931)]:
        chosen = settings(temperature=temperature, max_completion_tokens=4)
        sampler = make_sampler(cfg, chosen, no_shard, vocab_limit=64, stop_ids=())
        (group,) = sampler(params, [[1]], [0], 8, key())
        found = [
            (i, v) for s in group for i, v in zip(s.completion_tokens, s.logprobs, strict=True)
        ]
        zeros = [value for number, value in found if number == 0]
        np.testing.assert_allclose(zeros, golden, atol=1e-4)
        assert zeros
        assert temperature or len(zeros) == len(found)


def test_stop_string_across_tokens_cuts_text_only():
    """T08: 'foo E', 'N', 'D bar' with stop 'END' gives text 'foo ' and three ids; also in block 2."""
    cfg = tiny_config("*")
    params = next_id_params(cfg)
    chosen = settings(temperature=0.0, stop=("END",), max_completion_tokens=20)
    sampler = make_sampler(
        cfg, chosen, no_shard, vocab_limit=64, stop_ids=(), decode=reader(PIECES)
    )
    # The prompt's own text holds the stop string, which does not count.
    (((one,),), ((two,),)) = (sampler(params, [p], [0], 1, key()) for p in ([1, 2, 3, 0], [1]))
    assert (one.completion_tokens, one.text, one.text_tokens) == ((1, 2, 3), "foo ", ())
    assert (one.finish_reason, one.stop, len(one.logprobs)) == ("stop", "END", 3)
    assert (two.completion_tokens, two.text) == ((2, 3, 0, 1, 2, 3), "ND bar!foo ")


def test_stop_string_is_found_in_a_later_block():
    """A string completed by token 18, in the second block of 16, ends the row there."""
    cfg = tiny_config("*")
    pieces = {0: b"a", 1: b"b", 2: b"c", 3: b"d"}
    chosen = settings(temperature=0.0, stop=("bcda" * 4 + "bc",), max_completion_tokens=40)
    sampler = make_sampler(
        cfg, chosen, no_shard, vocab_limit=64, stop_ids=(), decode=reader(pieces)
    )
    ((one,),) = sampler(next_id_params(cfg), [[0]], [0], 1, key())
    assert (len(one.completion_tokens), one.text, one.finish_reason) == (18, "", "stop")


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
    pieces = {
        i: piece for i, piece in enumerate([b"a", b"b", b"ab", b"", b"\xe2\x82", b"\xac", b"c"])
    }
    decode = reader(pieces)
    for _ in range(60):
        ids = rng.integers(0, 7, size=40).tolist()
        stops = ["abc", "bca", "€c", "aaaa"]
        whole = find_stop(ids, 0, stops, decode)
        steps = (find_stop(ids[:end], end - 4, stops, decode) for end in range(4, 41, 4))
        assert next((found for found in steps if found), None) == whole


def test_character_over_two_tokens_is_one_character():
    """T08: E2 82 | AC is the euro sign; cut after the first token nothing fails and the id stays."""
    cfg = tiny_config("*")
    for new, text in [(2, "€"), (1, "\ufffd")]:
        chosen = settings(temperature=0.0, max_completion_tokens=new)
        sampler = make_sampler(
            cfg, chosen, no_shard, vocab_limit=64, stop_ids=(), decode=reader(EURO)
        )
        ((one,),) = sampler(next_id_params(cfg), [[0]], [0], 1, key())
        assert (one.text, len(one.logprobs), one.finish_reason) == (text, new, "length")


def test_cache_size_does_not_change_the_tokens():
    """T09: three new tokens equal the first three of forty, for lengths 2, 8 and 16 in one batch."""
    cfg, params = tiny_hybrid_config("*-", seed=4)
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


def test_processed_distribution_is_drawn_from_in_the_engine(unigram):
    """top_k 2 of G: only ids 0 and 1, with log-probs ln 2/3 and ln 1/3."""
    cfg, params = unigram
    sampler = make_sampler(cfg, settings(top_k=2), no_shard, vocab_limit=64, stop_ids=())
    (group,) = sampler(params, [[1]], [0], 8, key())
    for sample in group:
        golden = np.log(jnp.array([2 / 3, 1 / 3]))[np.array(sample.completion_tokens)]
        np.testing.assert_allclose(sample.logprobs, golden, *SAMPLER_GAP)
