"""Check the reward of a log against its advantages, and find what the loss divided them by.

An advantage is a reward minus the mean of its group, divided by nothing, or by the standard deviation of the group or
of the batch (a step).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from replay_pools.base.errors import InputError
from replay_pools.logs.columns import PAID, Column
from replay_pools.logs.grouping import Group
from replay_pools.pool import CAUTION, LabelNote

EXPLAINED = 0.02  # relative error of advantages that are said to follow
DIVISORS = ("none", "group", "batch")
Array = NDArray[np.float64]
Batch = list[tuple[Array, Array]]  # the groups of one step: rewards (n, k) and advantages (n,) of each


def rewarded(
    groups: list[Group], mapping: dict[str, str], columns: Mapping[str, Column], given: Mapping[str, str], source: str
) -> tuple[dict[str, str], list[Group], str | None, list[str]]:
    """Return (mapping, groups, what the loss divided by or None, notes) with the rewards that the advantages show.

    Rollouts without a reward are left out. So is a reward column that only a format named, if it never differs within
    a group. `given` is the part of the mapping that the user gave.

    Raises:
        InputError: no divisor makes the logged advantages of the rewards.
    """
    num_rows, mapping = sum(map(len, groups)), dict(mapping)
    groups = [kept for group in groups if (kept := [row for row in group if row.reward is not None])]
    num_out, notes, scale = num_rows - sum(map(len, groups)), list[str](), None
    if num_out:
        said = f"{num_out} of {num_rows} rows have no reward and were left out, and their groups lack them"
        notes.append(CAUTION + said)
    names, weights = [name for name, _ in columns["reward"].terms], np.array([w for _, w in columns["reward"].terms])
    batches = _batches(groups) if "advantage" in mapping else []
    varies = [any(np.ptp(rewards[:, i]) > 0 for batch in batches for rewards, _ in batch) for i in range(len(names))]
    constant = [name for name, is_varying in zip(names, varies, strict=True) if not is_varying]
    is_sum = "reward" not in given and len(names) > 1
    if known := [batch for batch in batches if any(advantages.any() for _, advantages in batch)]:
        divisors = [scale for scale in DIVISORS if _error(known, scale, weights) < EXPLAINED]
        if not divisors:
            # Columns that were guessed to be labels may be paid as well.
            labels = [one.name for target, one in columns.items() if target in PAID and target not in given]
            paid = [*names, *labels] if labels and "reward" not in given else [f"{name}*WEIGHT" for name in names]
            which = f"{'+'.join(paid)}, without those not paid," if len(paid) > 1 else "COLUMN"
            fix = f"--map reward={which} or --map advantage=none to leave them out"
            expected, found = f"advantages that follow from {mapping['reward']}", "advantages of other rewards"
            raise InputError(f"{source} advantage", expected=expected, found=found, fix=fix)
        if sum(map(len, known)) > 1:  # one group alone does not show what divided it
            scale = divisors[0]
            by = "nothing" if scale == "none" else f"the standard deviation of the {scale}"
            notes.append(LabelNote(f"logged advantages are rewards minus the mean, divided by {by}"))
        if is_sum and constant and scale:
            why = "which advantages cannot show: it is left out of the reward (--map reward=...)"
            notes.append(LabelNote(f"{CAUTION}{', '.join(constant)} never differs within a group, {why}"))
            mapping["reward"] = "+".join(name for name in names if name not in constant)
            for row in (row for group in groups for row in group):
                parts = zip(row.parts, weights * varies, strict=True)
                row.reward = float(sum(part * weight for part, weight in parts if part is not None and weight))
    elif any(varies):
        note = f"{CAUTION}all logged advantages are 0 although rewards differ: was this the reward of the training?"
        notes.append(LabelNote(note))
    if is_sum and scale is None:
        weighted = "+".join(f"{name}*WEIGHT" for name in names)
        said = f"reward is taken to be the sum of {', '.join(names)}, all columns of numbers that are nothing else"
        notes.append(LabelNote(f"{CAUTION}{said} (--map reward=COLUMN, or {weighted})"))
    return mapping, groups, scale, notes


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
        is_near = factor > 0 if sum(map(len, batches)) == 1 else abs(factor - 1) < 0.25
        predicted = predicted * factor if is_near else predicted
    return float(np.linalg.norm(actual - predicted) / np.linalg.norm(actual))
