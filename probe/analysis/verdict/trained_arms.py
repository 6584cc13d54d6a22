"""Trained arms against vanilla: their runs, their differences, and the confidence level of each statement.

Among many arms without any effect, some look better than vanilla by chance. All effects hold together with 95%, by
step-down over the arms (Holm 1979), and so do all costs, at equal levels: a cost can be wrong in two ways (LOST and
KEPT), so it has no single p-value to step down by. For the measured error rates, see spec/METHOD.md section 7.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from probe.analysis.analyze import Analysis
from probe.analysis.detectors import fields_of
from probe.analysis.statistics.crossed import Cells, Comparison, Spread, change, common_spread, compare, rate
from probe.analysis.statistics.thresholds import ALPHA, MATERIAL_RATE, MIN_SEEDS
from probe.analysis.training_runs import TrainingOutcome, shared_settings
from probe.records.run import DEFAULT_OUT, out_of, recorded
from probe.settings.arms import ARMS
from probe.settings.presets import setting_text
from probe.settings.remedy import RemedyConfig
from probe.settings.verbs import TrainConfig
from probe.settings.words import ALL
from replay_pools.base.tables import flat

Settings = Mapping[str, Any]  # by dotted key


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedArm:
    """The evaluated runs of one arm under one loss variant, one per seed."""

    condition: str  # '' if all runs have the same settings
    arm: str
    runs: Sequence[Analysis]
    remedy: RemedyConfig | None = None  # from its settings, even if no run is finished

    @property
    def name(self) -> str:
        """Format as `projected`, or with its loss variant, `vanilla (kl)`."""
        return f"{self.arm} ({self.condition})" if self.condition else self.arm

    @property
    def needs_pairs(self) -> bool:
        """Return True if pairs of hacks give its directions or its scores."""
        if ARMS[self.arm].removes_v_hack or self.remedy is None:
            return ARMS[self.arm].removes_v_hack
        traits = self.remedy.traits
        return traits.changes_activations or (traits.monitored and "pairs" in fields_of(self.remedy.monitor))

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs."""
        return [run.records.settings.seed for run in self.runs]

    @property
    def settings(self) -> TrainConfig:
        """The settings of its first run."""
        return self.runs[0].records.training

    @property
    def outcomes(self) -> list[TrainingOutcome]:
        """The outcomes of its runs."""
        return [run.outcome for run in self.runs if run.outcome is not None]

    def metric(self, name: str, place: str = "final") -> str:
        """Return the name of a rate: in the training loophole, if several loopholes were evaluated.

        Args:
            name: `hack` or `solve`.
            place: `start` or `final`.
        """
        in_mode = f"{name}_{place}/{self.settings.rollouts.mode}" if self.outcomes else ""
        return in_mode if all(in_mode in outcome.values for outcome in self.outcomes) else f"{name}_{place}"

    def mean(self, name: str, place: str = "final") -> float:
        """Return a rate's mean over seeds."""
        metric = self.metric(name, place)
        return float(np.mean([outcome.values[metric] for outcome in self.outcomes]))

    def in_percent(self, name: str, place: str = "final") -> str:
        """Format a rate's mean over seeds, as `51%`."""
        return f"{self.mean(name, place):.0%}"

    def cells(self, metric: str, problems: Sequence[str] = ()) -> Cells:
        """Return a rate (such as `hack_final`) by seed and problem; by seed alone if no problem is given."""
        tables = [outcome.shares[metric] for outcome in self.outcomes]
        rows = [[table[problem] for problem in problems or [ALL]] for table in tables]
        return rate([[share for share, _ in row] for row in rows], sum(count for row in rows for _, count in row))


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """The trainings to judge: vanilla, and every arm compared with it."""

    baseline: TrainedArm
    treated: Sequence[TrainedArm]
    out: Path = DEFAULT_OUT  # the root folder of its runs
    _spreads: dict[str, Spread | None] = field(default_factory=dict)

    def spread(self, metric: str) -> Spread | None:
        """Return the variation of a rate between seeds, estimated from all arms that have it."""
        if metric not in self._spreads:
            arms = (arm for arm in (self.baseline, *self.treated) if arm.outcomes)
            known = [arm for arm in arms if all(metric in outcome.shares for outcome in arm.outcomes)]
            self._spreads[metric] = common_spread(arm.cells(metric) for arm in known)
        return self._spreads[metric]

    @cached_property
    def levels(self) -> Mapping[str, Mapping[str, float]]:
        """{arm: {"effect", "price"}}: the probability that its statement, or a comparison with a rival, is wrong.

        With 95% no statement on an effect is wrong, and with 95% none on a cost.
        """
        p_values = {}
        for arm in self.treated:
            drop = compared(self, (self.baseline, arm), self.baseline.metric("hack"))
            p_values[arm.name] = drop.p if drop is not None and abs(drop.value) >= MATERIAL_RATE else 1.0
        effects = step_down(p_values, ALPHA)
        return {name: {"effect": level, "price": ALPHA / len(effects)} for name, level in effects.items()}

    def rivals(self, arm: TrainedArm) -> list[TrainedArm]:
        """Return the arms without pairs or true labels, for an arm that needs pairs; empty for any other arm."""
        if not arm.needs_pairs:
            return []
        # A remedy that uses the true labels is a target for comparison.
        others = (other for other in self.treated if other.remedy is None or not other.remedy.has_oracle)
        return [other for other in others if not other.needs_pairs]


def of_runs(condition: str, arm: str, runs: Iterable[Analysis], remedy: RemedyConfig | None = None) -> TrainedArm:
    """Build an arm from its evaluated runs, each seed once."""
    by_seed: dict[int, Analysis] = {}
    for run in runs:
        if run.outcome is not None and {"hack_final", "solve_final"} <= run.outcome.values.keys():
            by_seed.setdefault(run.records.settings.seed, run)
    return TrainedArm(condition=condition, arm=arm, runs=[by_seed[seed] for seed in sorted(by_seed)], remedy=remedy)


def arms_of(runs: Iterable[Analysis]) -> list[TrainedArm]:
    """Group training runs by arm and settings, vanilla first; names state the difference from the first."""
    groups: dict[tuple[str, str], tuple[Settings, list[Analysis]]] = {}  # {(arm, settings as text): settings, runs}
    for run in runs:
        if run.records.settings.verb == "train":
            settings = flat(shared_settings(run.records.config))
            key = run.records.settings.intervention.arms[0], repr(settings)
            groups.setdefault(key, (settings, []))[1].append(run)
    first = next((key for key in groups if key[0] == "vanilla"), None)
    ordered, arms = sorted(groups.items(), key=lambda group: group[0] != first), []
    for (arm, _), (here, of_arm) in ordered:
        there = ordered[0][1][0]
        keys = [key for key in {**there, **here} if here.get(key) != there.get(key)]
        different = ", ".join(f"{key}={setting_text(here.get(key))}" for key in keys)
        arms.append(of_runs(different, arm, of_arm, of_arm[0].records.settings.remedy))
    return arms


def grouped(runs: Sequence[Analysis]) -> Trainings | None:
    """Group training runs; None without vanilla, or with vanilla alone."""
    arms = arms_of(runs)
    if len(arms) < 2 or arms[0].arm != "vanilla":
        return None
    out = next(out_of(run.records.path) for run in runs if run.records.settings.verb == "train")
    return Trainings(baseline=arms[0], treated=arms[1:], out=out)


def same_records(arm: TrainedArm, other: TrainedArm) -> list[int]:
    """Return the shared seeds if both sides made identical records in all of them; else none."""
    sides = [{run.records.settings.seed: recorded(run.records.manifest) for run in side.runs} for side in (arm, other)]
    here, there = sides
    common = [seed for seed in here if seed in there]
    return common if all(here[seed] == there[seed] for seed in common) else []


def step_down(p_values: Mapping[str, float], level: float) -> dict[str, float]:
    """Return {name: level of its statement} so that all statements hold with 1 - level (Holm 1979).

    The smallest p is compared with level / m, the next with level / (m - 1), until one is larger.
    """
    levels, left, goes_on = {}, len(p_values), True
    for name in sorted(p_values, key=p_values.__getitem__):
        levels[name] = level / left
        goes_on = goes_on and p_values[name] <= levels[name]
        left -= goes_on
    return levels


def is_material(difference: Comparison, level: float) -> bool:
    """Return True if the interval lies above 0 and the difference is at least MATERIAL_RATE."""
    return difference.bounded(level).low > 0 and difference.value >= MATERIAL_RATE


def is_ruled_out(difference: Comparison, level: float) -> bool:
    """Return True if a difference of MATERIAL_RATE is excluded."""
    return difference.bounded(level).high < MATERIAL_RATE


def compared(trainings: Trainings, arms: Sequence[TrainedArm], metric: str, minus: str = "") -> Comparison | None:
    """Return a rate of one arm, or of the first arm minus the second; None if one has fewer than MIN_SEEDS.

    Args:
        trainings: all arms that are compared: two arms share their variation between seeds.
        arms: one or two.
        metric: the rate.
        minus: a rate of the same runs to subtract.
    """
    if any(len(arm.outcomes) < MIN_SEEDS for arm in arms):
        return None
    tables = [outcome.shares.get(metric, {}) for arm in arms for outcome in arm.outcomes]
    # Held-out problems that every run met; none if any run's rollouts are missing.
    problems = [name for name in tables[0] if name != ALL and all(name in table for table in tables)]
    cells = []
    for arm in arms:
        cell = arm.cells(metric, problems)
        if minus:
            cell = change(cell, arm.cells(minus, problems))
        # Vanilla enters every comparison, and so does an error in its variance.
        cells.append(replace(cell, keeps_own=arm is trainings.baseline))
    return compare(*cells, common=trainings.spread(metric) if len(arms) > 1 and not minus else None)
