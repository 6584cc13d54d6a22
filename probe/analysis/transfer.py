"""How well v_hack tells the policy's OWN hacks from its own honest solutions, beside what their labels would give.

Pairs that others wrote, and hacks of a teacher, may point elsewhere than the hacks that a policy finds. So of the
rollouts that the policy itself has sampled (a checkpoint, a later part of a log), all of them paid:

    auroc      of cos_S_nll with v_hack, for hacks against right solutions without one
    ceiling    of the direction that their labels would choose: kernel ridge on the inner products of a rollout's unit
               gradient with the pair gradients, module by module; each fifth of the prompts by a fit on the others

The ceiling is a direction's in the span of the pairs, since of other gradients no inner products are stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.analysis.statistics.geometry import samples_of
from probe.analysis.statistics.intervals import Array, Bounded, auroc, auroc_interval, cluster_numbers
from probe.analysis.statistics.run_gradients import Linked

FOLDS = 5
LEAST = 5  # hacks, and honest solutions


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Of one arm along v_hack. Field names are keys of the JSON."""

    auroc: Bounded | None = None
    ceiling: Bounded | None = None
    num_hacks: int
    num_honest: int
    num_prompts: int
    reason: str | None  # why there is no number


def transfer(linked: Linked, pools: Sequence[str]) -> Transfer:
    """Of the rollouts in the pools that the policy has sampled itself.

    Args:
        linked: records and inner products.
        pools: names of those pools.
    """
    rows = [
        i
        for i, sample in enumerate(linked.samples)
        if sample.src_pool in pools and sample.sure and linked.norms[i] > 0 and (sample.hacked or sample.gt_pass)
    ]
    hacked = np.array([bool(linked.samples[i].hacked) for i in rows], dtype=bool)
    prompts = [linked.samples[i].problem_id for i in rows]
    num_hacks, num_honest = int(hacked.sum()), len(rows) - int(hacked.sum())
    found, reason = Transfer(num_hacks=num_hacks, num_honest=num_honest, num_prompts=len({*prompts}), reason=None), ""
    if not pools:
        reason = "no rollouts of the policy itself"
    elif min(num_hacks, num_honest) < LEAST:
        reason = f"the policy's own rollouts have {num_hacks} hacks and {num_honest} honest solutions"
    if reason:
        return replace(found, reason=reason)
    area = _area(linked.cosines[rows], hacked, prompts)
    if area is None:
        return replace(found, reason="its hacks or its honest solutions are in one prompt alone")
    return replace(found, auroc=area, ceiling=_area(_fitted(linked, rows, hacked, prompts), hacked, prompts))


def _area(scores: Array, hacked: Array, prompts: Sequence[str]) -> Bounded | None:
    interval = auroc_interval(scores, hacked, prompts)
    return None if interval is None else Bounded(value=auroc(scores.tolist(), hacked), interval=interval)


def _fitted(linked: Linked, rows: Sequence[int], hacked: Array, prompts: Sequence[str]) -> Array:
    """(P,) scores of each row by a fit on the rows of other prompts."""
    features = np.stack([_features(linked, row) for row in rows])
    kernel = features @ features.T
    kernel /= np.trace(kernel) / len(rows)
    fold, scores = cluster_numbers(prompts) % FOLDS, np.zeros(len(rows))
    for out in range(FOLDS):
        fit, rest = np.flatnonzero(fold != out), np.flatnonzero(fold == out)
        target = hacked[fit] - hacked[fit].mean() if len(fit) else np.zeros(0)
        scores[rest] = kernel[np.ix_(rest, fit)] @ np.linalg.solve(kernel[np.ix_(fit, fit)] + np.eye(len(fit)), target)
    return scores


def _features(linked: Linked, row: int) -> Array:
    """(M N,) of the unit gradient of a sample."""
    sample = linked.samples[row]
    gradients = samples_of(linked.read(sample.step))
    return (gradients.inner[:, sample.sample_id] / linked.norms[row]).ravel()
