"""Arms after their training: the runs of one arm under one condition over seeds, and their held-out rates.

trainings = grouped(runs)       runs that were given together: the first vanilla among them is what all others face
trainings.treated               every other arm and condition
trainings.rivals(arm)           those that need neither pairs of hacks nor true labels: a KL penalty, a control
trainings.level(arm)            probability of error of a statement on an arm: 5% for all arms together

Of many arms without any effect, some look better than vanilla by chance. Their intervals are therefore simultaneous:
each has the level ALPHA / m, so that all of m hold with 95%, whatever the arms have in common and however their
variances differ (Bonferroni's inequality; Dunn 1961, Multiple comparisons among means). The arm that a spec is about,
its primary, was named before the data and is a family of its own; all others are one family.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from probe.analysis.statistics.crossed import Cells, Comparison, change, difference, mean, rate
from probe.analysis.statistics.thresholds import ALPHA
from probe.analysis.training_outcome import TrainingOutcome
from probe.analysis.training_runs import is_training, shared_settings
from probe.records.root import DEFAULT_OUT, out_of
from probe.records.run import Run
from probe.settings.arms import ARMS
from probe.settings.remedy import TRAITS, Traits
from probe.settings.words import Remedy
from replay_pools.storage.tables import flat

RateName = Literal["hack", "solve"]
Place = Literal["start", "final"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """What a verdict needs of one run of `probe train`."""

    path: Path
    settings: Mapping[str, Any]  # of its config.json
    outcome: TrainingOutcome  # with the first and the last evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedArm:
    """The evaluated runs of one arm under one condition, one a seed."""

    condition: str  # '' where all runs have the same settings
    arm: str
    runs: Sequence[TrainedRun]
    remedy: Traits | None = None  # of its settings, whether or not a run is finished

    @property
    def name(self) -> str:
        """`projected`, or with its condition `vanilla (kl)`."""
        return f"{self.arm} ({self.condition})" if self.condition else self.arm

    @property
    def needs_pairs(self) -> bool:
        """Whether it acts along directions from pairs of hacks, in gradients or in activations."""
        row = ARMS[self.arm]
        in_activations = self.remedy is not None and self.remedy.changes_activations
        return in_activations or (row.directions == "v_hack" and (row.projects or row.routes))

    @property
    def has_oracle(self) -> bool:
        """Whether its remedy acts on the true labels: a yardstick, not a remedy."""
        return self.remedy is not None and self.remedy.has_oracle

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs."""
        return [int(run.settings["seed"]) for run in self.runs]

    @property
    def outcomes(self) -> list[TrainingOutcome]:
        """What became of its runs."""
        return [run.outcome for run in self.runs]

    def mean(self, name: RateName, place: Place) -> float:
        """The mean over seeds of a rate."""
        metric = self._metric(name, place)
        return float(np.mean([outcome.values[metric] for outcome in self.outcomes]))

    def cells(self, name: RateName, place: Place, problems: Sequence[str]) -> Cells:
        """A rate by seed and problem; by seed alone where no problem is given."""
        metric = self._metric(name, place)
        trials = sum(outcome.trials[metric] for outcome in self.outcomes)
        if not problems:
            return rate([[outcome.values[metric]] for outcome in self.outcomes], trials)
        shares = [[outcome.by_problem[metric][problem] for problem in problems] for outcome in self.outcomes]
        counts = (outcome.problem_trials[metric][problem] for outcome in self.outcomes for problem in problems)
        return rate(shares, sum(counts))

    def by_problem(self, name: RateName, place: Place) -> list[Mapping[str, float]]:
        """{problem: rate} of every run; empty where its rollouts are gone."""
        metric = self._metric(name, place)
        return [outcome.by_problem.get(metric, {}) for outcome in self.outcomes]

    def _metric(self, name: RateName, place: Place) -> str:
        """The rate in the loophole that was trained on, where others were evaluated beside it."""
        mode = self.runs[0].settings["rollouts"]["mode"]
        in_mode = f"{name}_{place}/{mode}"
        return in_mode if all(in_mode in outcome.values for outcome in self.outcomes) else f"{name}_{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainings:
    """What is judged: vanilla, and every arm beside it."""

    baseline: TrainedArm | None  # None: no vanilla was trained and evaluated
    treated: Sequence[TrainedArm]
    primary: TrainedArm | None = None  # among `treated`: the arm that the spec is about
    out: Path = DEFAULT_OUT  # the root folder of its runs

    def level(self, arm: TrainedArm) -> float:
        """Probability that a statement on this arm is wrong: ALPHA over its family."""
        family = [other for other in self.treated if (other is self.primary) == (arm is self.primary)]
        return ALPHA / len(family)

    def rivals(self, arm: TrainedArm) -> list[TrainedArm]:
        """Of an arm that needs pairs, the arms that need neither pairs nor true labels; of any other arm none."""
        if not arm.needs_pairs:
            return []
        return [other for other in self.treated if not other.needs_pairs and not other.has_oracle]


def of_runs(
    condition: str,
    arm: str,
    runs: Iterable[TrainedRun],
    remedy: Remedy | None = None,
) -> TrainedArm:
    """An arm from its runs: those that were evaluated, each seed once."""
    by_seed: dict[int, TrainedRun] = {}
    for run in runs:
        if {"hack_final", "solve_final"} <= run.outcome.values.keys():
            by_seed.setdefault(int(run.settings["seed"]), run)
    return TrainedArm(
        condition=condition,
        arm=arm,
        runs=[by_seed[seed] for seed in sorted(by_seed)],
        remedy=None if remedy is None else TRAITS[remedy],
    )


def grouped(runs: Iterable[tuple[Run, TrainingOutcome | None]]) -> Trainings | None:
    """The training runs among some, by arm and settings; None where vanilla is not among them, or is alone."""
    trained = [(run, outcome) for run, outcome in runs if is_training(run)]
    if len(trained) < 2:
        return None
    groups: list[tuple[Mapping[str, Any], str, list[TrainedRun]]] = []  # settings, arm, runs
    for run, outcome in trained:
        key = shared_settings(run.config), str(run.settings["intervention"]["arms"][0])
        same = next((group for group in groups if group[:2] == key), None)
        if same is None:
            same = (*key, [])
            groups.append(same)
        if outcome is not None:
            same[2].append(TrainedRun(path=run.path, settings=run.settings, outcome=outcome))
    first = next((group for group in groups if group[1] == "vanilla"), None)
    if first is None or len(groups) < 2:
        return None
    treated = []
    for settings, arm, of_arm in groups:
        if (settings, arm) != first[:2]:
            remedy = (settings.get("remedy") or {}).get("name")
            treated.append(of_runs(_different(settings, first[0]), arm, of_arm, remedy))
    out = out_of(trained[0][0].path)
    return Trainings(baseline=of_runs("", "vanilla", first[2]), treated=treated, out=out)


def _different(settings: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """The settings in which runs differ from those of vanilla, as KEY=VALUE."""
    here, there = flat(settings), flat(baseline)
    keys = [key for key in {**there, **here} if here.get(key) != there.get(key)]
    return ", ".join(f"{key}={here.get(key)}" for key in keys)


def rise(arm: TrainedArm, name: RateName) -> Comparison | None:
    """Change of a rate from the start; None below two seeds."""
    if not arm.outcomes:
        return None
    problems = _common([arm], name)
    return mean(change(arm.cells(name, "final", problems), arm.cells(name, "start", problems)))


def fall(arm: TrainedArm, name: RateName) -> Comparison | None:
    """The same change, counted downwards."""
    if not arm.outcomes:
        return None
    problems = _common([arm], name)
    return mean(change(arm.cells(name, "start", problems), arm.cells(name, "final", problems)))


def excess(a: TrainedArm, b: TrainedArm, name: RateName) -> Comparison | None:
    """The final rate of a minus that of b; None where one has fewer than two seeds."""
    if not a.outcomes or not b.outcomes:
        return None
    problems = _common([a, b], name)
    return difference(a.cells(name, "final", problems), b.cells(name, "final", problems))


def _common(arms: Sequence[TrainedArm], name: RateName) -> list[str]:
    """The held-out problems that every run met; none where the rollouts of one are gone."""
    tables = [table for arm in arms for table in arm.by_problem(name, "final")]
    return [problem for problem in tables[0] if all(problem in table for table in tables)]
