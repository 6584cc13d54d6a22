"""Every number of a run as one table, from which criteria are evaluated; and which metrics there are (below).

A key names the metric, the unit that its n counts, and the arm and condition where those are not the arm that stands
for vanilla and the first condition. Names are those of the steps' records (`cos_in`, `advantage/abs_max`, `kl/mean`,
...), in training those of `probe.analysis.training_runs` (`hack_final`, ...), and

    d_cos_in            cos_in of a prompt minus its mean under N2
    hack_difference     within-prompt difference of cos_S_contrib, hacked minus clean, among A > 0
    auroc               AUROC of cos_S_contrib for hacked among A > 0
    pair_sign           1 for a held-out pair with the sign of v_hack, else 0
    pull, benign, pull - benign, half - benign, contrast
                        shares of the held-out ceiling: `probe.analysis.pull`
    removed/TARGET      share of the progress on a target (margin, hacks, honest) that the gate would remove, to
                        first order: `probe.analysis.forecast`
    kl/final            mean of kl/mean over the last quarter of the steps of training
    kl/share_of_base    KL from the reference over KL from the base, both summed over steps: 1 where the reference is
                        the base, whatever it is called

In a run that trains, the steps are autocorrelated: the run is the unit, and gives one number a metric (unit `run`).
Over several such runs the seed is the unit, and, secondary, the held-out problem (its mean over the seeds).

To add a metric that is a field of a record: name it in STEP_METRICS. To add one that is computed:
compute it in `_derived`, and say in _DERIVED for which units and nulls it exists. A spec that names anything else is
refused before its sweep.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from probe.analysis.analyze import Analysis as Evidence
from probe.analysis.cosines import HAAR, HACK_DIFFERENCE, PURE_HACK, TRIVIAL, present, strength
from probe.analysis.estimate import Estimate as Measured
from probe.analysis.statistics.intervals import (
    Interval,
    outcomes_interval,
    prompt_means,
    share_interval,
    t_interval,
    varies,
)
from probe.analysis.statistics.permutation import N2
from probe.analysis.statistics.significance import sign_flip_test
from probe.analysis.training_runs import ELO_GAP, MOVED, PLACES, RATES
from probe.records.records import ADVANTAGE_KEYS, KL_KEYS, RATIO_KEYS, StepRecord
from probe.settings.words import NO_HINT
from replay_pools.environments.loopholes import LOOPHOLES


class MetricKey(NamedTuple):
    """Which estimate: a metric, the unit that its n counts, and where it was measured."""

    metric: str
    unit: str  # prompt, problem, seed, run, step or pair
    arm: str | None = None  # None: the arm that stands for vanilla
    condition: str | None = None  # None: the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One metric over n units. A field is None where the number does not exist."""

    value: float | None  # mean over units, or the statistic
    n: int
    unit: str
    interval: Interval | None = None  # 95%
    interval_90: Interval | None = None
    p: float | None = None  # two-sided, against zero
    minimum: float | None = None
    maximum: float | None = None
    nulls: Mapping[str, Measured] = field(default_factory=dict)  # by the names of a criterion's `null`
    beaten_by: Sequence[str] | None = None  # trivial scores that do as well: null "baselines"; None: none was measured
    by_unit: Mapping[str, float] = field(default_factory=dict)  # {unit: its value}
    trials: Mapping[str, int] = field(default_factory=dict)  # of a rate: {unit: outcomes that its share is of}
    vacuous: str | None = None  # why the number could not have come out otherwise


Metrics = Mapping[MetricKey, Estimate]


def estimate(
    by_unit: Mapping[str, float],
    unit: str,
    *,
    nulls: Mapping[str, Measured] | None = None,
    trials: Mapping[str, int] | None = None,
) -> Estimate:
    """The mean of one value a unit.

    Args:
        by_unit: {name of the unit: value}.
        unit: what a unit is.
        nulls: tests of the same mean against directions or labels without signal.
        trials: of a rate, {unit: outcomes that its share is of}.

    Returns:
        Mean, 95% and 90% intervals (of a rate those of `shares`), two-sided sign-flip p against zero, extremes. Units
        that are all equal, and no rate, show no variance and have no interval.
    """
    summary = _summary(tuple(by_unit.values()), tuple((trials or {}).values()))
    return replace(summary, unit=unit, nulls=nulls or {}, by_unit=by_unit, trials=trials or {})


# Rewards and much else are the same numbers in every arm of a replay.
@lru_cache(maxsize=512)
def _summary(values: tuple[float, ...], outcomes: tuple[int, ...]) -> Estimate:
    """`estimate` of the values alone."""

    def interval(level: float) -> Interval | None:
        return share_interval(values, outcomes, level=level) if outcomes else t_interval(values, level=level)

    return Estimate(
        value=float(np.mean(values)) if values else None,
        n=len(values),
        unit="",
        interval=interval(0.95),
        interval_90=interval(0.9),
        p=sign_flip_test(values),
        minimum=min(values, default=None),
        maximum=max(values, default=None),
    )


def difference(a: Estimate, b: Estimate) -> Estimate:
    """a minus b, paired by the units that both have."""
    both = [name for name in a.by_unit if name in b.by_unit]
    paired = estimate({name: a.by_unit[name] - b.by_unit[name] for name in both}, a.unit)
    # Problems that differ alike are evidence of that; seeds are too few, and the runs of one seed are not one run.
    if a.unit == "problem" and paired.interval is not None:
        return paired
    return _as_wide_as_outcomes(paired, a, b, both, both)


def unpaired_difference(a: Estimate, b: Estimate) -> Estimate:
    """a minus b as means of independent samples: Welch's intervals and p; n is that of the smaller side."""
    x, y = list(a.by_unit.values()), list(b.by_unit.values())
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(value=None, n=0, unit=a.unit)
    unpaired = Estimate(value=float(np.mean(x) - np.mean(y)), n=n, unit=a.unit)
    if min(len(x), len(y)) > 1 and (varies(x) or varies(y)):
        from scipy import stats  # only unpaired criteria need its tests

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a side without variance
            test: Any = stats.ttest_ind(x, y, equal_var=False)
        ends = (test.confidence_interval(level) for level in (0.95, 0.9))
        interval, interval_90 = (Interval(low=float(low), high=float(high)) for low, high in ends)
        unpaired = replace(unpaired, interval=interval, interval_90=interval_90, p=float(test.pvalue))
    return _as_wide_as_outcomes(unpaired, a, b, list(a.by_unit), list(b.by_unit))


def _as_wide_as_outcomes(
    compared: Estimate, a: Estimate, b: Estimate, of_a: Sequence[str], of_b: Sequence[str]
) -> Estimate:
    """A difference of rates whose intervals span at least what drawing outcomes alone leaves open.

    Seeds may have equal rates by chance: the difference then shows no variance, or next to none. Below two units a side
    there is still no interval, and of what is no rate the difference stays as it is.
    """
    if not a.trials or not b.trials or min(len(of_a), len(of_b)) < 2:
        return compared
    shares = [np.array([side.by_unit[name] for name in names]) for side, names in ((a, of_a), (b, of_b))]
    trials = [np.array([side.trials[name] for name in names]) for side, names in ((a, of_a), (b, of_b))]
    return replace(
        compared,
        interval=_hull(compared.interval, outcomes_interval(*shares, *trials)),
        interval_90=_hull(compared.interval_90, outcomes_interval(*shares, *trials, level=0.9)),
    )


def _hull(interval: Interval | None, other: Interval) -> Interval:
    """The smallest interval that holds both."""
    if interval is None:
        return other
    return Interval(low=min(interval.low, other.low), high=max(interval.high, other.high))


def mean_by_unit(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """{unit: mean of its values in the tables that have it}."""
    values_of: dict[str, list[float]] = {}
    for table in tables:
        for unit, value in table.items():
            values_of.setdefault(unit, []).append(value)
    return {unit: float(np.mean(values)) for unit, values in values_of.items()}


def by_condition(tables: Mapping[str, Metrics]) -> dict[MetricKey, Estimate]:
    """{condition: metrics} as one table; the first condition also stands under `condition=None`, its default."""
    first = next(iter(tables.values()), {})
    merged: dict[MetricKey, Estimate] = dict(first)
    for condition, metrics in tables.items():
        for key, estimated in metrics.items():
            merged[key._replace(condition=condition)] = estimated
    return merged


STEP_METRICS = (
    *("cos_in", "cos_out", "mean_cos_in", "mean_cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired"),
    *("reward_mean", "reward_std", "reward_spread", "solve", "loss", "grad_norm", "num_effective", "additivity_error"),
    *("entropy", "exec_surprisal_var"),
    *("cos_update", "hackward_frac_update", "direction_age", "direction_overlap"),
)
# The other fields of steps, flattened as on the wire.
_STEP_NAMES = (
    *STEP_METRICS,
    *ADVANTAGE_KEYS,
    *(f"kl/{key}" for key in KL_KEYS),
    *(f"ratio/{key}" for key in RATIO_KEYS),
)
# Of steps in which the policy moves, and with it its reference, its directions and the strength of its penalty.
_MOVING = (
    *("cos_update", "hackward_frac_update", "direction_overlap", "entropy", "ratio/staleness"),
    *(f"kl/{key}" for key in KL_KEYS if key not in ("mean", "max")),
)
_PERMUTED = ("N2",)  # the nulls that draw directions, of `probe.analysis.statistics.permutation`


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """For which units and nulls a metric exists."""

    units: tuple[str, ...]
    nulls: tuple[str, ...] = ()
    measured_alone: bool = False  # of the arm that stands for vanilla, and of no other
    is_quotient: bool = False  # with an interval of its own, and no value by unit


_DERIVED = {
    "d_cos_in": Availability(units=("prompt",), nulls=_PERMUTED, measured_alone=True),
    "hack_difference": Availability(units=("prompt",), nulls=("N1", *_PERMUTED), measured_alone=True),
    PURE_HACK: Availability(units=("prompt",), measured_alone=True),
    "auroc": Availability(units=("prompt",), nulls=(*_PERMUTED, "baselines"), measured_alone=True),
    "pair_sign": Availability(units=("pair",), measured_alone=True),
}
# From the inner products of a replay, with an interval over prompts and pairs and no value by prompt.
_SHARES = ("pull", "benign", "pull - benign", "half - benign", "contrast")
QUOTIENT_STATISTICS = ("mean", "value", "lower95", "upper95", "n")  # what can be asked of these
_REMOVED = ("margin", "hacks", "honest")
_OFFLINE = dict.fromkeys(
    (*_SHARES, *(f"removed/{target}" for target in _REMOVED)),
    Availability(units=("prompt",), measured_alone=True, is_quotient=True),
)


def replay_metrics() -> dict[str, Availability]:
    """The metrics of a replay with frozen weights. A null of `cos_in` is of the measured arm alone."""
    table = {name: Availability(units=("prompt", "step")) for name in _STEP_NAMES if name not in _MOVING}
    table["cos_in"] = Availability(units=("prompt", "step"), nulls=("N1", *_PERMUTED))
    return table | _DERIVED | _OFFLINE


def training_metrics() -> dict[str, Availability]:
    """The metrics of runs that train: one number a run, so that the seed is the unit; no nulls."""
    by_seed = Availability(units=("seed",))
    table = {name: by_seed for name, available in _DERIVED.items() if "prompt" in available.units}
    table |= dict.fromkeys(_STEP_NAMES, Availability(units=("seed", "step")))
    table |= dict.fromkeys(("kl/final", "kl/share_of_base", ELO_GAP, *MOVED.values()), by_seed)
    settings = ["", *(f"/{name}" for name in (*LOOPHOLES, NO_HINT))]
    for rate, place, setting in product(RATES, PLACES, settings):
        table[f"{rate}_{place}{setting}"] = Availability(units=("seed", "problem"))
    return table


def metrics(evidence: Evidence) -> dict[MetricKey, Estimate]:
    """The table of one run under one condition; keys without an arm are of the measured arm."""
    table: dict[MetricKey, Estimate] = {}
    for arm in evidence.arms:
        steps = [step for step in evidence.steps if step.arm == arm]
        for (metric, unit), by_unit in _step_values(steps).items():
            table[MetricKey(metric, unit, arm)] = estimate(by_unit, unit)
        # A share that is 0 under any rewards must not pass a criterion such as "at most .1".
        if all(step.advantage["adv_cap_vacuous"] is True for step in steps):
            why = "the cap is not below the largest advantage that a group can have"
            for unit in ("step", "prompt"):
                capped = MetricKey("adv_cap_fraction", unit, arm)
                if capped in table:
                    table[capped] = replace(table[capped], vacuous=why)
    measured = evidence.measured_arm
    table |= {key._replace(arm=None): row for key, row in table.items() if key.arm == measured}
    for key, row in _derived(evidence, table).items():
        table[key] = table[key._replace(arm=measured)] = row
    if not evidence.trains:
        return table
    return _of_training(table, evidence)


def _derived(evidence: Evidence, table: Metrics) -> dict[MetricKey, Estimate]:
    """Of the measured arm: statistics that are no plain mean of a field, and `cos_in` with its nulls."""
    by_prompt: dict[str, Estimate] = {}
    arm, cosine = evidence.measured_arm, table.get(MetricKey("cos_in", "prompt"))
    rows = evidence.of("auroc")
    area, rivals = next(iter(rows), None), [row for row in rows if row.name in TRIVIAL]
    if cosine is not None:
        nulls = _nulls(evidence, "cos_in")
        by_prompt["cos_in"] = estimate(cosine.by_unit, "prompt", nulls=nulls)
        if "N2" in nulls:
            # The mean under N2 is 0 and is not estimated from draws, which would only add noise: a permutation and the
            # one that exchanges its two halves are equally likely, and the exchange reverses every oriented direction.
            by_prompt["d_cos_in"] = estimate(cosine.by_unit, "prompt", nulls={"N2": nulls["N2"]})
    for name in (HACK_DIFFERENCE, PURE_HACK):
        contrast = evidence.get("contrasts", name, arm)
        if contrast is not None and contrast.value is not None:
            by_prompt[name] = estimate(contrast.parts, "prompt", nulls=_nulls(evidence, name))
    if area is not None:
        by_prompt["auroc"] = Estimate(
            value=area.value,
            n=area.n,
            unit="prompt",
            interval=area.interval,
            nulls=_nulls(evidence, "auroc"),
            beaten_by=tuple(beaten_by(area, rivals)) if rivals else None,
        )
    for share in (*evidence.of("shares"), *evidence.of("removed")):
        if share.is_bounded:
            by_prompt[share.name] = Estimate(value=share.value, n=share.n, unit="prompt", interval=share.interval)
    derived = {MetricKey(name, "prompt"): row for name, row in by_prompt.items()}
    for row in evidence.of("pair_sign"):
        derived[MetricKey("pair_sign", "pair")] = Estimate(value=row.value, n=row.n, unit="pair", interval=row.interval)
    return derived


def _step_values(steps: Iterable[StepRecord]) -> dict[tuple[str, str], dict[str, float]]:
    """{(metric, unit): {unit: value}} of the fields of one arm's steps, by step and by prompt."""
    by_step: dict[str, dict[str, float]] = {}
    problem_of: dict[str, str] = {}
    for step in steps:
        name = str(step.step)
        problem_of[name] = step.problem_id
        values = {metric: getattr(step, metric) for metric in STEP_METRICS} | step.advantage
        values |= {f"kl/{key}": value for key, value in step.kl.items()}
        values |= {f"ratio/{key}": value for key, value in step.ratio.items()}
        for metric, value in values.items():
            if value is not None:
                by_step.setdefault(metric, {})[name] = float(value)
    tables = {}
    for metric, values in by_step.items():
        tables[metric, "step"] = values
        means = prompt_means(list(values.values()), [problem_of[name] for name in values])
        tables[metric, "prompt"] = {str(prompt): mean for prompt, mean in means.items()}
    return tables


def _nulls(evidence: Evidence, metric: str) -> dict[str, Measured]:
    """{null: test} of a statistic."""
    found = {"N1": f"{metric}, {HAAR}", "N2": f"{metric}, {N2}"}
    rows = {null: evidence.get("nulls", name, evidence.measured_arm) for null, name in found.items()}
    return {null: row for null, row in rows.items() if row is not None}


def beaten_by(measurement: Measured, baselines: Iterable[Measured]) -> list[str]:
    """The trivial scores that do as well as the measurement or better, as texts "name AUROC".

    Where the measurement is not above chance (its interval reaches .5), a baseline counts only if it differs from
    chance itself: between two scores that say nothing, the larger AUROC is noise.
    """
    if measurement.value is None:
        return []
    better = []
    for row in baselines:
        differs = measurement.low > 0.5 or not row.low <= 0.5 <= row.high
        if row.value is not None and strength(row) >= measurement.value and differs:
            better.append(f"{row.name} {strength(row):.2f}")
    return better


def _of_training(table: Metrics, evidence: Evidence) -> dict[MetricKey, Estimate]:
    """The table of one run that trains, from its table over prompts and steps.

    Returns:
        unit `run`: the value of every metric (of a field of the steps its mean over them), KL at the end, the outcome.
        unit `step`: the extremes of the steps.
        unit `problem`: the rates on held-out problems.
    """
    metrics: dict[MetricKey, Estimate] = {}
    for key, row in table.items():
        if key.unit == "prompt":
            metrics[key._replace(unit="run")] = _of_one_run(row.value, vacuous=row.vacuous)
    # Second, so that of a field of the steps the mean over steps replaces the mean over prompts.
    for key, row in table.items():
        if key.unit == "step":
            metrics[key._replace(unit="run")] = _of_one_run(row.value, vacuous=row.vacuous)
            metrics[key] = _extremes(row.by_unit)
    measured, outcome = evidence.measured_arm, evidence.outcome
    # Without an arm, the key under which the measured one is found.
    for arm in (*evidence.arms, None) if measured else evidence.arms:
        of_arm = [step for step in evidence.steps if step.arm == (arm or measured)]
        for name, value in (("kl/share_of_base", _share_of_base(of_arm)), ("kl/final", _final_kl(of_arm))):
            if value is not None:
                metrics[MetricKey(name, "run", arm)] = _of_one_run(value)
        if outcome is not None:
            for name, value in outcome.values.items():
                metrics[MetricKey(name, "run", arm)] = _of_one_run(value, trials=outcome.trials.get(name))
            for name, by_problem in outcome.by_problem.items():
                trials = outcome.problem_trials.get(name)
                metrics[MetricKey(name, "problem", arm)] = estimate(by_problem, "problem", trials=trials)
    return metrics


def _of_one_run(value: float | None, *, vacuous: str | None = None, trials: int | None = None) -> Estimate:
    """One number of a run; `trials` is given for a rate, the outcomes that it is of."""
    return Estimate(value=value, n=1, unit="run", vacuous=vacuous, trials={"run": trials} if trials else {})


def _share_of_base(steps: Iterable[StepRecord]) -> float | None:
    """KL from the reference over KL from the base; None while the policy is the base, or where neither is known."""
    from_reference = from_base = 0.0
    for step in steps:
        mean = step.kl.get("mean")
        base = mean if step.reference == "base" else step.kl.get("from_base")
        if mean is not None and base is not None:
            from_reference += mean
            from_base += base
    return from_reference / from_base if from_base > 0 else None


def _final_kl(steps: Iterable[StepRecord]) -> float | None:
    """Mean of the KL over the last quarter of the steps, at least one: on-policy, where a teacher has left by then."""
    values = present(step.kl.get("mean") for step in steps)
    last = values[-max(1, len(values) // 4) :]
    return sum(last) / len(last) if last else None


def over_runs(tables: Mapping[str, Metrics]) -> dict[MetricKey, Estimate]:
    """{seed: metrics of its training run} -> one table.

    What was one number a run has the seed as its unit. A held-out problem has its mean over the seeds that met it.
    Steps are autocorrelated: their extremes and their number remain.
    """
    keys = {key for table in tables.values() for key in table}
    metrics: dict[MetricKey, Estimate] = {}
    for key in sorted(keys, key=str):
        rows = {seed: table[key] for seed, table in tables.items() if key in table}
        if key.unit == "run":
            by_seed = {seed: row.value for seed, row in rows.items() if row.value is not None}
            trials = {seed: rows[seed].trials["run"] for seed in by_seed if rows[seed].trials}
            vacuous = next((row.vacuous for row in rows.values() if row.vacuous), None)
            metrics[key._replace(unit="seed")] = replace(estimate(by_seed, "seed", trials=trials), vacuous=vacuous)
        elif key.unit == "problem":
            by_problem = mean_by_unit(row.by_unit for row in rows.values())
            counts: Counter[str] = Counter()
            for row in rows.values():
                counts.update(row.trials)
            metrics[key] = estimate(by_problem, "problem", trials=counts)
        elif key.unit == "step":
            by_step: dict[str, float] = {}
            for seed, row in rows.items():
                by_step |= {f"{seed}/{step}": value for step, value in row.by_unit.items()}
            metrics[key] = _extremes(by_step)
    return metrics


def _extremes(by_step: Mapping[str, float]) -> Estimate:
    """Steps of training: no mean with an interval, because they are not independent."""
    values = list(by_step.values())
    return Estimate(value=None, n=len(values), unit="step", minimum=min(values), maximum=max(values), by_unit=by_step)
