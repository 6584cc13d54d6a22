"""Scores without a direction that may separate hacks from clean answers as well as v_hack does.

comp_len, nll, grad_norm, hint   from the records: `probe.analysis.cosines.TRIVIAL`
logratio, words                  from the run's pools, missing without them: `probe.analysis.detectors`
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probe.analysis.cosines import LOG_RATIO, SCORES, WORDS, area, strength
from probe.analysis.detectors import Material, mean_logprobs, score_all
from probe.analysis.estimate import Estimate
from probe.analysis.verdict.pools import read_pools
from probe.records.records import SampleRecord
from probe.records.run import Run
from replay_pools.rollout import Rollout


def areas(run: Run, samples: Sequence[SampleRecord], arm: str, *, labels: int | None) -> list[Estimate]:
    """Return the AUROC of v_hack for hacks among rewarded samples, then of every score without a direction.

    Args:
        run: the run with the pools.
        samples: the arm's samples, with labels.
        arm: name of the arm, for the estimates.
        labels: number of labels behind v_hack; None: unknown.
    """
    rows = [area(samples, map(score, samples), name, arm) for name, score in SCORES.items()]
    paid = [sample for sample in samples if sample.advantage > 0]
    stored, missing = read_pools(replace(run, samples=paid))
    rollouts = [stored.get((sample.src_pool, sample.src_step, sample.src_sample)) for sample in paid]
    found = [rollout for rollout in rollouts if rollout is not None]
    why = "no rewarded rollout has a label" if not paid else ""
    if len(found) < len(paid):
        why = "; ".join(f"pool {name}: {reason}" for name, reason in missing.items()) or "a rollout is not in its pool"
    if why:
        return [*rows, *(replace(area([], [], name, arm), why=why) for name in (LOG_RATIO, WORDS))]
    for name, scores in score_all(material_of(paid, found, labels), (LOG_RATIO, WORDS)).items():
        if scores.values is None:
            rows.append(replace(area([], [], name, arm), why=scores.why))
        else:
            rows.append(area(paid, scores.values.tolist(), name, arm))
    return rows


def material_of(samples: Sequence[SampleRecord], rollouts: Sequence[Rollout], labels: int | None) -> Material:
    """Return the material of rewarded samples: the reference weights are those where the gradient is taken."""
    is_scored = all(sample.nll is not None for sample in samples)
    return Material(
        # A group of several problems has one name, by which all estimates count prompts.
        rollouts=[replace(one, problem_id=sample.problem_id) for one, sample in zip(rollouts, samples, strict=True)],
        labels=np.array([float(sample.hacked or 0) for sample in samples]),
        learned=labels,
        sampled=mean_logprobs(rollouts),
        reference=np.array([-(sample.nll or 0.0) for sample in samples]) if is_scored else None,
        missing={
            "sampled": "the pools have rollouts without log-probabilities",
            "reference": "a sample has no likelihood",
        },
    )


def best_rival(rows: Sequence[Estimate]) -> Estimate | None:
    """Return the score without a direction that best separates hacks; None if none is measured."""
    measured = [row for row in rows[1:] if row.value is not None]
    return max(measured, key=strength, default=None)
