"""The effect of a label with the other labels held constant: regression within prompts, bootstrap over prompts."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.intervals import Interval, cluster_counts, cluster_numbers, percentiles

Array = NDArray[np.float64]
COLLINEAR = 1e-8  # share of a column that the other columns must leave unexplained for it to count as independent


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """Regression coefficient of a label; None, with a reason, where the other columns determine the label."""

    effect: float | None
    interval: Interval | None  # 95%
    num_prompts: int
    covariates: tuple[str, ...]  # those that vary within prompts and are no combination of one another
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
    """Fit value = effect * label + covariates + prompt by least squares, with fixed prompt effects.

    The fixed effects are taken out by centring every column within its prompt. They need no assumption about the
    distribution of prompt effects, as the random effects of a mixed model do. A step has one prompt, so they absorb
    the step effects too. The interval is a bootstrap over whole prompts.

    Args:
        values: (rows,) the response, one per sample.
        label: (rows,) the label whose effect is asked for.
        covariates: {name: (rows,) column}, tried in this order. Columns that are constant within prompts, or
            combinations of earlier ones, are left out.
        prompts: (rows,) the prompt of each sample.
        num_draws: bootstrap samples.
        seed: of the draws.

    Returns:
        An effect of None where no prompt holds both labels or the covariates determine the label within prompts. An
        interval of None where half of the bootstrap samples, or more, do not identify the effect.
    """
    member = cluster_numbers(prompts)
    num_prompts = len(set(prompts))
    y = _centred(np.asarray(values, dtype=np.float64), member)
    target = _centred(np.asarray(label, dtype=np.float64), member)
    kept = _independent(covariates, member)
    if num_prompts < 2 or not np.any(target):
        return _unidentified(num_prompts, tuple(kept), "no prompt holds both sides" if len(y) else "no samples")
    if not _is_new(target, kept):
        return _unidentified(num_prompts, tuple(kept), f"the sides are determined by {', '.join(kept)} within prompts")
    X = np.column_stack([target, *kept.values()])  # (rows, p)
    onto = np.eye(num_prompts)[member]  # (rows, prompts)
    # X^T X and X^T y by prompt: a bootstrap sample is a weighted sum of these, without a pass over the rows.
    squares = np.einsum("rc,ri,rj->cij", onto, X, X, optimize=True)  # (prompts, p, p)
    products = np.einsum("rc,ri,r->ci", onto, X, y, optimize=True)  # (prompts, p)
    draws = _first_coefficients(squares, products, cluster_counts(num_prompts, num_draws, seed))
    return Adjusted(
        effect=float(_first_coefficients(squares, products, np.ones((1, num_prompts)))[0]),
        interval=percentiles(draws, 0.95, num_prompts) if len(draws) > num_draws / 2 else None,
        num_prompts=num_prompts,
        covariates=tuple(kept),
        reason=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEffects:
    """The adjusted effect of a label on many responses at once, as one number a prompt."""

    values: Array  # (B, C) a response's mean over prompts is its effect, and their spread its cluster-robust variance
    overlap: float  # share of the label's variance within prompts that the covariates leave unexplained


def effects_by_prompt(
    responses: Array, label: Sequence[bool], covariates: Mapping[str, Sequence[float]], prompts: Sequence[Hashable]
) -> PromptEffects | None:
    """Fit the model of `adjusted_effect` to B responses, and split each effect over the prompts.

    With w the weights by which the effect is a sum over rows, and e the residuals of the fit, prompt c holds
    effect + C sum_{i in c} w_i e_i. The variance of such a mean is the sandwich estimator that is robust to correlation
    within prompts (Liang and Zeger 1986), times C / (C - 1).

    Args:
        responses: (B, rows).
        label: (rows,).
        covariates: {name: (rows,)}, as of `adjusted_effect`.
        prompts: (rows,) the prompt of each row; those that hold one side alone count too, as rows of the covariates.

    Returns:
        None where no prompt holds both labels, or the covariates determine the label within prompts.
    """
    member = cluster_numbers(prompts)
    num_prompts = len(set(prompts))
    target = _centred(np.asarray(label, dtype=np.float64), member)
    kept = _independent(covariates, member)
    if not np.any(target) or not _is_new(target, kept):
        return None
    y = responses - _prompt_sums(responses, member)[:, member] / np.bincount(member)[member]
    X = np.column_stack([target, *kept.values()])  # (rows, p)
    coefficients = np.linalg.lstsq(X, y.T, rcond=None)[0]  # (p, B)
    others = X[:, 1:]
    unexplained = target - others @ np.linalg.lstsq(others, target, rcond=None)[0] if kept else target
    size = float(unexplained @ unexplained)
    residuals = y - (X @ coefficients).T
    values = coefficients[0][:, None] + num_prompts * _prompt_sums(residuals * (unexplained / size), member)
    return PromptEffects(values=values, overlap=size / float(target @ target))


def _prompt_sums(values: Array, member: NDArray[np.intp]) -> Array:
    """(B, C) sums of values (B, rows) over the rows of each prompt, without a matrix of rows by prompts."""
    order = np.argsort(member, kind="stable")
    starts = np.searchsorted(member[order], np.arange(int(member.max()) + 1))
    return np.add.reduceat(values[:, order], starts, axis=1)


def _first_coefficients(squares: Array, products: Array, counts: Array) -> Array:
    """Least-squares coefficient of the first column, for each row of counts (draws, prompts) with independent columns.

    Draws whose columns are dependent are left out, so that the result may be shorter than counts.
    """
    left = np.einsum("bc,cij->bij", counts, squares)
    right = np.einsum("bc,ci->bi", counts, products)
    # Columns are scaled to norm 1, so that the smallest eigenvalue measures dependence and not the columns' units.
    scale = np.sqrt(np.maximum(np.diagonal(left, axis1=1, axis2=2), np.finfo(np.float64).tiny))
    left, right = left / (scale[:, :, None] * scale[:, None, :]), right / scale
    regular = np.linalg.eigvalsh(left)[:, 0] > COLLINEAR
    solved = np.linalg.solve(left[regular], right[regular][..., None])[..., 0]
    return solved[:, 0] / scale[regular, 0]


def _centred(x: Array, member: NDArray[np.intp]) -> Array:
    """x minus the mean of its prompt; member (rows,) is the number of each row's prompt."""
    count = np.maximum(np.bincount(member), 1)
    return x - (np.bincount(member, weights=x) / count)[member]


def _independent(covariates: Mapping[str, Sequence[float]], member: NDArray[np.intp]) -> dict[str, Array]:
    """{name: column of norm 1, centred within prompts} of those that are no combination of earlier ones."""
    kept: dict[str, Array] = {}
    for name, column in covariates.items():
        centred = _centred(np.asarray(column, dtype=np.float64), member)
        if _is_new(centred, kept):
            kept[name] = centred / np.linalg.norm(centred)
    return kept


def _is_new(column: Array, kept: Mapping[str, Array]) -> bool:
    """Whether a centred column is neither zero nor a combination of the kept ones."""
    size = np.linalg.norm(column)
    if size <= COLLINEAR:
        return False
    if not kept:
        return True
    basis = np.column_stack(list(kept.values()))
    residual = column - basis @ np.linalg.lstsq(basis, column, rcond=None)[0]
    return bool(np.linalg.norm(residual) > COLLINEAR * size)


def _unidentified(num_prompts: int, covariates: tuple[str, ...], reason: str) -> Adjusted:
    return Adjusted(effect=None, interval=None, num_prompts=num_prompts, covariates=covariates, reason=reason)
