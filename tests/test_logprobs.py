"""logprobs.py scores what sample.py reports, alone or packed, and refuses what it cannot score."""

import json

import numpy as np
import pytest
from crafted import next_id_params, tiny_config
from model_folders import read_rows, run_command, write_hf, write_rows
from test_engine import drawn_params

from tolerances import ORDER_F32, SAMPLER_GAP

PROMPTS = [[7, 9], [3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2]]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder without a tokenizer, and what sample.py draws from it at T = 0.5, top-k 20."""
    work = tmp_path_factory.mktemp("logprobs")
    cfg = tiny_config("*")
    write_hf(work / "model", cfg, drawn_params(cfg))
    rows = [{"id": f"p{i}", "prompt_tokens": prompt} for i, prompt in enumerate(PROMPTS)]
    done = run_command(
        "sample",
        model=work / "model",
        prompts=write_rows(work / "prompts.jsonl", rows),
        out=work / "samples.jsonl",
        num_samples=2,
        max_new_tokens=12,
        temperature=0.5,
        top_k=20,
        seed=4,
    )
    assert done.returncode == 0, done.stderr
    return work


def score(work, rows, out="scored.jsonl", **flags):
    done = run_command("logprobs", model=work / "model", rows=rows, out=work / out, **flags)
    assert done.returncode == 0, done.stderr
    return read_rows(work / out)


def test_sampled_logprobs_are_scored_again(work):
    """T07, T09: prompts of 2, 5 and 9 tokens in one padded batch, T = 0.5, top-k, to 1e-4; packed too."""
    samples = read_rows(work / "samples.jsonl")
    alone = score(work, work / "samples.jsonl", temperature=0.5, top_k=20)
    packed = score(work, work / "samples.jsonl", temperature=0.5, top_k=20, pack=True)
    assert [row["id"] for row in alone] == ["p0", "p0", "p1", "p1", "p2", "p2"]
    for sample, one, other in zip(samples, alone, packed, strict=True):
        assert len(sample["logprobs"]) == len(sample["completion_tokens"]) == 12
        np.testing.assert_allclose(one["logprobs"], sample["logprobs"], *SAMPLER_GAP)
        np.testing.assert_allclose(other["logprobs"], one["logprobs"], *ORDER_F32)


def test_tokens_rows_give_one_logprob_a_token_after_the_first(tmp_path):
    """Next-id model: the next id has ln 0.7, others of 0-3 ln 0.1; one token alone gives none."""
    cfg = tiny_config("-", norm_eps=1e-9)
    write_hf(tmp_path / "model", cfg, next_id_params(cfg))
    rows = write_rows(
        tmp_path / "rows.jsonl",
        [
            {"tokens": [0, 1, 2, 0]},
            {"tokens": [3]},
            {"id": "c", "prompt_tokens": [0, 1], "completion_tokens": [3, 0]},
            {"prompt_tokens": [0, 1], "completion_tokens": []},
        ],
    )
    found = score(tmp_path, rows)
    good, other = np.log(0.7), np.log(0.1)
    golden = [(0, [good, good, other]), (1, []), ("c", [other, good]), (3, [])]
    assert [row["id"] for row in found] == [name for name, _ in golden]
    for row, (_, values) in zip(found, golden, strict=True):
        np.testing.assert_allclose(row["logprobs"], values, *SAMPLER_GAP)
        assert list(row) == ["id", "logprobs"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tokens": [1, 64]}, "field tokens: entry 1 is 64, the vocabulary's ids are 0 to 63"),
        ({"prompt_tokens": [1]}, "needs prompt_tokens and completion_tokens, or tokens"),
    ],
)
def test_bad_rows_are_refused_in_one_line(work, row, said):
    """File, line and field are named, exit code 2, no output."""
    rows = work / "bad.jsonl"
    rows.write_text('{"tokens": [1, 2]}\n' + json.dumps(row) + "\n")
    done = run_command("logprobs", model=work / "model", rows=rows, out=work / "bad_out.jsonl")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{rows}:2" in done.stderr
    assert said in done.stderr
    assert not (work / "bad_out.jsonl").exists()
