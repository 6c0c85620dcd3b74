"""MOPD: each prompt's own teacher scores the student's tokens (paper 3.1)."""

import dataclasses
import itertools

import crafted
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nemocascade_jax import config_file
from nemocascade_jax.data.batches import make_stream
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.models.hybrid import model_specs
from nemocascade_jax.rows.generators import GENERATORS
from nemocascade_jax.rows.records import Score
from nemocascade_jax.sharding import make_mesh, make_shard, param_shardings
from nemocascade_jax.stages import mopd
from nemocascade_jax.stages.handles import StageIO, Teacher
from nemocascade_jax.state import fresh_state
from tolerances import SAME_F32, SAMPLER_GAP

MODEL = crafted.tiny_config(vocab_size=512)
PROBS = {"math": (0.5, 0.25, 0.125, 0.125), "choice": (0.125, 0.125, 0.25, 0.5)}


@pytest.fixture(scope="module")
def run(root):
    changes = {
        "stages.mopd.prompts_per_step": "6",
        "stages.mopd.group_size": "2",
        "stages.mopd.teacher_rows": "2",
        "stages.mopd.sampling.max_completion_tokens": "6",
    }
    return config_file.load_config(
        str(root / "configs/cascade.py") + ":micro", list(changes.items())
    ).run


def make_io(run, teachers, cfg=MODEL):
    mesh = make_mesh(run.mesh)
    rows = [(list(GENERATORS[name].rows("train", 8, 0)), 1.0) for name in ("math", "choice")]
    return StageIO(
        name="mopd",
        seed=0,
        model=cfg,
        specs=model_specs(cfg),
        mesh=mesh,
        rules=run.mesh.rules,
        shard=make_shard(mesh, run.mesh.rules),
        tokenizer=load_tokenizer("tiny"),
        stream=make_stream(rows, 0),
        grade=lambda jobs: [Score(1.0, "ok") for _ in jobs],
        start_params=lambda: None,
        after_step=lambda *_: None,
        teachers=teachers,
    )


def on_mesh(run, params, cfg=MODEL):
    shardings = param_shardings(model_specs(cfg), make_mesh(run.mesh), run.mesh.rules)
    return jax.device_put(params, shardings)


def unigrams(run):
    """Teachers that do not look at the prompt: what they give a token is known by hand."""
    return {
        domain: Teacher(
            name, MODEL, lambda name=name: on_mesh(run, crafted.unigram_params(MODEL, PROBS[name]))
        )
        for domain, name in (("math", "math"), ("multiple_choice", "choice"))
    }


def collected(run, teachers, params, **changes):
    config = dataclasses.replace(run.stages["mopd"], **changes)
    return mopd.make_collect(config, make_io(run, teachers))(fresh_state(params, ()))


@pytest.fixture(scope="module")
def student(run):
    return on_mesh(run, crafted.unigram_params(MODEL, (0.25, 0.25, 0.25, 0.25)))


@pytest.fixture(scope="module")
def step(run, student):
    return collected(run, unigrams(run), student)


def test_every_token_is_scored_by_the_teacher_of_its_domain(step):
    """The student draws ids 0 to 3; each teacher gives them its own probabilities."""
    seen = set()
    for record in step.records:
        probs = PROBS[{"math": "math", "multiple_choice": "choice"}[record["domain"]]]
        assert record["teacher"] == {"math": "math", "multiple_choice": "choice"}[record["domain"]]
        expected = [np.log(probs[token]) for token in record["completion_tokens"]]
        np.testing.assert_allclose(record["teacher_logprobs"], expected, atol=SAMPLER_GAP.atol)
        seen.add(record["domain"])
    assert seen == {"math", "multiple_choice"}


def test_every_sequence_weighs_one_whatever_its_length(step):
    batch = jax.device_get(step.batch)
    lengths = {len(record["completion_tokens"]) for record in step.records}
    assert len(lengths) > 1
    np.testing.assert_allclose(batch.weights.sum(), 12, rtol=SAME_F32.rtol)
    assert batch.denominator == 12
    for row, segments in enumerate(batch.segment_ids):
        for number in range(1, segments.max() + 1):
            here = (segments == number) & batch.completion_mask[row]
            np.testing.assert_allclose(batch.weights[row, here], 1 / here.sum(), rtol=1e-6)


def test_rows_of_two_teachers_are_never_packed_together(step):
    """A row's domain is known by its prompts; the sampled ids are those of `records`."""
    batch = jax.device_get(step.batch)
    prompts = {tuple(r["prompt_tokens"]): r["domain"] for r in step.records}
    for row, segments in enumerate(batch.segment_ids):
        found = set()
        for number in range(1, segments.max() + 1):
            tokens = batch.tokens[row, segments == number].tolist()
            found |= {d for prompt, d in prompts.items() if tokens[: len(prompt)] == list(prompt)}
        assert len(found) <= 1


def test_reverse_kl_of_a_domain_is_the_mean_over_its_answers(step):
    for domain in ("math", "multiple_choice"):
        ratios = [
            np.mean(np.array(r["logprobs"]) - np.array(r["teacher_logprobs"]))
            for r in step.records
            if r["domain"] == domain
        ]
        found = step.metrics[f"mopd/reverse_kl/{domain}"]
        np.testing.assert_allclose(found, np.mean(ratios), rtol=SAME_F32.rtol)


@pytest.mark.parametrize("memory", ["device", "disk"])
def test_where_teachers_wait_changes_nothing(run, student, step, memory):
    """The run's own setting, parked in host memory, against the two others."""
    assert run.stages["mopd"].teacher_memory == "host"
    other = collected(run, unigrams(run), student, teacher_memory=memory)
    np.testing.assert_array_equal(other.batch.teacher_logprobs, step.batch.teacher_logprobs)


def test_how_many_rows_a_teacher_scores_at_a_time_changes_nothing(run, student, step):
    other = collected(run, unigrams(run), student, teacher_rows=8)
    np.testing.assert_allclose(
        other.batch.teacher_logprobs, step.batch.teacher_logprobs, atol=SAME_F32.atol
    )


def test_a_teacher_that_is_the_student_has_nothing_to_say(run):
    """On a random hybrid: advantage within 1e-6 at every token, near ties of the router apart."""
    params = on_mesh(run, crafted.random_params(MODEL))
    loads = itertools.count()

    def load():
        next(loads)
        return params

    itself = Teacher("sft@1", MODEL, load)
    io = make_io(run, {"math": itself, "multiple_choice": itself})
    config = dataclasses.replace(run.stages["mopd"], teacher_memory="device")
    batch = mopd.make_collect(config, io)(fresh_state(params, ())).batch
    assert next(loads) == 1  # one teacher of two domains is loaded once
    (total, (sums, largest, _)), grads = jax.jit(
        jax.value_and_grad(mopd.make_loss_sum(config, io), has_aux=True)
    )(params, batch)
    part, count = sums["mopd/advantage_abs"]
    assert float(part / count) < 1e-6
    assert float(largest["policy/sampler_gap"]) <= SAMPLER_GAP.atol
    assert abs(float(total)) < 1e-5
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads)) < 1e-5


def test_without_teachers_the_stage_is_over_at_once(run, student):
    found = collected(run, None, student)
    assert found.batch is None
    assert found.metrics["progress/ended"] == "nothing fell"


def test_the_same_state_gives_the_same_batch(run, student, step):
    again = collected(run, unigrams(run), student)
    for one, other in zip(jax.tree.leaves(again.batch), jax.tree.leaves(step.batch), strict=True):
        np.testing.assert_array_equal(one, other)
