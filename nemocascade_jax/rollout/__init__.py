"""From prompts to graded groups to the batch of one update, over one turn or several."""

from nemocascade_jax.rollout.batches import (
    Packed,
    assign_rows,
    distillation_batch,
    pack_groups,
    policy_batch,
)
from nemocascade_jax.rollout.domains import Rolled, make_rollout
from nemocascade_jax.rollout.groups import (
    Grade,
    Graded,
    Group,
    Trajectory,
    choose_groups,
    completion_text,
    grade_groups,
    produced,
    records,
    refuse_failed,
    render_row,
    to_arrays,
)
from nemocascade_jax.rollout.turns import Limits, Play, chat_play, make_play, turn_sampling

__all__ = [
    "Grade",
    "Graded",
    "Group",
    "Limits",
    "Packed",
    "Play",
    "Rolled",
    "Trajectory",
    "assign_rows",
    "chat_play",
    "choose_groups",
    "completion_text",
    "distillation_batch",
    "grade_groups",
    "make_play",
    "make_rollout",
    "pack_groups",
    "policy_batch",
    "produced",
    "records",
    "refuse_failed",
    "render_row",
    "to_arrays",
    "turn_sampling",
]
