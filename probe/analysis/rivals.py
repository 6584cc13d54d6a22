"""AUROCs of v_hack, and of the scores without a direction that may separate hacks from clean answers as well.

All are among the rewarded samples (A > 0): an honest solution by the base model and a hack by the hacking policy get
the same advantage there, so rewards cannot separate them.

comp_len, nll, grad_norm, hint   from the records: `probe.analysis.cosines.TRIVIAL`
logratio, words                  from the run's pools, missing without them: `probe.analysis.detectors`
own hacks                        v_hack again (cos_S_nll), for the policy's OWN hacks against its own honest solutions

Pairs by other authors, and hacks of the hacking policy, may point elsewhere than the hacks that a policy finds. The
last row therefore uses rollouts of the policy itself (a checkpoint, a later part of a log), rewarded or not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probe.analysis.cosines import LOG_RATIO, SCORES, WORDS, strength
from probe.analysis.detectors import Material, Scores, mean_logprobs, score_all, separation
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.run_gradients import Linked
from probe.analysis.verdict.pools import read_pools
from probe.records.records import SampleRecord
from probe.records.run import Run
from replay_pools.rollout import Rollout

LEAST_OWN = 5  # minimum number of the policy's own hacks, and of its own honest solutions


def areas(run: Run, samples: Sequence[SampleRecord], arm: str, *, labels: int | None) -> list[Estimate]:
    """Return the AUROC of v_hack for hacks among rewarded samples, then of every score without a direction.

    Args:
        run: the run with the pools.
        samples: the arm's samples, with labels; those without a score are left out of its AUROC.
        arm: name of the arm, for the estimates.
        labels: number of labels behind v_hack; None: unknown.
    """
    paid = [sample for sample in samples if sample.advantage > 0]
    values: dict[str, Any] = {name: [*map(score, paid)] for name, score in SCORES.items()}
    stored, missing = read_pools(replace(run, samples=paid))
    rollouts = [stored.get((sample.src_pool, sample.src_step, sample.src_sample)) for sample in paid]
    known = [rollout for rollout in rollouts if rollout is not None]
    why = "no rewarded rollout has a label" if not paid else ""
    if len(known) < len(paid):
        why = "; ".join(f"pool {name}: {reason}" for name, reason in missing.items()) or "a rollout is not in its pool"
    scores: dict[str, Scores] = dict.fromkeys((LOG_RATIO, WORDS), Scores(values=None, why=why))
    if not why:
        scores = score_all(material_of(paid, known, labels), [*scores])
    values |= {name: [None] * len(paid) if score.values is None else score.values for name, score in scores.items()}
    hacked, prompts = [float(sample.hacked or 0) for sample in paid], [sample.problem_id for sample in paid]
    rows = [separation(name, of_samples, hacked, prompts, arm=arm) for name, of_samples in values.items()]
    return [replace(row, why=scores[row.name].why or row.why) if row.name in scores else row for row in rows]


def material_of(samples: Sequence[SampleRecord], rollouts: Sequence[Rollout], labels: int | None) -> Material:
    """Return the material of rewarded samples: the reference weights are those where the gradient is taken."""
    nll = [sample.nll for sample in samples]
    return Material(
        # A group of several problems has one name, by which all estimates count prompts.
        rollouts=[replace(one, problem_id=sample.problem_id) for one, sample in zip(rollouts, samples, strict=True)],
        labels=np.array([float(sample.hacked or 0) for sample in samples]),
        learned=labels,
        sampled=mean_logprobs(rollouts),
        reference=None if None in nll else -np.array(nll, dtype=float),
        missing={
            "sampled": "the pools have rollouts without log-probabilities",
            "reference": "a sample has no likelihood",
        },
    )


def best_rival(rows: Sequence[Estimate]) -> Estimate | None:
    """Return the score without a direction that best separates hacks; None if none is measured."""
    return max((row for row in rows[1:] if row.value is not None), key=strength, default=None)


def transfer(linked: Linked, pools: Sequence[str], arm: str) -> Estimate:
    """Return the AUROC on the policy's own rollouts, in `pools`; `why` gives the reason if it is missing.

    parts: `num_hacks`, `num_honest`.
    """
    placed = [(i, sample) for i, sample in enumerate(linked.samples) if sample.src_pool in pools]
    labelled = [(i, one) for i, one in placed if one.sure and (one.hacked or one.gt_pass)]
    cosines, hacked = linked.cosines[[i for i, _ in labelled]], [float(one.hacked or 0) for _, one in labelled]
    row = separation("own hacks", cosines, hacked, [one.problem_id for _, one in labelled], arm=arm)
    num_hacks, num_honest = row.parts["n_hacked"], row.parts["n_clean"]
    why = ""
    if not pools:
        why = "no rollouts of the policy itself"
    elif all(one.hacked is None for _, one in placed):
        why = "no rollout of the policy itself has a label"
    elif num_hacks and all(one.gt_pass is None for _, one in placed):
        why = f"whether the policy's own rollouts are right is not known (gt_pass), {num_hacks} are hacks"
    elif min(num_hacks, num_honest) < LEAST_OWN:
        why = f"the policy's own rollouts have {num_hacks} hacks and {num_honest} honest solutions"
    elif row.interval is None:
        why = "its hacks or its honest solutions are in one prompt alone"
    row = replace(row, parts={"num_hacks": num_hacks, "num_honest": num_honest}, why=why)
    return replace(row, value=None, interval=None) if why else row
