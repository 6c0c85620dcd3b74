"""What the scores say: has a domain fallen below its best, and has distillation won it back?

Every comparison is paired: the same rows, the same random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nemocascade_jax.evaluate import Evaluation, paired_difference

RECOVERED_WITHIN = 2.0  # paired standard errors of the teacher's score, measured on the second set


def differences(
    stage: str, parent: str, after: Sequence[Evaluation], before: Sequence[Evaluation]
) -> list[dict[str, Any]]:
    """Returns what a stage changed against its parent, for every domain, mode and row set of both."""
    old = {(one.domain, one.mode, one.rows): one for one in before}
    out = []
    for one in after:
        if (one.domain, one.mode, one.rows) in old:
            was = old[one.domain, one.mode, one.rows]
            mean, error = paired_difference(one.rewards, was.rewards)
            out.append(
                {
                    "stage": stage,
                    "parent": parent,
                    "domain": one.domain,
                    "mode": one.mode,
                    "rows": one.rows,
                    "difference": mean,
                    "standard_error": error,
                }
            )
    return out


def gate(
    stage: str,
    step: int,
    now: Evaluation,
    best: Mapping[str, Any],
    at_best: Evaluation,
    errors: float,
) -> dict[str, Any]:
    """Returns the verdict on one domain: "fallen" when below its best by more than `errors`."""
    mean, error = paired_difference(now.rewards, at_best.rewards)
    return {
        "stage": stage,
        "step": step,
        "domain": now.domain,
        "best": {"stage": best["stage"], "step": best["step"]},
        "difference": mean,
        "standard_error": error,
        "errors": errors,
        "verdict": "fallen" if _below(mean, error, errors) else "held",
    }


def recovery(
    stage: str,
    teacher: Mapping[str, Any],
    *,
    after: Evaluation,
    before: Evaluation,
    at_teacher: Evaluation,
    fallen: bool,
) -> dict[str, Any]:
    """Returns what a MOPD stage did to one domain, on rows that chose nothing.

    A domain that had fallen is "recovered" within two paired errors of its teacher, else "short";
    another one has "held" unless it "fell" by more than two.
    """
    difference, error = paired_difference(after.rewards, at_teacher.rewards)
    change, change_error = paired_difference(after.rewards, before.rewards)
    if fallen:
        verdict = "short" if _below(difference, error, RECOVERED_WITHIN) else "recovered"
    else:
        verdict = "fell" if _below(change, change_error, RECOVERED_WITHIN) else "held"
    return {
        "stage": stage,
        "domain": after.domain,
        "teacher": {"stage": teacher["stage"], "step": teacher["step"], "path": teacher["path"]},
        "teacher_score": at_teacher.mean,
        "before_score": before.mean,
        "score": after.mean,
        "difference": difference,
        "standard_error": error,
        "errors": RECOVERED_WITHIN,
        "change": change,
        "change_standard_error": change_error,
        "verdict": verdict,
    }


def _below(difference: float, error: float, errors: float) -> bool:
    return not math.isnan(error) and difference < -errors * error
