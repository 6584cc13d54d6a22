"""Check the reward of a log against its advantages, and find what the loss divided them by.

An advantage is a reward minus the mean of its group, divided by nothing, or by the standard deviation of the group or
of the batch (a step). Of several reward columns, a subset is the reward if its sum alone explains the advantages.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from replay_pools.base.errors import InputError
from replay_pools.logs.groups import Group
from replay_pools.pool import CAUTION

EXPLAINED = 0.02  # relative error of advantages that are said to follow
LEAST_GROUPS = 2  # with advantages
MAX_SUBSETS = 10  # reward columns; every subset of them is tried
DIVISORS = {
    "none": "by nothing",
    "group": "by the standard deviation of the group",
    "batch": "by the standard deviation of the batch",
}
Array = NDArray[np.float64]
Batch = list[tuple[Array, Array]]  # the groups of one step: rewards (n, k) and advantages (n,) of each


def check_reward(
    groups: Sequence[Group], terms: Sequence[tuple[str, float]], *, is_guessed: bool, source: str
) -> tuple[list[float], str | None, list[str]]:
    """Return (weights of the reward columns, what the loss divided by or None, notes).

    Args:
        groups: of the rollouts, with `parts` and `advantage`.
        terms: reward columns with their weights.
        is_guessed: a format named the columns, so that a subset of them may be the reward.
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
        is_refuted = any(varies)
        note = f"{CAUTION}all logged advantages are 0 although rewards differ: was this the reward of the training?"
        return weights, None, [note] if is_refuted else []
    batches = [batch for batch in batches if any(advantages.any() for _, advantages in batch)]
    fits = [(subset, scale) for subset in _subsets(varies, is_guessed) if (scale := _scale(batches, weights, subset))]
    is_whole = bool(fits) and len(fits[0][0]) >= sum(varies)  # the sum that a trainer pays by default
    if not fits or (len(fits) > 1 and not is_whole):
        listed = "+".join(f"{name}*WEIGHT" for name in names)
        found = "several subsets of the columns that explain them" if fits else "advantages of other rewards"
        fix = f"--map reward={listed if len(names) > 1 else 'COLUMN'}, or --map advantage=none to leave them out"
        expected = f"advantages that follow from {_sum(names, weights, range(len(names)))}"
        raise InputError(f"{source} advantage", expected=expected, found=found, fix=fix)
    subset, scale = fits[0]
    notes = [f"logged advantages are rewards minus the mean, divided {DIVISORS[scale]}"]
    if not is_guessed:
        return weights, scale, notes
    constant = [name for name, is_varying in zip(names, varies, strict=True) if not is_varying]
    others = [name for i, name in enumerate(names) if varies[i] and i not in subset]
    if others:
        said = f"reward is {_sum(names, weights, subset)}: the logged advantages do not follow with {', '.join(others)}"
        notes.append(f"{said} (--map reward=...)")
    if constant and len(names) > 1:
        why = "which advantages cannot show" + (": it is left out of the reward" if subset else "")
        notes.append(f"{CAUTION}{', '.join(constant)} never differs within a group, {why} (--map reward=...)")
    return [weight if i in subset else 0.0 for i, weight in enumerate(weights)], scale, notes


def _sum(names: Sequence[str], weights: Sequence[float], places: Sequence[int] | range) -> str:
    return "+".join(names[i] if weights[i] == 1 else f"{names[i]}*{weights[i]:g}" for i in places)


def _subsets(varies: Sequence[bool], is_guessed: bool) -> list[tuple[int, ...]]:
    """Return the columns that may be paid together: all that vary; where they were guessed, each subset of those."""
    places = [i for i, is_varying in enumerate(varies) if is_varying]
    if not is_guessed or len(places) > MAX_SUBSETS:
        return [tuple(range(len(varies)))]
    return [subset for size in range(len(places), 0, -1) for subset in combinations(places, size)]


def _batches(groups: Sequence[Group]) -> list[Batch]:
    """Return the groups of each step with known rewards and advantages."""
    steps: dict[int | None, Batch] = {}
    for group in groups:
        if any(row.advantage is None or not row.parts or None in row.parts for row in group):
            continue
        rewards = np.array([row.parts for row in group], dtype=float)
        steps.setdefault(group[0].step, []).append((rewards, np.array([row.advantage for row in group], dtype=float)))
    return [*steps.values()]


def _scale(batches: Sequence[Batch], weights: Sequence[float], subset: Sequence[int]) -> str | None:
    """Return what divides the advantages of a sum of rewards; None where nothing does."""
    kept = np.array([weight if i in subset else 0.0 for i, weight in enumerate(weights)])
    return next((scale for scale in DIVISORS if _error(batches, scale, kept) < EXPLAINED), None)


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
