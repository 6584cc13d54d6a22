"""Check the reward of a log against its advantages, and find what the loss divided them by.

An advantage is a reward minus the mean of its group, divided by nothing, or by the standard deviation of the group or
of the batch (a step).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from replay_pools.base.errors import InputError
from replay_pools.logs.groups import Group
from replay_pools.pool import CAUTION, LabelNote

EXPLAINED = 0.02  # relative error of advantages that are said to follow
LEAST_GROUPS = 2  # with advantages
DIVISORS = {
    "none": "by nothing",
    "group": "by the standard deviation of the group",
    "batch": "by the standard deviation of the batch",
}
Array = NDArray[np.float64]
Batch = list[tuple[Array, Array]]  # the groups of one step: rewards (n, k) and advantages (n,) of each


def check_reward(
    groups: Sequence[Group],
    terms: Sequence[tuple[str, float]],
    *,
    is_guessed: bool,
    may_be_paid: Sequence[str] = (),
    source: str,
) -> tuple[list[float], str | None, list[str]]:
    """Return (weights of the reward columns, what the loss divided by or None, notes).

    Args:
        groups: of the rollouts, with `parts` and `advantage`.
        terms: reward columns with their weights.
        is_guessed: a format named the columns, so that one that never differs within a group is left out.
        may_be_paid: other columns, guessed to be labels, that trainings pay for as well.
        source: of the log.

    Raises:
        InputError: no divisor makes the logged advantages of the rewards.
    """
    weights, names = [weight for _, weight in terms], [name for name, _ in terms]
    batches = _batches(groups)
    if sum(map(len, batches)) < LEAST_GROUPS:
        return weights, None, []
    varies = [any(np.ptp(rewards[:, i]) > 0 for batch in batches for rewards, _ in batch) for i in range(len(names))]
    if not any(advantages.any() for batch in batches for _, advantages in batch):
        note = f"{CAUTION}all logged advantages are 0 although rewards differ: was this the reward of the training?"
        return weights, None, [LabelNote(note)] if any(varies) else []
    batches = [batch for batch in batches if any(advantages.any() for _, advantages in batch)]
    scale = next((scale for scale in DIVISORS if _error(batches, scale, np.array(weights)) < EXPLAINED), None)
    if scale is None:
        named = [*names, *may_be_paid]
        several = len(named) > 1
        terms_of = named if may_be_paid else [f"{name}*WEIGHT" for name in names]
        which = f"--map reward={'+'.join(terms_of)}" if several else "--map reward=COLUMN"
        fix = f"{which}{', without those not paid,' * several} or --map advantage=none to leave them out"
        said = "+".join(name if weight == 1 else f"{name}*{weight:g}" for name, weight in terms)
        expected, found = f"advantages that follow from {said}", "advantages of other rewards"
        raise InputError(f"{source} advantage", expected=expected, found=found, fix=fix)
    notes: list[str] = [LabelNote(f"logged advantages are rewards minus the mean, divided {DIVISORS[scale]}")]
    constant = [name for name, is_varying in zip(names, varies, strict=True) if not is_varying]
    if not is_guessed or not constant or len(names) == 1:
        return weights, scale, notes
    why = "which advantages cannot show: it is left out of the reward"
    notes.append(LabelNote(f"{CAUTION}{', '.join(constant)} never differs within a group, {why} (--map reward=...)"))
    return [weight * is_paid for weight, is_paid in zip(weights, varies, strict=True)], scale, notes


def _batches(groups: Sequence[Group]) -> list[Batch]:
    """Return the groups of each step with known rewards and advantages."""
    steps: dict[int | None, Batch] = {}
    for group in groups:
        if any(row.advantage is None or not row.parts or None in row.parts for row in group):
            continue
        rewards = np.array([row.parts for row in group], dtype=float)
        steps.setdefault(group[0].step, []).append((rewards, np.array([row.advantage for row in group], dtype=float)))
    return [*steps.values()]


def _error(batches: Sequence[Batch], scale: str, weights: Array) -> float:
    """Return the relative error of the advantages that weights and a divisor give, up to a factor near 1 (ddof)."""
    expected: list[Array] = []
    for batch in batches:
        of_batch = np.concatenate([rewards for rewards, _ in batch]) @ weights
        for rewards, _ in batch:
            paid = rewards @ weights
            divisor = {"none": 1.0, "group": paid.std(ddof=1), "batch": of_batch.std(ddof=1)}[scale]
            expected.append((paid - paid.mean()) / divisor if divisor > 1e-12 else np.zeros(len(paid)))
    predicted = np.concatenate(expected)
    actual = np.concatenate([advantages for batch in batches for _, advantages in batch])
    if scale != "none" and predicted.any():
        factor = float(predicted @ actual / (predicted @ predicted))
        predicted = predicted * factor if abs(factor - 1) < 0.25 else predicted
    return float(np.linalg.norm(actual - predicted) / np.linalg.norm(actual))
