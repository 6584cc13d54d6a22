"""What loss wrote a log, read back from its advantages: the weights of its rewards, and what it divided by.

With C the rewards of a group minus their means, an advantage is C w, divided by nothing, or by the standard deviation
of the rewards C w of its group or of its batch (a step). Whatever divides, the advantages of a group are parallel to
C w: w is the direction that leaves the least across them, up to its size. Undivided, it is the least-squares solution.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_pools.logs.columns import parse_column
from replay_pools.logs.rows import RowFacts
from replay_pools.logs.sources import Log
from replay_pools.pool import CAUTION

EXPLAINED = 0.02  # relative error of advantages that are said to follow
NOTHING = 1e-3  # a weight below this share of the largest is none
LEAST_GROUPS = 2  # with advantages
DIVISORS = {"none": "by nothing", "group": "by their group's standard deviation", "batch": "by that of the batch"}
Array = NDArray[np.float64]
Batch = list[tuple[Array, Array]]  # the groups of one step: rewards (n, k) and advantages (n,) of each


def read_back(log: Log, *, is_guessed: bool) -> None:
    """Set `log.scale_rewards`, and the weights of a reward that is a sum; say what was found, and what disagrees.

    Args:
        log: with its groups.
        is_guessed: whether the weights are nobody's word, so that those that are read back replace them.
    """
    columns = log.mapping.get("reward")
    if columns is None or "advantage" not in log.mapping:
        return
    terms = parse_column("reward", columns, log.rows)
    batches = _batches(log.groups)
    if sum(map(len, batches)) < LEAST_GROUPS:
        return
    given = np.array([weight for _, weight in terms])
    fitted = _fit(batches, given)
    if fitted is None:
        log.notes.append(
            f"{CAUTION}logged advantages do not follow from these rewards, with any weights, divided by nothing or by "
            "a standard deviation: the trainer paid or scaled otherwise (--map reward=COLUMN*WEIGHT+...)"
        )
        return
    log.scale_rewards, weights = fitted
    weights = np.where(np.abs(weights) < NOTHING * np.abs(weights).max(), 0.0, weights)
    text = "+".join(f"{name}*{weight:.3g}" for (name, _), weight in zip(terms, weights, strict=True) if weight)
    if not _parallel(weights, given):
        if not is_guessed:
            log.notes.append(f"{CAUTION}logged advantages follow from {text}, which is not the reward that --map names")
        else:
            log.notes = [note for note in log.notes if "is taken to be the sum of" not in note]
            log.notes.append(f"reward is {text}, weights read back from the logged advantages (--map reward=...)")
            _weigh(log, text, [float(f"{weight:.3g}") for weight in weights])
    log.notes.append(f"logged advantages are rewards minus the mean, divided {DIVISORS[log.scale_rewards]}")


def _weigh(log: Log, text: str, weights: Sequence[float]) -> None:
    """Give every row the reward of these weights."""
    log.mapping["reward"] = text
    for group in log.groups:
        for i, row in enumerate(group):
            known = [(part, weight) for part, weight in zip(row.parts, weights, strict=True) if part is not None]
            if known:
                group[i] = replace(row, reward=sum(part * weight for part, weight in known))


def _batches(groups: Sequence[Sequence[RowFacts]]) -> list[Batch]:
    """Groups of which all parts of rewards and all advantages are known, by step; rewards of others are left out."""
    steps: dict[Any, Batch] = {}
    for group in groups:
        if any(row.advantage is None or not row.parts or None in row.parts for row in group):
            continue
        rewards = np.array([row.parts for row in group], dtype=float)
        steps.setdefault(group[0].step, []).append((rewards, np.array([row.advantage for row in group], dtype=float)))
    return [batch for batch in steps.values() if any(advantages.any() for _, advantages in batch)]


def _fit(batches: Sequence[Batch], given: Array) -> tuple[str, Array] | None:
    """(what divides, weights): the first that explains the advantages; None where nothing does."""
    direction = _direction(batches)
    if _error(batches, "none", given, free=False) < EXPLAINED:
        return "none", given
    for scale in ("group", "batch"):
        if direction is not None and _error(batches, scale, direction, free=True) < EXPLAINED:
            return scale, given if _parallel(direction, given) else direction
    weights = _least_squares(batches)
    return ("none", weights) if _error(batches, "none", weights, free=False) < EXPLAINED else None


def _centred(batches: Sequence[Batch]) -> Batch:
    return [(rewards - rewards.mean(0), advantages) for batch in batches for rewards, advantages in batch]


def _direction(batches: Sequence[Batch]) -> Array | None:
    """(k,) weights up to their size, the largest 1; None where several fit. A part that never varies has weight 1."""
    k = batches[0][0][0].shape[1]
    across, total = np.zeros((k, k)), np.zeros((k, k))
    along = np.zeros(k)
    for centred, advantages in _centred(batches):
        if norm := float(advantages @ advantages):
            projected = centred.T @ advantages
            across += centred.T @ centred - np.outer(projected, projected) / norm
            total += centred.T @ centred
            along += projected
    varies = total.diagonal() > 0
    if not varies.any():
        return None
    values, vectors = np.linalg.eigh(across[np.ix_(varies, varies)] / total.diagonal().max())
    if len(values) > 1 and values[1] < EXPLAINED**2:
        return None
    chosen = vectors[:, 0] * (np.sign(vectors[:, 0] @ along[varies]) or 1.0)
    weights = np.ones(k)
    weights[varies] = chosen / chosen[np.abs(chosen).argmax()]
    return weights


def _least_squares(batches: Sequence[Batch]) -> Array:
    centred, advantages = map(np.concatenate, zip(*_centred(batches), strict=True))
    weights = np.linalg.lstsq(centred, advantages, rcond=None)[0]
    return np.where(np.abs(centred).sum(0) > 0, weights, 1.0)


def _error(batches: Sequence[Batch], scale: str, weights: Array, *, free: bool) -> float:
    """Relative error of the advantages that weights and a divisor give; `free`: up to one factor near 1 (ddof)."""
    expected: list[Array] = []
    for batch in batches:
        of_batch = np.concatenate([rewards for rewards, _ in batch]) @ weights
        for rewards, _ in batch:
            paid = rewards @ weights
            divisor = {"none": 1.0, "group": paid.std(ddof=1), "batch": of_batch.std(ddof=1)}[scale]
            expected.append((paid - paid.mean()) / divisor if divisor else np.zeros(len(paid)))
    predicted = np.concatenate(expected)
    actual = np.concatenate([advantages for batch in batches for _, advantages in batch])
    if free and predicted.any():
        factor = float(predicted @ actual / (predicted @ predicted))
        predicted = predicted * factor if abs(factor - 1) < 0.25 else predicted
    return float(np.linalg.norm(actual - predicted) / np.linalg.norm(actual))


def _parallel(first: Array, second: Array) -> bool:
    """Whether two sets of weights are the same up to their size."""
    cosine = float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
    return cosine > 1 - EXPLAINED**2 / 2
