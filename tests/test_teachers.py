"""Teachers of a MOPD stage: planted faults are refused before any device work (traps T04)."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from nemocascade_jax import config_file
from nemocascade_jax.cascade import inputs as cascade_inputs
from nemocascade_jax.cascade.ledger import open_ledger
from nemocascade_jax.cascade.teachers import choose_teachers
from nemocascade_jax.data.tokenizer import load_tokenizer
from nemocascade_jax.errors import InputError
from nemocascade_jax.formats.checkpoint import model_files
from nemocascade_jax.rows.sources import parse_row, read_jsonl
from nemocascade_jax.sampler.sampling import token_logprobs

WHERE = "configs/mopd.py:micro"
DOMAINS = ("instruction_following", "math", "multiple_choice", "structured_output")


@pytest.fixture
def teacher(tmp_path):
    """A native checkpoint folder as far as a check without weights goes, with the tiny tokenizer."""
    files = dict(load_tokenizer("tiny").files)
    return write_teacher(tmp_path / "teacher", files)


def write_teacher(folder, files):
    run = config_file.load_config(WHERE, []).run
    (folder / "model").mkdir(parents=True)
    for name, content in model_files(run.model, files).items():
        (folder / "model" / name).write_bytes(content)
    return folder


def load(teacher, *overrides):
    changes = {"init": "scratch"}
    changes |= {f"stages.mopd.teachers.{domain}": str(teacher) for domain in DOMAINS}
    changes |= {f"stages.mopd.data.{domain}.count": "4" for domain in DOMAINS}
    changes |= {f"evaluation.domains.{domain}.count": "300" for domain in DOMAINS}
    run = config_file.load_config(WHERE, [*changes.items(), *overrides]).run
    return cascade_inputs.load_inputs(run, lambda line: None)


@pytest.fixture(autouse=True)
def _at_root(root, monkeypatch):
    monkeypatch.chdir(root)


def test_a_teacher_with_the_students_vocabulary_is_taken(teacher):
    assert sum(len(rows) for rows, _ in load(teacher).stages["mopd"]) == 16


def test_two_swapped_ids_are_refused_with_both_names(teacher):
    path = teacher / "model" / "tokenizer.model"
    first, second = swap_pieces(path)
    with pytest.raises(InputError) as caught:
        load(teacher)
    said = str(caught.value)
    assert "stages.mopd.teachers.instruction_following" in said
    assert f"is {first!r} in the teacher's tokenizer and {second!r} in the student's" in said
    assert "\n" not in said


def swap_pieces(path):
    """Swaps two ordinary words of a sentencepiece file; returns the second and the first word."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    a, b = proto.pieces[-9], proto.pieces[-5]
    a.piece, b.piece = b.piece, a.piece
    path.write_bytes(proto.SerializeToString())
    return a.piece.replace("\u2581", " "), b.piece.replace("\u2581", " ")


def test_a_teacher_with_fewer_ids_is_refused(teacher):
    path = teacher / "model" / "tokenizer.model"
    proto = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    del proto.pieces[-3:]
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(
        InputError, match=r"id 509 is no id in the teacher's tokenizer .*\(509 and 512"
    ):
        load(teacher)


def test_other_stop_ids_are_refused(teacher):
    (teacher / "model" / "generation_config.json").write_text('{"eos_token_id": [2, 18]}')
    with pytest.raises(InputError, match=r"stops at ids \[2, 11, 18\], the student at \[2, 11\]"):
        load(teacher)


def test_another_template_is_refused_on_a_real_prompt(teacher):
    text = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    (teacher / "model" / "chat_template.jinja").write_text(text)
    with pytest.raises(InputError, match="chat template renders .* otherwise from token 0 on"):
        load(teacher)


def test_a_teacher_without_a_tokenizer_is_refused(teacher):
    (teacher / "model" / "tokenizer.model").unlink()
    with pytest.raises(InputError, match="holds no tokenizer"):
        load(teacher)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"config.stages.mopd.teachers.\w+: .*no such folder"):
        load(tmp_path / "nowhere")


def test_rows_of_a_domain_without_a_teacher_are_refused(teacher):
    row = {"question": "2+2?", "expected_answer": "4"}
    row["responses_create_params"] = {"input": "2+2?"}
    path = teacher.parent / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    block = config_file.load_config(WHERE, []).run.stages["mopd"]
    with pytest.raises(InputError, match="no teacher for domain 'math' of row .*rows.jsonl:1; add"):
        cascade_inputs._by_domain(
            "mopd",
            without_teacher(block, "math"),
            [(load_rows(path), 1.0)],
        )


def without_teacher(block, domain):
    left = {name: text for name, text in block.teachers.items() if name != domain}
    return dataclasses.replace(block, teachers=left)


def load_rows(path):
    return [parse_row(obj, f"{path}:{line}") for line, obj in read_jsonl(path)]


def test_a_teacher_of_a_domain_without_rows_is_refused(teacher):
    block = config_file.load_config(WHERE, []).run.stages["mopd"]
    more = dataclasses.replace(block, teachers={**block.teachers, "code": str(teacher)})
    rows = [(list(rows), 1.0) for rows, _ in load(teacher).stages["mopd"]]
    with pytest.raises(InputError, match="teachers.code: no row of the stage's data is of this do"):
        cascade_inputs._by_domain("mopd", more, rows)


def test_padded_columns_of_a_teacher_take_no_probability(root):
    """Six ids, eight columns, all logits 0: a token has log-prob ln(1/6), not ln(1/8)."""
    found = token_logprobs(
        jnp.zeros((1, 1, 8)),
        jnp.zeros((1, 1), jnp.int32),
        temperature=1.0,
        top_k=None,
        top_p=1.0,
        vocab_limit=6,
    )
    np.testing.assert_allclose(found, [[-1.7918]], atol=5e-5)


def scored(stage, step, domain, score):
    return {
        "stage": stage,
        "step": step,
        "domain": domain,
        "mode": "sampled",
        "rows": "selection",
        "score": score,
        "n": 8,
        "standard_error": 0.1,
        "digest": f"{stage}{step}",
    }


def test_the_best_checkpoint_teaches_and_stays_chosen(tmp_path):
    ledger = open_ledger(tmp_path, ("sft", "if_rl", "mopd"))
    ledger.content["stages"]["sft"] = {"step": 4}
    ledger.content["scores"] = [
        scored("sft", 2, "math", 0.5),
        scored("sft", 4, "math", 0.7),
        scored("if_rl", 2, "math", 0.7),
        scored("if_rl", 2, "instruction_following", 0.9),
    ]
    ledger._choose_best()
    block = config_file.load_config("configs/cascade.py:micro", []).run.stages["mopd"]
    names = {"math": "best", "instruction_following": "sft", "multiple_choice": "/some/folder"}
    block = dataclasses.replace(block, teachers=names)
    chosen = choose_teachers("mopd", block, ledger)
    assert (chosen["math"]["stage"], chosen["math"]["step"]) == ("sft", 4)  # the earliest of equals
    assert (chosen["instruction_following"]["step"], chosen["math"]["score"]) == (4, 0.7)
    assert chosen["multiple_choice"]["path"] == "/some/folder"
    ledger.set_teachers("mopd", chosen)
    ledger.content["scores"].append(scored("mopd", 2, "math", 0.99))
    ledger._choose_best()
    assert ledger.content["best"]["math"]["stage"] == "mopd"
    assert choose_teachers("mopd", block, ledger) == chosen
