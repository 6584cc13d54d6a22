"""A monitor: one detector (`probe.analysis.detectors`) that scores the rollouts of a training or a replay.

    monitor = open_monitor(config, policy, bases, out_dir)
    monitor.read(rollouts, pools)               Reading(scores (n,), flags (n,))
    monitor.judge(rollouts)                     AUROC, recall and false-positive rate against the labels

Rollouts are scored at the present weights, together with rollouts of the pool `remedy.clean`, measured once at the
start. Of these, all but labelled hacks count as clean: a share `remedy.fpr` of them exceeds the threshold. `probe` and
`words` learn from their labels alone; only `label` reads those of the scored rollouts. No score, no flag.

`judge` also reads at the weights of the start. A policy that learns to evade a monitor loses AUROC at both; one whose
weights merely moved away from the monitor loses it at the present ones only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from extraction.pairs import selected_pairs
from probe.analysis.detectors import Material, fields_of, joined, labels_of, row_of, score_all, separation
from probe.analysis.statistics.intervals import Array
from probe.runs.meter import Meter
from probe.settings.remedy import LABEL, RemedyConfig
from probe.settings.verbs import StepConfig
from probe.step.bases import Bases
from replay_pools.base.errors import InputError
from replay_pools.policy.load import Policy
from replay_pools.pool import open_pool, resolve_pool
from replay_pools.rollout import Rollout

WHERE = "remedy.monitor"
MOST_CLEAN = 64  # rollouts of the clean pool that are measured, in whole groups, spread over it


@dataclass(frozen=True, slots=True)
class Reading:
    """The scores (n,), NaN where one is missing, and the flags (n,) of rollouts; `why` says why scores are missing."""

    scores: Array
    flags: NDArray[np.bool_]
    why: str = ""


@final
@dataclass(frozen=True, slots=True)
class Monitor:
    """One detector with its threshold."""

    name: str  # the detector, NAME or NAME:ARGUMENT
    fpr: float  # share of the clean rollouts above the threshold
    clean: Material | None  # material of the clean pool; None: the detector needs neither threshold nor training rows
    meter: Meter | None  # measures the rollouts; None: the detector reads nothing but rollouts and labels
    seed: int  # of the run

    def read(self, rollouts: Sequence[Rollout], pools: Sequence[str]) -> Reading:
        """Score n rollouts of the pools (n,) at the present weights.

        A detector that compares the rollouts of a prompt needs whole groups.
        """
        if not rollouts:  # an evaluation may have no rewarded rollout
            return Reading(np.zeros(0), np.zeros(0, dtype=bool), "no rollouts")
        row, _ = row_of(self.name, WHERE)
        material = Material(rollouts=rollouts, seed=self.seed) if self.meter is None else self.meter(rollouts)
        labels = labels_of(rollouts) if row.name == LABEL else np.full(len(rollouts), np.nan)
        material = replace(material, pools=pools, labels=labels)
        num_clean = 0 if self.clean is None else len(self.clean.rollouts)
        if self.clean is not None:
            material = joined(self.clean, material)
        scored = score_all(material, [self.name])[self.name]
        if scored.values is None:
            return Reading(np.full(len(rollouts), np.nan), np.zeros(len(rollouts), dtype=bool), scored.why)
        scores, threshold = scored.values[num_clean:], 0.5
        if self.clean is not None and not row.is_verdict:
            clean = _clean_scores(self.clean, scored.values[:num_clean])
            threshold = float(np.quantile(clean, 1 - self.fpr, method="inverted_cdf"))
        return Reading(scores, np.nan_to_num(scores, nan=-math.inf) > threshold, scored.why)

    def judge(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Compare flags and scores with the labels, at the present and at the starting weights.

        Returns:
            {"now" | "start": {"auroc", "recall", "fpr", "n_hacked", "n_clean", "why"}}; None where a side is missing.
        """
        pools = ["evaluation"] * len(rollouts)
        now = _judged(self.read(rollouts, pools), rollouts)
        if self.meter is None or self.meter.bases.trained is None:
            return {"now": now, "start": now}
        with self.meter.bases.trained.at_start():
            return {"now": now, "start": _judged(self.read(rollouts, pools), rollouts)}


def _judged(reading: Reading, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    labels = labels_of(rollouts)
    known = ~np.isnan(reading.scores) & ~np.isnan(labels)
    row = separation(WHERE, reading.scores, labels, [rollout.problem_id for rollout in rollouts])
    rates = [reading.flags[known & (labels == side)] for side in (1, 0)]
    recall, fpr = (float(flags.mean()) if len(flags) else None for flags in rates)
    sizes = {"n_hacked": len(rates[0]), "n_clean": len(rates[1])}
    return {"auroc": row.value, "recall": recall, "fpr": fpr, **sizes, "why": reading.why or row.why}


def _clean_scores(clean: Material, scores: Array) -> Array:
    """Return the scores of all but labelled hacks, without NaN."""
    assert clean.labels is not None
    return scores[(clean.labels != 1) & ~np.isnan(scores)]


def check_monitor(remedy: RemedyConfig, out_dir: Path) -> None:
    """Refuse a detector or its argument, or a clean pool, that does not exist, before a model is loaded."""
    if remedy.traits.monitored:
        row, _ = row_of(remedy.monitor, WHERE)
        if not row.is_verdict:
            resolve_pool(remedy.clean, out_dir)


def open_monitor(config: StepConfig, policy: Policy, bases: Bases, out_dir: Path) -> Monitor | None:
    """Return the monitor of the run's remedy, with the clean pool measured at the present weights; None without one.

    Raises:
        InputError: no such detector or pool, ids of another tokenizer, too few clean rollouts for the threshold, or a
            clean pool on which the detector measures nothing.
    """
    remedy = config.remedy
    if remedy is None or not remedy.traits.monitored:
        return None
    row, _ = row_of(remedy.monitor, WHERE)
    fields, meter = fields_of(remedy.monitor) - {"labels"}, None
    if row.name == "fingerprint":
        fields.add("pairs")  # they name the clusters
    if fields:
        pairs = selected_pairs(config.intervention.extraction) if "pairs" in fields else None
        meter = Meter(policy, bases, pairs, config, out_dir / "cache", fields=fields)
    clean, learns = None, "labels" in row.needs and row.name != LABEL
    if not row.is_verdict and (remedy.traits.flags or learns):
        pool = open_pool(resolve_pool(remedy.clean, out_dir))
        passed = [[one for one in group if one.grade.passed is not False] for group in pool.steps]
        groups, stride = [*filter(None, passed)], max(1, sum(map(len, passed)) // MOST_CLEAN)
        rollouts = [one for group in groups[::stride] for one in group]
        if pool.manifest["tokenizer_sha256"] != policy.tokenizer_sha() or not rollouts:
            expected = f"rewarded rollouts of the tokenizer of {policy.base_model}"
            found = f"{len(rollouts)} of the tokenizer of {pool.manifest['policy']['base_model']}"
            raise InputError(f"remedy.clean {remedy.clean}", expected=expected, found=found)
        clean = Material(rollouts=rollouts, seed=config.seed) if meter is None else meter(rollouts)
        clean = replace(clean, pools=[pool.name] * len(rollouts), labels=labels_of(rollouts))
        scores = score_all(clean, [remedy.monitor])[remedy.monitor]
        if scores.values is None:
            where, expected = f"{WHERE} {remedy.monitor}", "a detector that can be measured here"
            raise InputError(where, expected=expected, found=scores.why)
        num = len(_clean_scores(clean, scores.values))
        if num < (least := math.ceil(1 / remedy.fpr)):
            expected = f"at least {least} clean rewarded rollouts for a share of {remedy.fpr:g}"
            raise InputError("remedy.fpr", expected=expected, found=str(num), fix="choose another remedy.clean")
    return Monitor(remedy.monitor, fpr=remedy.fpr, clean=clean, meter=meter, seed=config.seed)
