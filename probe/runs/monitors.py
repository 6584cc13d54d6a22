"""A monitor: one detector (`probe.analysis.detectors`) that scores the rollouts of a training or a replay.

    monitor = open_monitor(config, policy, bases, out_dir)
    monitor.read(rollouts, pools)               Reading(scores (n,), flags (n,))
    monitor.judge(rollouts)                     AUROC, recall and false-positive rate against the labels

Every step scores its rollouts at the present weights, together with the rollouts of the pool `remedy.clean`, measured
once at the start. Of these, all but labelled hacks count as clean, and the threshold is the score that a share
`remedy.fpr` of them exceeds. Their labels are the only ones that `probe` and `words` learn from; `label` alone reads
the labels of the scored rollouts. A rollout without a score is never flagged.

`judge` reads the present policy's rollouts twice: at its weights, and at those of the start. A policy that learns to
evade a monitor loses AUROC at both; one whose weights merely moved away from the monitor loses it at the first only.
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
from probe.settings.remedy import LABEL
from probe.settings.run import StepConfig
from probe.step.bases import Bases
from replay_pools.base.errors import InputError
from replay_pools.policy.load import Policy
from replay_pools.pool import open_pool, resolve_pool
from replay_pools.rollout import Rollout

WHERE = "remedy.monitor"
MOST_CLEAN = 64  # rollouts of the clean pool that are measured


@dataclass(frozen=True, slots=True)
class Reading:
    """The scores (n,), NaN where one is missing, and the flags (n,) of rollouts; `why` says why scores are missing."""

    scores: Array
    flags: NDArray[np.bool_]
    why: str = ""


@final
class Monitor:
    """One detector with its threshold.

    Args:
        name: the detector, NAME or NAME:ARGUMENT.
        fpr: share of the clean rollouts above the threshold.
        clean: material of the clean pool; None: the detector needs neither threshold nor training rows.
        meter: measures the rollouts; None: the detector reads nothing but rollouts and labels.
        seed: the run's seed.
    """

    def __init__(self, name: str, *, fpr: float, clean: Material | None, meter: Meter | None, seed: int) -> None:
        self.name, self._fpr, self._clean, self._meter, self._seed = name, fpr, clean, meter, seed

    def read(self, rollouts: Sequence[Rollout], pools: Sequence[str]) -> Reading:
        """Score the rollouts at the present weights.

        Args:
            rollouts: n rollouts, of whole groups if the detector compares the rollouts of a prompt.
            pools: (n,) the name of each rollout's pool.
        """
        if not rollouts:  # an evaluation may have no rewarded rollout
            return Reading(np.zeros(0), np.zeros(0, dtype=bool), "no rollouts")
        row, _ = row_of(self.name, WHERE)
        material = Material(rollouts=rollouts, seed=self._seed) if self._meter is None else self._meter(rollouts)
        labels = labels_of(rollouts) if row.name == LABEL else np.full(len(rollouts), np.nan)
        material = replace(material, pools=pools, labels=labels)
        num_clean = 0
        if self._clean is not None:
            num_clean = len(self._clean.rollouts)
            material = joined(self._clean, material)
        found = score_all(material, [self.name])[self.name]
        if found.values is None:
            return Reading(np.full(len(rollouts), np.nan), np.zeros(len(rollouts), dtype=bool), found.why)
        scores, threshold = found.values[num_clean:], 0.5
        if self._clean is not None and not row.is_verdict:
            assert self._clean.labels is not None
            is_clean = (self._clean.labels != 1) & ~np.isnan(found.values[:num_clean])
            threshold = float(np.quantile(found.values[:num_clean][is_clean], 1 - self._fpr, method="inverted_cdf"))
        return Reading(scores, np.nan_to_num(scores, nan=-math.inf) > threshold, found.why)

    def judge(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Compare flags and scores with the labels, at the present weights and at those of the start.

        Returns:
            {"now" | "start": {"auroc", "recall", "fpr", "n_hacked", "n_clean", "why"}}; None where a side is missing.
        """
        pools = ["evaluation"] * len(rollouts)
        now = _judged(self.read(rollouts, pools), rollouts)
        if self._meter is None or self._meter.bases.trained is None:
            return {"now": now, "start": now}
        with self._meter.bases.trained.at_start():
            return {"now": now, "start": _judged(self.read(rollouts, pools), rollouts)}


def _judged(reading: Reading, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    labels = labels_of(rollouts)
    known = ~np.isnan(reading.scores) & ~np.isnan(labels)
    row = separation(WHERE, reading.scores, labels, [rollout.problem_id for rollout in rollouts])
    rates = [reading.flags[known & (labels == side)] for side in (1, 0)]
    recall, fpr = (float(flags.mean()) if len(flags) else None for flags in rates)
    sizes = {"n_hacked": len(rates[0]), "n_clean": len(rates[1])}
    return {"auroc": row.value, "recall": recall, "fpr": fpr, **sizes, "why": reading.why or row.why}


def check_monitor(config: StepConfig, out_dir: Path) -> None:
    """Refuse a detector or a clean pool that does not exist, before a model is loaded.

    Raises:
        InputError: no such detector, a wrong argument, or no such pool.
    """
    remedy = config.remedy
    if remedy is not None and remedy.traits.monitored:
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
    learns, clean = "labels" in row.needs and row.name != LABEL, None
    if not row.is_verdict and (remedy.traits.flags or learns):
        clean = _clean_material(remedy.clean, policy, meter, config.seed, out_dir)
    if clean is not None:
        scores = score_all(clean, [remedy.monitor])[remedy.monitor]
        if scores.values is None:
            where, expected = f"{WHERE} {remedy.monitor}", "a detector that can be measured here"
            raise InputError(where, expected=expected, found=scores.why)
        assert clean.labels is not None
        num = int(((clean.labels != 1) & ~np.isnan(scores.values)).sum())
        if num < (least := math.ceil(1 / remedy.fpr)):
            expected = f"at least {least} clean rewarded rollouts for a share of {remedy.fpr:g}"
            raise InputError("remedy.fpr", expected=expected, found=str(num), fix="choose another remedy.clean")
    return Monitor(remedy.monitor, fpr=remedy.fpr, clean=clean, meter=meter, seed=config.seed)


def _clean_material(name: str, policy: Policy, meter: Meter | None, seed: int, out_dir: Path) -> Material:
    """Measure at most MOST_CLEAN rewarded rollouts of the pool, in whole groups, spread over it."""
    pool = open_pool(resolve_pool(name, out_dir))
    if pool.manifest["tokenizer_sha256"] != policy.tokenizer_sha():
        found = f"ids of the tokenizer of {pool.manifest['policy']['base_model']}"
        raise InputError(
            f"remedy.clean {name}", expected=f"a pool of the tokenizer of {policy.base_model}", found=found
        )
    groups = [[one for one in group if one.grade.passed is not False] for group in pool.steps]
    groups = [group for group in groups if group]
    stride = max(1, sum(map(len, groups)) // MOST_CLEAN)
    rollouts = [one for group in groups[::stride] for one in group]
    if not rollouts:
        raise InputError(f"remedy.clean {name}", expected="rewarded rollouts", found="none")
    material = Material(rollouts=rollouts, seed=seed) if meter is None else meter(rollouts)
    return replace(material, pools=[pool.name] * len(rollouts), labels=labels_of(rollouts))
