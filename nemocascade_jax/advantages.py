"""Advantages of groups of answers to one prompt, on the host, exact where rewards are equal."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32

EPS = 1e-6


def group_advantages(
    rewards: Float32[np.ndarray, "Q G"], keep: Bool[np.ndarray, "Q G"]
) -> Float32[np.ndarray, "Q G"]:
    """Standardises each prompt's rewards by the mean and population deviation of its kept samples.

    A = (r - mean) / (std + 1e-6), as printed in paper 2.2: no leave-one-out. A group whose kept rewards
    are all equal, or that has fewer than two kept members, gets zeros, by comparison and not through
    eps: in float32 sixteen rewards of 0.9 would give 0.107.
    """
    out = np.zeros(rewards.shape, np.float32)
    for group, (row, kept) in enumerate(zip(rewards.astype(np.float64), keep, strict=True)):
        values = row[kept]
        if len(values) < 2 or values.max() == values.min():
            continue
        out[group, kept] = (values - values.mean()) / (values.std() + EPS)
    return out


def leave_one_out_advantages(
    rewards: Float32[np.ndarray, "Q G"], keep: Bool[np.ndarray, "Q G"]
) -> Float32[np.ndarray, "Q G"]:
    """Subtracts the mean of the other kept samples and divides by their sample deviation.

    A sample whose others are all equal is left undivided, so a lone success gets 1.0 where
    `group_advantages` of sixteen gives 3.873 (paper 2.2, the trap); hence an option, not the default.
    """
    out = np.zeros(rewards.shape, np.float32)
    for group, (row, kept) in enumerate(zip(rewards.astype(np.float64), keep, strict=True)):
        values = row[kept]
        if len(values) < 2 or values.max() == values.min():
            continue
        advantages = []
        for index, value in enumerate(values):
            others = np.delete(values, index)
            flat = len(others) < 2 or others.max() == others.min()
            spread = 1.0 if flat else others.std(ddof=1) + EPS
            advantages.append((value - others.mean()) / spread)
        out[group, kept] = advantages
    return out


ADVANTAGES = {"group": group_advantages, "leave_one_out": leave_one_out_advantages}


def usable_groups(
    rewards: Float32[np.ndarray, "Q G"], keep: Bool[np.ndarray, "Q G"]
) -> tuple[Bool[np.ndarray, "Q"], Bool[np.ndarray, "Q"]]:
    """Returns which groups have two kept members at all, and which of those differ in reward."""
    enough = keep.sum(axis=1) >= 2
    high = np.where(keep, rewards, -np.inf).max(axis=1)
    low = np.where(keep, rewards, np.inf).min(axis=1)
    return enough, enough & (high > low)
