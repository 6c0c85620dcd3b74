import dataclasses

import attacks_tools
import crafted
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import golden
from nemocascade_jax import config_file, losses, rollout
from nemocascade_jax.config import TurnsConfig
from nemocascade_jax.data import chat
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards.office.seed import invented_office
from nemocascade_jax.rewards.office.tools import call_tool
from nemocascade_jax.rollout import Graded, Group
from nemocascade_jax.rows.generators import office
from nemocascade_jax.rows.messages import write_calls
from nemocascade_jax.rows.records import Message, Row, Score, ToolCall
from nemocascade_jax.sampler.engine import Sample, make_sampler
from nemocascade_jax.sampler.sampling import sample_key
from nemocascade_jax.sampler.scoring import make_scorer
from nemocascade_jax.sharding import no_shard
from tolerances import SAMPLER_GAP


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


class Echo:
    """A world that says again what it is told, until it has answered `answers` times."""

    def __init__(self, answers=2, fault=None):
        self.left, self.fault = answers, fault

    def reset(self, row):
        return row.messages

    def step(self, turn):
        self.left -= 1
        if self.fault:
            raise InputError(self.fault)
        return (Message("tool", turn.text),) if self.left >= 0 else ()

    def score(self, trajectory):
        said = [message.content for message in trajectory if message.role == "assistant"]
        told = [message.content for message in trajectory if message.role == "tool"]
        return Score(float(told == said[: len(told)]), "ok", f"{len(said)} turns")


def read(ids):
    return " ".join(map(str, ids))


def render(row, before, answers):
    """Two ids of each answer between 50 and 51."""
    return [i for m in answers for i in (50, *map(int, m.content.split()[:2]), 51)]


def told(answers=2, fault=None):
    return rollout.Play(lambda row: Echo(answers, fault), read, render)


def draws_of(count, size=2):
    row = make_group(0, [0, 0, 0, 0]).row
    return [(draw, row, tuple(range(20 + draw, 20 + draw + size))) for draw in range(count)]


def scripted(calls, finish="stop"):
    """A sampler whose every turn is (its number, draw, 60), the end."""

    def sampler(params, prompts, draws, group_size, key):
        calls.append((prompts, draws))
        turn = len(calls)
        return [
            [make_sample((turn, draw, 60), finish) for _ in range(group_size)] for draw in draws
        ]

    return sampler


def test_answers_of_the_world_are_context_and_sampled_ids_stay():
    calls = []
    limits = rollout.Limits(turns=5, turn_tokens=3, tokens=40)
    play = rollout.make_play(scripted(calls), told(), limits)
    (group,) = play(None, draws_of(1), 2, jax.random.key(0))
    first, second = group.samples
    # Behind the first turn the members are draws 0 and 1 of their own.
    assert first.completion_tokens == (1, 0, 60, 50, 1, 0, 51, 2, 0, 60, 50, 2, 0, 51, 3, 0, 60)
    assert second.completion_tokens == (1, 0, 60, 50, 1, 0, 51, 2, 1, 60, 50, 2, 1, 51, 3, 1, 60)
    sampled = [token not in (50, 51) for token in first.completion_tokens]
    sampled[4:6] = sampled[11:13] = False, False
    assert list(first.produced) == sampled
    assert [value == 0 for value in first.logprobs] == [not flag for flag in sampled]
    assert (first.turns, first.finish_reason) == (("tool", "tool", "stop"), "stop")
    assert [score.reward for score in group.scores] == [1.0, 1.0]
    assert calls[2][0][1] == [20, 21, *second.completion_tokens[:14]]


def test_world_answers_are_neither_weighted_nor_counted(base):
    play = rollout.make_play(scripted([]), told(1), rollout.Limits(5, 3, 40))
    group, other = play(None, draws_of(2), 2, jax.random.key(0))
    group = dataclasses.replace(group, scores=(Score(1.0, "ok"), Score(0.0, "ok")))
    batch, advantages = batch_of([group, other], base)
    counted = np.isin(batch.targets, (50, 51)) & (batch.segment_ids > 0)
    assert counted.sum() == 8
    assert not (counted & batch.completion_mask).any()
    assert batch.completion_mask.sum() == batch.denominator == 4 * 6
    for name in ("weights", "advantages", "sampler_logprobs"):
        assert not getattr(batch, name)[~batch.completion_mask].any()
    assert advantages[0, 0] == pytest.approx(1, abs=golden.GOLDEN_ATOL)
    # A trajectory is one segment: the world's answer is seen by the turn behind it.
    rows, places = np.nonzero(batch.completion_mask)
    assert (
        len({(row, batch.segment_ids[row, place]) for row, place in zip(rows, places, strict=True)})
        == 4
    )
    graded = rollout.to_arrays([group], "keep")
    lines = rollout.records(1, [group], graded, ["update"], advantages=[advantages[0]], digest="d")
    assert lines[0]["turns"] == ["tool", "stop"]
    assert sum(lines[0]["produced"]) == 6


@pytest.mark.parametrize(
    ("limits", "turns"),
    [
        (rollout.Limits(2, 3, 40), ("tool", "tool")),
        (rollout.Limits(9, 3, 2 + 3 + 4 + 3), ("tool", "length")),
        (rollout.Limits(9, 3, 2 + 3 + 4 + 2), ("length",)),
    ],
)
def test_a_trajectory_ends_at_its_limits_with_a_sampled_token(limits, turns):
    play = rollout.make_play(scripted([]), told(9), limits)
    (group,) = play(None, draws_of(1), 2, jax.random.key(0))
    for sample in group.samples:
        assert sample.turns == turns
        assert sample.produced[-1]
        assert len(sample.completion_tokens) + 2 <= limits.tokens


def test_a_turn_cut_by_its_length_is_not_answered():
    play = rollout.make_play(scripted([], "length"), told(9), rollout.Limits(9, 3, 99))
    (group,) = play(None, draws_of(1), 2, jax.random.key(0))
    assert {sample.turns for sample in group.samples} == {("length",)}


def test_a_world_that_fails_is_no_zero():
    play = rollout.make_play(scripted([]), told(fault="no route"), rollout.Limits(9, 3, 99))
    (group,) = play(None, draws_of(1), 2, jax.random.key(0))
    assert {(s.reward, s.status) for s in group.scores} == {(None, "failed")}
    assert "no route" in group.scores[0].reason


def test_settings_that_several_turns_cannot_have_are_refused(base):
    sampling = dataclasses.replace(base.sampling, max_prompt_tokens=4, max_completion_tokens=18)
    with pytest.raises(InputError, match="a turn of 19 tokens does not fit"):
        rollout.turn_sampling(sampling, 19)
    with pytest.raises(InputError, match="stop strings and ignore_eos"):
        rollout.turn_sampling(dataclasses.replace(sampling, stop=("x",)), 6)


def test_an_episode_in_the_chat_format_reads_as_the_conversation_it_is():
    """What the ids of a trajectory say is what rendering its messages writes; the end is graded."""
    tokenizer = load_tokenizer("tiny")
    rows = office.generate("train", 20, 1)
    row = next(row for row in rows if "email_id" in str(row.fields["ground_truth"]))
    call = write_calls([ToolCall("email_search_emails", {"query": "audit", "page_size": 1})])
    right = attacks_tools.satisfying(row).removeprefix("<think>\n")
    script = [f"Look.\n</think>\n{call.strip()}", right.strip(), "Done.\n</think>\nIt is removed."]
    taken = []

    def sampler(params, prompts, draws, group_size, key):
        ids = [*tokenizer.encode(script[len(taken)]), tokenizer.special("<|im_end|>")]
        taken.append(prompts[0])
        return [[make_sample(ids) for _ in range(group_size)] for _ in draws]

    prompt = tuple(chat.render_row(row, tokenizer, thinking=True))
    play = rollout.make_play(
        sampler, rollout.chat_play(tokenizer, thinking=True), rollout.Limits(6, 500, 9000)
    )
    (group,) = play(None, [(0, row, prompt)], 2, jax.random.key(0))
    assert [score.reward for score in group.scores] == [1.0, 1.0]
    assert group.samples[0].turns == ("tool", "tool", "stop")
    told = [Message("assistant", "<think>\n" + text) for text in script]
    searched = call_tool(
        invented_office(), ToolCall("email_search_emails", {"query": "audit", "page_size": 1})
    )
    answers = [Message("tool", searched.text), Message("tool", "Email deleted successfully.")]
    messages = [*row.messages, told[0], answers[0], told[1], answers[1], told[2]]
    whole = tokenizer.decode([*prompt, *group.samples[0].completion_tokens], specials=True)
    kept = chat.Options(truncate_history_thinking=False)
    assert whole + "\n" == chat.render_text(messages, tools=row.tools, options=kept)
    with pytest.raises(InputError, match="has no environment of several turns"):
        play(None, draws_of(1), 1, jax.random.key(0))


def test_rows_of_one_turn_and_of_several_are_rolled_out_together(base):
    """In the order drawn; those of one turn get the samples that they get without the others."""
    tokenizer = load_tokenizer("tiny")
    (work,) = office.generate("train", 1, 1)
    once = make_group(0, [0, 0, 0, 0]).row
    prompt = tuple(range(20, 24))
    made, calls = [], []

    def make(sampling):
        made.append((sampling.max_prompt_tokens, sampling.max_completion_tokens))
        return scripted(calls)

    def grade(jobs):
        return [Score(0.5, "ok") for _ in jobs]

    sampling = dataclasses.replace(base.sampling, max_prompt_tokens=9, max_completion_tokens=20)
    settings = {"tokenizer": tokenizer, "grade": grade}
    roll = rollout.make_rollout(make, sampling, TurnsConfig(3, 5), **settings)
    assert made == [(9, 20), (24, 5)]
    drawn = [(3, once, prompt), (4, work, prompt), (5, once, prompt)]
    groups = roll(None, drawn, 2, jax.random.key(0)).groups
    assert [(group.draw, group.scores[0].reward) for group in groups] == [
        (3, 0.5),
        (4, 1),  # a question, which any message answers
        (5, 0.5),
    ]
    assert [draws for _, draws in calls] == [[4], [3, 5]]
    assert isinstance(groups[1].samples[0], rollout.Trajectory)
    alone = rollout.make_rollout(make, sampling, None, **settings)
    with pytest.raises(InputError, match="answers in several turns; say how many"):
        alone(None, drawn, 2, jax.random.key(0))
    assert len(alone(None, drawn[:1], 2, jax.random.key(0)).groups) == 1
    assert alone(None, [], 2, jax.random.key(0)).groups == []


def test_turns_are_scored_as_they_were_sampled(base):
    """On-policy across turns: the packed forward pass finds the sampler's log-probs, whoever is beside."""
    cfg, params = crafted.tiny_hybrid_config("M*")
    sampling = dataclasses.replace(
        base.sampling, max_prompt_tokens=4, max_completion_tokens=28, temperature=0.8
    )
    config = dataclasses.replace(base, sampling=sampling)
    # Most ids end a turn, so that all four go on together: one program for every turn.
    sampler = make_sampler(
        cfg,
        rollout.turn_sampling(sampling, 16),
        no_shard,
        vocab_limit=60,
        stop_ids=tuple(range(40)),
    )
    play = rollout.make_play(sampler, told(9), rollout.Limits(2, 16, 32))
    drawn = draws_of(4)
    groups = play(params, drawn, 1, sample_key(0, "turns", 0))
    assert {group.samples[0].turns for group in groups} == {("tool", "tool")}
    batch, _ = rollout.policy_batch(groups, rollout.to_arrays(groups, "keep"), config, drawn=4)
    batch = jax.tree.map(jnp.asarray, batch)
    scored = jax.jit(make_scorer(cfg, no_shard, sampling, 60))(params, batch)
    found = losses.sampler_gap(scored.logprobs, batch, scored.near_tie)
    assert found["policy/sampler_gap"] <= SAMPLER_GAP.atol
    again = play(params, drawn[::-1], 1, sample_key(0, "turns", 0))
    assert [group.samples for group in again[::-1]] == [group.samples for group in groups]


def test_every_turn_of_every_member_has_its_own_key():
    """No two calls of the sampler draw from the same (key, draw), whatever the turn or the member."""
    seen = []

    def sampler(params, prompts, draws, group_size, key):
        of = tuple(jax.random.key_data(key).tolist())
        seen.extend((of, draw, member) for draw in draws for member in range(group_size))
        return [[make_sample((1, 2, 60)) for _ in range(group_size)] for _ in draws]

    play = rollout.make_play(sampler, told(9), rollout.Limits(4, 3, 99))
    play(None, draws_of(2), 2, jax.random.key(0))
    assert len(seen) == len(set(seen)) == 4 * 4
