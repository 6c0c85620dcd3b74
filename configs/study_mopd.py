"""Study: one student with a fallen domain, MOPD against GRPO on that domain (paper 3.4).

    make cascade
    python launch/run.py --config configs/study_mopd.py --workdir runs/study/0
    python tools/study_figure.py --runs runs/study/0 --out docs/study_mopd

Student and teacher come from the tiny cascade: what multi-domain RL left, and what SFT knew of math.
Two branches train the student on the same math prompts, 128 answers an update, scored on 512
held-out prompts every 5 updates. Some 4 minutes on two cores; docs/study_mopd.md has three seeds.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common, grpo, mopd

STEPS = 60
STUDENT = "runs/tiny/03_multi_rl/checkpoints/30"
TEACHER = "runs/tiny/01_sft/checkpoints/900"


def get_config(arg=None):
    common.choose(arg, {"tiny": None})
    by_teacher = mopd.stage(steps=STEPS, prompts_per_step=64, group_size=2)
    by_teacher.optim.update({"lr": 1e-3, "warmup_from": 1e-4})  # those of the GRPO branch
    by_teacher.teachers = ConfigDict({"math": TEACHER})
    by_reward = grpo.stage(parent="init", steps=STEPS, prompts_per_step=16, group_size=8)
    for stage in (by_teacher, by_reward):
        stage.data = common.rows_of("math", count=4096)
        stage.checkpoint = ConfigDict({"every_steps": 5, "keep": 1})
        stage.rollouts_keep = "none"
    config = common.run(arg, {"mopd_math": by_teacher, "grpo_math": by_reward})
    config.init = STUDENT
    config.evaluation = common.evaluation(512, "math", confirmation=512)
    return config
