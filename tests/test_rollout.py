import dataclasses

import numpy as np
import pytest

import golden
from nemocascade_jax import config_file, rollout
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rollout import Graded, Group
from nemocascade_jax.rows.records import Message, Row, Score
from nemocascade_jax.sampler.engine import Sample


@pytest.fixture(scope="module")
def base(root):
    loaded = config_file.load_config(
        str(root / "configs/if_rl.py") + ":micro",
        [("stages.if_rl.group_size", "4"), ("stages.if_rl.prompts_per_step", "2")],
    )
    return dataclasses.replace(loaded.run.stages["if_rl"], overlong="keep", dynamic_filtering=False)


def make_sample(tokens, finish="stop"):
    logprobs = tuple(-0.1 * (place + 1) for place in range(len(tokens)))
    return Sample(
        completion_tokens=tuple(tokens),
        logprobs=logprobs,
        router_margin=(1.0,) * len(tokens),
        text_tokens=tuple(tokens[:-1]),
        text="text",
        finish_reason=finish,
        stop=None,
    )


def make_group(draw, scores, lengths=(3, 2, 4, 1), finish=("stop",) * 4, prompt=(10, 11)):
    row = Row(
        str(draw),
        "instruction_following_simple_agent",
        (Message("user", "say"),),
        {},
        f"test:{draw}",
    )
    samples = tuple(
        make_sample(range(100 * draw + 10 * i, 100 * draw + 10 * i + n), f)
        for i, (n, f) in enumerate(zip(lengths, finish, strict=True))
    )
    verdicts = tuple(
        score if isinstance(score, Score) else Score(float(score), "ok") for score in scores
    )
    return Group(draw, row, tuple(prompt), samples, ("text",) * 4, verdicts)


FAILED = Score(None, "failed", "judge did not answer")


def batch_of(groups, config):
    graded = rollout.to_arrays(groups, config.overlong)
    return rollout.policy_batch(groups, graded, config, drawn=len(groups))


def test_every_completion_token_is_placed_once_with_its_logprob(base):
    groups = [make_group(1, [1, 0, 0, 0]), make_group(2, [1, 1, 0, 0], prompt=(7, 8, 9))]
    batch, advantages = batch_of(groups, base)
    found = {}
    rows, places = np.nonzero(batch.completion_mask)
    for row, place in zip(rows, places, strict=True):
        found[int(batch.targets[row, place])] = (row, place)
    for g, group in enumerate(groups):
        for m, sample in enumerate(group.samples):
            for t, token in enumerate(sample.completion_tokens):
                row, place = found.pop(token)
                before = (*group.prompt_tokens, *sample.completion_tokens)[
                    len(group.prompt_tokens) + t - 1
                ]
                assert batch.tokens[row, place] == before
                assert batch.sampler_logprobs[row, place] == np.float32(sample.logprobs[t])
                assert batch.advantages[row, place] == advantages[g, m]
                assert batch.positions[row, place] == len(group.prompt_tokens) + t - 1
    assert not found
    assert batch.denominator == 20 == batch.weights.sum()
    assert batch.drawn == 2


def test_segments_of_one_row_are_contiguous_and_restart_positions(base):
    batch, _ = batch_of([make_group(1, [1, 0, 0, 0]), make_group(2, [1, 1, 0, 0])], base)
    for segments, positions in zip(batch.segment_ids, batch.positions, strict=True):
        ids = [s for s in dict.fromkeys(segments.tolist()) if s]
        assert ids == list(range(1, len(ids) + 1))
        for segment in ids:
            here = np.flatnonzero(segments == segment)
            assert (np.diff(here) == 1).all()
            assert positions[here].tolist() == list(range(len(here)))


def test_advantages_match_the_golden_group(base):
    rewards, expected = golden.LONE_SUCCESS_OF_4
    _, advantages = batch_of([make_group(1, rewards)], base)
    np.testing.assert_allclose(advantages[0], expected, atol=golden.GOLDEN_ATOL)


CUT = ("length", "stop", "stop", "stop")


@pytest.mark.parametrize(
    ("overlong", "lengths_counted", "first_reward"),
    [("keep", 10, 1), ("mask", 7, 1), ("zero", 10, 0)],
)
def test_truncated_answers_follow_the_rule(base, overlong, lengths_counted, first_reward):
    config = dataclasses.replace(base, overlong=overlong)
    groups = [make_group(1, [1, 0, 1, 0], finish=CUT)]
    graded = rollout.to_arrays(groups, overlong)
    assert graded.rewards[0, 0] == first_reward
    batch, advantages = batch_of(groups, config)
    assert batch.denominator == lengths_counted
    # masked or not, the truncated answer's reward votes in the group's mean
    expected = [1.0, -1.0, 1.0, -1.0] if first_reward else [-0.5774, -0.5774, 1.7321, -0.5774]
    np.testing.assert_allclose(advantages[0], expected, atol=golden.GOLDEN_ATOL)
    records = rollout.records(
        1, groups, graded, ["update"], advantages=list(advantages), digest="d"
    )
    assert records[0]["reward"] == first_reward
    assert ("truncated" in records[0]["reason"]) == (overlong == "zero")


def test_failed_members_stay_in_the_arrays_without_weight(base):
    batch, advantages = batch_of([make_group(1, [1, FAILED, 0, 0])], base)
    assert advantages[0, 1] == 0
    assert batch.denominator == 8
    assert batch.completion_mask.sum() == 10
    # mean 1/3, deviation sqrt(2)/3: the failed member is in neither
    np.testing.assert_allclose(advantages[0, 0], np.sqrt(2), atol=golden.GOLDEN_ATOL)


def test_a_group_with_one_valid_member_has_no_weight(base):
    batch, advantages = batch_of([make_group(1, [1, FAILED, FAILED, FAILED])], base)
    assert (advantages == 0).all()
    assert batch.denominator == 0


def test_per_group_denominator_weighs_each_group_once(base):
    config = dataclasses.replace(base, denominator="per_group")
    groups = [make_group(1, [1, 0, 0, 0]), make_group(2, [1, 0, 0, 0], lengths=(9, 9, 9, 9))]
    batch, _ = batch_of(groups, config)
    assert batch.denominator == 2
    np.testing.assert_allclose(
        sorted(set(batch.weights[batch.weights > 0])), [1 / 36, 1 / 10], rtol=1e-6
    )
    np.testing.assert_allclose(batch.weights.sum(), 2.0, rtol=1e-6)


def test_share_of_failed_members_stops_the_stage():
    groups = [make_group(1, [1, FAILED, 0, 0])]
    assert rollout.refuse_failed(groups, 0.25, "if_rl") == 0.25
    with pytest.raises(
        InputError, match="25% of samples could not be graded.*judge did not answer"
    ):
        rollout.refuse_failed(groups, 0.2, "if_rl")


def graded_of(rows):
    rewards = np.array(rows, np.float32)
    return Graded(rewards, np.ones(rewards.shape, bool), np.zeros(rewards.shape, bool))


def test_dynamic_filtering_is_by_group_and_slices_the_surplus():
    graded = graded_of([[1, 1], [0, 1], [0, 0], [1, 0], [0, 1]])
    fates = rollout.choose_groups(graded, 2, dynamic_filtering=True)
    assert fates == ["filtered", "update", "filtered", "update", "surplus"]
    fates = rollout.choose_groups(graded, 2, dynamic_filtering=False)
    assert fates == ["update", "update", "surplus", "surplus", "surplus"]


def test_a_lone_success_survives_dynamic_filtering():
    graded = graded_of([[1, *[0] * 15]])
    assert rollout.choose_groups(graded, 1, dynamic_filtering=True) == ["update"]


def test_sequences_are_assigned_first_fit():
    places = rollout.assign_rows([5, 4, 3, 2, 1], 8)
    assert places == [(0, 0, 1), (1, 0, 1), (0, 5, 2), (1, 4, 2), (1, 6, 3)]


def test_a_stop_string_inside_a_token_leaves_the_text_before_it():
    tokenizer = load_tokenizer("tiny")
    ids = [*tokenizer.encode("foo E"), *tokenizer.encode("ND bar")]
    cut = dataclasses.replace(make_sample(ids), text="foo ", text_tokens=(), stop="END")
    assert rollout.completion_text(cut, tokenizer, thinking=False) == "foo "
    ended = make_sample([*tokenizer.encode("foo"), tokenizer.special("<|im_end|>")])
    ended = dataclasses.replace(ended, stop=tokenizer.special("<|im_end|>"))
    assert rollout.completion_text(ended, tokenizer, thinking=False) == "foo"
    assert rollout.completion_text(ended, tokenizer, thinking=True) == "<think>\nfoo"
