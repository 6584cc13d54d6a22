"""The effect of a label with the other labels held constant: regression within prompts, bootstrap over prompts."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.intervals import Interval, cluster_counts, percentiles

Array = NDArray[np.float64]
COLLINEAR = 1e-8  # a column with less of its norm left is a combination of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """Coefficient of the label; None where the other columns determine it."""

    effect: float | None
    interval: Interval | None  # 95%
    num_prompts: int
    covariates: tuple[str, ...]  # those that vary within prompts and are no combination of others
    reason: str | None


def adjusted_effect(
    values: Sequence[float],
    label: Sequence[bool],
    covariates: Mapping[str, Sequence[float]],
    prompts: Sequence[Hashable],
    *,
    num_draws: int = 499,
    seed: int = 0,
) -> Adjusted:
    """value = effect * label + covariates + prompt: least squares with fixed prompt effects.

    Prompts (and with them the steps, one prompt each) are fixed effects, taken out by centring every column within its
    prompt: they need no law, where the random effects of a mixed model do. The interval draws whole prompts.
    """
    names = list(dict.fromkeys(prompts))
    place = {name: number for number, name in enumerate(names)}
    member = np.array([place[prompt] for prompt in prompts], dtype=np.intp)
    y, target = (_centred(np.asarray(x, dtype=np.float64), member) for x in (values, label))
    kept: dict[str, Array] = {}
    for name, column in covariates.items():
        centred = _centred(np.asarray(column, dtype=np.float64), member)
        if _is_new(centred, kept):
            kept[name] = centred
    if len(names) < 2 or not np.any(target):
        return _unidentified(len(names), tuple(kept), "no prompt holds both sides" if len(y) else "no samples")
    if not _is_new(target, kept):
        return _unidentified(len(names), tuple(kept), f"the sides are determined by {', '.join(kept)} within prompts")
    X = np.column_stack([target, *kept.values()])  # (rows, p)
    onto = np.eye(len(names))[member]  # (rows, prompts)
    squares = np.einsum("rc,ri,rj->cij", onto, X, X, optimize=True)  # (prompts, p, p)
    products = np.einsum("rc,ri,r->ci", onto, X, y, optimize=True)
    draws = _solve(squares, products, cluster_counts(len(names), num_draws, seed))
    return Adjusted(
        effect=float(_solve(squares, products, np.ones((1, len(names))))[0]),
        interval=percentiles(draws, 0.95, len(names)) if len(draws) > num_draws / 2 else None,
        num_prompts=len(names),
        covariates=tuple(kept),
        reason=None,
    )


def _solve(squares: Array, products: Array, counts: Array) -> Array:
    """Coefficient of the first column in every draw whose columns are independent."""
    left, right = np.einsum("bc,cij->bij", counts, squares), np.einsum("bc,ci->bi", counts, products)
    scale = np.sqrt(np.maximum(np.diagonal(left, axis1=1, axis2=2), np.finfo(np.float64).tiny))
    left, right = left / (scale[:, :, None] * scale[:, None, :]), right / scale
    regular = np.linalg.eigvalsh(left)[:, 0] > COLLINEAR
    solved = np.linalg.solve(left[regular], right[regular][..., None])[..., 0]
    return solved[:, 0] / scale[regular, 0]


def _centred(x: Array, member: NDArray[np.intp]) -> Array:
    """x minus the mean of its prompt."""
    count = np.maximum(np.bincount(member), 1)
    return x - (np.bincount(member, weights=x) / count)[member]


def _is_new(column: Array, kept: Mapping[str, Array]) -> bool:
    """Whether a centred column is not a combination of the others."""
    size = np.linalg.norm(column)
    if size <= COLLINEAR:
        return False
    if not kept:
        return True
    others = np.column_stack(list(kept.values()))
    left = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
    return bool(np.linalg.norm(left) > COLLINEAR * size)


def _unidentified(num_prompts: int, covariates: tuple[str, ...], reason: str) -> Adjusted:
    return Adjusted(effect=None, interval=None, num_prompts=num_prompts, covariates=covariates, reason=reason)
