import dataclasses
import json
import math

import pytest

from nemocascade_jax import config, config_file
from nemocascade_jax.config import ConfigError, OptimConfig, RunConfig

MICRO = "configs/cascade.py:micro"
ALL = [
    f"configs/{stem}.py:{size}"
    for stem in ("sft", "grpo", "if_rl", "multi_rl", "mopd", "cascade")
    for size in ("micro", "tiny", "nano_30b_a3b")
] + ["configs/study_mopd.py:tiny", "configs/smollm2.py:135m"]

OPTIM = {
    "lr": 1e-3,
    "schedule": "constant",
    "warmup_steps": 10,
    "warmup_from": 0.0,
    "min_lr": 0.0,
    "b1": 0.9,
    "b2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "grad_clip": 1.0,
    "frozen": (),
}


@pytest.fixture(autouse=True)
def _at_root(root, monkeypatch):
    monkeypatch.chdir(root)


def load(*overrides, where=MICRO):
    return config_file.load_config(where, [tuple(text.split("=", 1)) for text in overrides])


@pytest.mark.parametrize("where", ALL)
def test_every_config_builds_and_survives_json(where):
    run = load(where=where).run
    again = config.build(RunConfig, json.loads(json.dumps(config.to_plain(run), allow_nan=False)))
    assert again == run
    assert hash(again) == hash(run)


def test_every_config_file_is_listed_here(root):
    parts = {"common", "models", "__init__"}
    stems = {path.stem for path in (root / "configs").glob("*.py")} - parts
    assert stems == {where.split("/")[1].split(".")[0] for where in ALL}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lr": None}, "config.lr: expected float above 0, got None (NoneType)"),
        ({"lr": True}, "config.lr: expected float above 0, got True (bool)"),
        ({"lr": 0.0}, "config.lr: expected float above 0, got 0.0 (float)"),
        ({"lr": math.nan}, "config.lr: expected float, got nan (float); the value must be finite"),
        ({"lr": "1e-3"}, "config.lr: expected float above 0, got '1e-3' (str)"),
        ({"warmup_steps": 3.0}, "config.warmup_steps: expected int at least 0, got 3.0 (float)"),
        ({"warmup_steps": True}, "config.warmup_steps: expected int at least 0, got True (bool)"),
        ({"warmup_steps": -1}, "config.warmup_steps: expected int at least 0, got -1 (int)"),
        ({"b1": 1.5}, "config.b1: expected float at least 0 and at most 1, got 1.5 (float)"),
        ({"schedule": "cosin"}, "did you mean 'cosine'?"),
        ({"learning_rate": 1.0}, "config.learning_rate: unknown key; did you mean 'lr'?"),
        ({"grad-clip": 1.0}, "config.grad-clip: unknown key; did you mean 'grad_clip'?"),
        ({"Eps": 1e-8}, "config.Eps: unknown key; did you mean 'eps'?"),
        ({"frozen": "router"}, "config.frozen: expected tuple of str, got 'router' (str)"),
        ({"frozen": ("router", 3)}, "config.frozen[1]: expected str, got 3 (int)"),
    ],
)
def test_records_refuse_what_does_not_fit(change, said):
    with pytest.raises(ConfigError) as caught:
        config.build(OptimConfig, OPTIM | change)
    assert said in str(caught.value)


def test_records_refuse_when_built_directly():
    with pytest.raises(ConfigError, match="lr"):
        OptimConfig(**(OPTIM | {"lr": -1.0}))


def test_missing_key_is_named_with_its_type():
    block = {key: value for key, value in OPTIM.items() if key != "eps"}
    with pytest.raises(ConfigError, match=r"config\.eps: missing key, expected float above 0"):
        config.build(OptimConfig, block)


def test_an_int_stands_for_a_float():
    built = config.build(OptimConfig, OPTIM | {"weight_decay": 1})
    assert built.weight_decay == 1.0
    assert type(built.weight_decay) is float


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stages.sft.optim.lerning_rate=1", "config.stages.sft.optim.lerning_rate: unknown key"),
        ("stages.sft.optim.lerning_rate=1", "did you mean 'lr'?"),
        ("lr=1e-3", "config.lr: unknown key; did you mean 'config.stages.sft.optim.lr'?"),
        ("stages.sft.steps=1e3", "config.stages.sft.steps: expected int at least 1, got '1e3'"),
        ("stages.sft.steps=None", "config.stages.sft.steps: expected int at least 1, got 'None'"),
        ("stages.sft.steps=0", "config.stages.sft.steps: expected int at least 1, got 0 (int)"),
        ("stages.sft=3", "set its keys one by one"),
        ("stages.sftt.steps=3", "config.stages.sftt: unknown key; did you mean 'sft'?"),
        ("order=sft,if_rll", "config.order[1]: no stage 'if_rll'; did you mean 'if_rl'?"),
        ("order=sft,sft", "config.order[1]: stage 'sft' is named twice"),
        (
            "stages.sft.parent=if_rl",
            "stages.sft.parent: the parents go in a circle: sft <- if_rl <- sft",
        ),
        ("stages.if_rl.parent=nobody", "stages.if_rl.parent: 'nobody' is not in order"),
        (
            "stages.sft.parent=sft",
            "the parents go in a circle: sft <- sft; one must start elsewhere",
        ),
        (
            "stages.sft.parent=multi_rl",
            "config.stages.sft.parent: the parents go in a circle: sft <- multi_rl <- if_rl <- sft",
        ),
        (
            "stages.mopd.teachers.math=sfd",
            "no stage 'sfd' runs before this one; did you mean 'sft'?",
        ),
        ("stages.mopd.teachers.math=mopd", "no stage 'mopd' runs before this one"),
        ("stages.mopd.teachers.math=sft@77", "stage 'sft' keeps no step 77; it saves every"),
        ("stages.mopd.teachers.math=sft@last", "after @ stands the step, a whole number"),
        ("stages.mopd.sampling.temperature=0.7", "distillation compares the plain distributions"),
        ("stages.mopd.sampling.top_p=0.9", "stages.mopd.sampling.top_p: 0.9"),
        ("stages.mopd.ratio_high=0.9", "the band 0.5 to 0.9 leaves out the ratio 1"),
        ("order=init,sft", "'init' names the starting weights; rename it"),
        ("stages.mopd.teacher_rows=5", "5 rows cannot be laid over the mesh's 2 batch shards"),
        ("evaluation.confirmation=512", "512 rows leave none of the 512 of domains."),
        ("stages.if_rl.group_size=1", "config.stages.if_rl.group_size: expected int at least 2"),
        ("stages.if_rl.microbatches=7", "config.stages.if_rl.microbatches: 7 does not divide"),
        ("stages.if_rl.sampling.temperature=0", "0.0 is greedy; RL samples, set it above 0"),
        ("stages.if_rl.sampling.max_prompt_tokens=9999", "more than model.max_positions 2048"),
        ("stages.if_rl.clip_low=0.2", "config.stages.if_rl.clip_low: unknown key"),
        ("model.pattern=MEX", "config.model.pattern: 'MEX' must be letters of 'M*E-'"),
        ("model.moe=None", "config.model.moe: None, but pattern 'ME*E' has 'E' layers"),
        ("mesh.rules.batch=data,fsd", "'fsd' is no mesh axis; did you mean 'fsdp'?"),
        ("seed=-1", "config.seed: expected int at least 0, got -1 (int)"),
        ("model.precision.router=bfloat16", "config.model.precision.router: expected one of"),
        (
            "model.precision.params=bfloat16",
            "config.model.precision.params: 'bfloat16', but stage 'sft' trains",
        ),
        (
            "model.precision.compute=bfloat16",
            "config.stages.if_rl.max_sampler_gap: 0.0001 is a limit for float32",
        ),
        ("stages.if_rl.bias_update_rate=0.1", "stages.if_rl.bias_update_rate: unknown key"),
        ("stages.mopd.balance_coef=0.1", "config.stages.mopd.balance_coef: unknown key"),
        ("stages.sft.balance_coef=-1", "config.stages.sft.balance_coef: expected float at least 0"),
    ],
)
def test_overrides_refuse_with_path_value_and_remedy(override, said):
    with pytest.raises(ConfigError) as caught:
        load(override)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "key", "lacks"),
    [
        ("pattern=M*", "balance_coef", "MoE layers"),
        ("pattern=M*", "bias_update_rate", "selection bias"),
        ("moe.router=softmax", "bias_update_rate", "selection bias"),
    ],
)
def test_balancing_what_is_not_there_is_refused(model, key, lacks):
    with pytest.raises(ConfigError, match=f"config.stages.sft.{key}: 0.1, but the .* no {lacks}"):
        load(f"model.{model}", f"stages.sft.{key}=0.1")
    load(f"model.{model}", f"stages.sft.{key}=0.0")


def test_narrow_compute_takes_a_wide_sampler_gap_or_none():
    gaps = {"if_rl": "None", "multi_rl": "0.2", "mopd": "None"}
    overrides = [f"stages.{stage}.max_sampler_gap={gap}" for stage, gap in gaps.items()]
    run = load("model.precision.compute=bfloat16", *overrides).run
    assert run.model.precision.compute == "bfloat16"
    assert run.stages["multi_rl"].max_sampler_gap == 0.2


def test_experts_are_balanced_in_the_published_sft_alone():
    for size, expected in {"micro": (0, 0), "tiny": (0, 0), "nano_30b_a3b": (1e-4, 1e-3)}.items():
        for where in ("sft", "cascade"):
            stages = load(where=f"configs/{where}.py:{size}").run.stages
            assert (stages["sft"].balance_coef, stages["sft"].bias_update_rate) == expected
            assert not any(
                hasattr(stages[name], "balance_coef") for name in stages if name != "sft"
            )


def test_optional_numbers_are_set_and_unset():
    assert load("stages.if_rl.sampling.top_k=5").run.stages["if_rl"].sampling.top_k == 5
    assert load("stages.sft.optim.grad_clip=None").run.stages["sft"].optim.grad_clip is None
    both = load("stages.if_rl.sampling.top_k=5", "stages.if_rl.sampling.top_k=None")
    assert both.run.stages["if_rl"].sampling.top_k is None


def test_tuples_are_set_whole_or_by_entry():
    assert load("order=sft").run.order == ("sft",)
    assert load("order=('sft', 'if_rl')").run.order == ("sft", "if_rl")
    assert load("model.mamba.time_step_limit=(0.01, 0.2)").run.model.mamba.time_step_limit == (
        0.01,
        0.2,
    )
    swapped = load("order[0]=if_rl", "order[1]=sft").run
    assert swapped.order == ("if_rl", "sft", "multi_rl", "mopd")
    assert load("stages.if_rl.rollouts_keep=3").run.stages["if_rl"].rollouts_keep == 3


def test_every_leaf_key_changes_the_resolved_config():
    """Setting any number of the config to another legal value changes what is printed."""
    plain = config.to_plain(load().run)
    tried = 0
    for path, value in leaves(plain):
        if type(value) not in (int, float) or path.startswith(("model.", "mesh.")):
            continue
        try:
            changed = load(f"{path}={value * 2 if value else 1}")
        except ConfigError:
            continue  # out of range or at odds with another key: refused, which is an effect
        assert config.to_plain(changed.run) != plain, path
        tried += 1
    assert tried > 30


def leaves(plain, prefix=""):
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_command_line_wins_and_both_origins_are_shown():
    loaded = load("stages.sft.optim.lr=0.5")
    assert loaded.run.stages["sft"].optim.lr == 0.5
    origin = loaded.origins["stages.sft.optim.lr"]
    assert "--config.stages.sft.optim.lr=0.5" in origin
    assert "configs/sft.py:" in origin


def test_unknown_argument_lists_the_known_ones():
    with pytest.raises(
        ConfigError, match="unknown argument 'tinny'; known: tiny, micro, nano_30b_a3b"
    ):
        load(where="configs/cascade.py:tinny")


def test_missing_file_names_the_nearest():
    with pytest.raises(
        ConfigError, match=r"no file 'configs/cascad.py'; did you mean 'cascade.py'\?"
    ):
        load(where="configs/cascad.py")


@pytest.mark.parametrize("value", ["None", "True", "2.5", "'3'"])
def test_a_config_file_with_an_ill_typed_value_is_refused(tmp_path, value):
    path = tmp_path / "mine.py"
    path.write_text(
        "from nemocascade_jax.configs import cascade\n\n\ndef get_config(arg=None):\n"
        f"    config = cascade.get_config('micro')\n    config.stages.sft.steps = {value}\n"
        "    return config\n"
    )
    with pytest.raises(ConfigError, match=r"config\.stages\.sft\.steps|steps"):
        load(where=str(path))


def test_required_placeholder_is_a_missing_key(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from ml_collections import config_dict\nfrom nemocascade_jax.configs import cascade\n\n\n"
        "def get_config(arg=None):\n    config = cascade.get_config('micro')\n"
        "    config.stages.sft.data.math.path = config_dict.required_placeholder(str)\n"
        "    return config\n"
    )
    with pytest.raises(ConfigError, match=r"data\.math\.path: missing key, expected str or None"):
        load(where=str(path))


def test_free_keys_leave_the_fixed_part_alone():
    base = load().run
    freed = load("stages.if_rl.rollouts_keep=3", "stages.sft.checkpoint.keep=9").run
    other = load("stages.sft.optim.lr=0.5").run
    assert config.fixed_part(freed) == config.fixed_part(base)
    found = config.first_difference(config.fixed_part(base), config.fixed_part(other))
    assert found == f"config.stages.sft.optim.lr: {base.stages['sft'].optim.lr} there, 0.5 here"


def test_records_are_frozen():
    run = load().run
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.seed = 3
    with pytest.raises(TypeError):
        run.stages["sft"] = None


def test_few_samples_take_few_rows():
    """64 rows for a handful of samples would be paid for in time and memory, and buy nothing."""
    few = ("stages.if_rl.prompts_per_step=3", "stages.if_rl.group_size=2")
    assert load(*few).run.stages["if_rl"].rows_multiple == 8
    assert load().run.stages["if_rl"].rows_multiple == 64
    with pytest.raises(ConfigError, match="8 packed rows cannot be laid over the mesh's 16 batch"):
        load(*few, "mesh.data=16", "stages.mopd.teacher_rows=16")
