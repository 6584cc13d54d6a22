"""The effect of a label with the other labels held constant: regression with fixed prompt effects.

    value = effect * label + covariates + prompt

The fixed effects are taken out by centring every column within its prompt. They need no assumption about the
distribution of prompt effects, as the random effects of a mixed model do. A step has one prompt, so they absorb the
step effects too.

Shapes: B responses at once, rows of samples, C prompts.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.analysis.statistics.intervals import Array, cluster_numbers

COLLINEAR = 1e-8  # share of a column that the other columns must leave unexplained for it to count as independent


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEffects:
    """The adjusted effect of a label on many responses at once, as one number a prompt."""

    values: Array  # (B, C) a response's mean over prompts is its effect, and their spread its cluster-robust variance
    overlap: float  # share of the label's variance within prompts that the covariates leave unexplained


def effects_by_prompt(
    responses: Array, label: Sequence[bool], covariates: Mapping[str, Sequence[float]], prompts: Sequence[Hashable]
) -> PromptEffects | None:
    """Fit the model to B responses by least squares, and split each effect over the prompts.

    With w the weights by which the effect is a sum over rows, and e the residuals of the fit, prompt c holds
    effect + C sum_{i in c} w_i e_i. The variance of such a mean is the sandwich estimator that is robust to correlation
    within prompts (Liang and Zeger 1986), times C / (C - 1).

    Args:
        responses: (B, rows).
        label: (rows,) the label whose effect is asked for.
        covariates: {name: (rows,)}, tried in this order. Columns that are constant within prompts, or combinations of
            earlier ones, are left out.
        prompts: (rows,) the prompt of each row; those that hold one side alone count too, as rows of the covariates.

    Returns:
        None where no prompt holds both labels, or the covariates determine the label within prompts.
    """
    member = cluster_numbers(prompts)
    num_prompts = len(set(prompts))
    target = _centred(np.asarray(label, dtype=np.float64), member)
    kept: list[Array] = []  # of norm 1, centred, none a combination of the others
    for column in covariates.values():
        centred = _centred(np.asarray(column, dtype=np.float64), member)
        if _is_new(centred, kept):
            kept.append(centred / np.linalg.norm(centred))
    if not np.any(target) or not _is_new(target, kept):
        return None
    y = responses - _prompt_sums(responses, member)[:, member] / np.bincount(member)[member]
    X = np.column_stack([target, *kept])  # (rows, p)
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


def _centred(x: Array, member: NDArray[np.intp]) -> Array:
    """x minus the mean of its prompt; member (rows,) is the number of each row's prompt."""
    count = np.maximum(np.bincount(member), 1)
    return x - (np.bincount(member, weights=x) / count)[member]


def _is_new(column: Array, kept: Sequence[Array]) -> bool:
    """Whether a centred column is neither zero nor a combination of the kept ones."""
    size = np.linalg.norm(column)
    if size <= COLLINEAR or not kept:
        return bool(size > COLLINEAR)
    basis = np.column_stack(kept)
    residual = column - basis @ np.linalg.lstsq(basis, column, rcond=None)[0]
    return bool(np.linalg.norm(residual) > COLLINEAR * size)
