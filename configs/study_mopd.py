"""Study: one student with a fallen domain, MOPD against GRPO on that domain (paper 3.4).

    python launch/run.py --config configs/study_mopd.py --workdir runs/study/0 --config.seed=0
    python tools/study_figure.py --runs runs/study/0 runs/study/1 runs/study/2 --out docs/study_mopd

SFT, then IF-RL until math has fallen; from there two branches on the same math prompts, 128 answers
an update each, scored on 512 held-out prompts every 4 updates. docs/study_mopd.md has the result.
"""

from ml_collections import ConfigDict

from nemocascade_jax.configs import common, grpo, if_rl, mopd, sft

CHECKPOINT = {"every_steps": 4, "keep": 1}
STEPS = 60


def get_config(arg=None):
    common.choose(arg, {"tiny": None})
    by_teacher = mopd.stage(parent="if_rl", steps=STEPS, prompts_per_step=32, group_size=4)
    by_teacher.teachers = ConfigDict({"math": "best"})
    by_reward = grpo.stage(parent="if_rl", steps=STEPS, prompts_per_step=16, group_size=8)
    for stage in (by_teacher, by_reward):
        stage.data = common.rows_of("math", count=4096)
        stage.checkpoint = ConfigDict(CHECKPOINT)
        stage.rollouts_keep = "none"
    stages = {
        "sft": sft.stage(),
        "if_rl": if_rl.stage(),
        "mopd_math": by_teacher,
        "grpo_math": by_reward,
    }
    config = common.run(arg, stages)
    config.evaluation = common.evaluation(512, "math", "instruction_following", confirmation=512)
    config.evaluation.greedy = False
    return config
