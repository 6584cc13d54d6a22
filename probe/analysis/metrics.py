"""All numbers of a run as one table, from which criteria are evaluated, and the list of metrics (below).

A key names the metric, the unit that its n counts, and the arm and condition unless those are the defaults: the arm
that stands for vanilla and the first condition. Names match the step records (`cos_in`, `advantage/abs_max`,
`kl/mean`, ...), in training `probe.analysis.training_runs` (`hack_final`, ...), and

    d_cos_in            cos_in of a prompt minus its mean under N2
    hack_difference     within-prompt difference of cos_S_contrib, hacked minus clean, among A > 0
    auroc               AUROC of cos_S_contrib for hacked among A > 0
    pair_sign           1 for a held-out pair with the sign of v_hack, else 0
    pull, benign, pull - benign, half - benign, contrast
                        shares of the held-out reference: `probe.analysis.pull`
    removed/TARGET      share of the gain on a target (margin, hacks, honest) that projection would remove, to first
                        order: `probe.analysis.forecast`
    kl/final            mean of kl/mean over the last quarter of the training steps
    kl/share_of_base    KL from the reference over KL from the base, both summed over steps: 1 if the reference is
                        the base, whatever its name

When a run trains, its steps are autocorrelated: the run is the unit and gives one number per metric (unit `run`).
Over several such runs the seed is the unit, and, secondary, the held-out problem (its mean over the seeds).

To add a metric that is a field of a record, name it in STEP_METRICS. To add a computed metric, compute it in
`_derived` and list its units and nulls in _DERIVED. A spec that names any other metric is refused before its sweep.
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
    """Identify an estimate: a metric, the unit that its n counts, and the arm and condition that it was measured in."""

    metric: str
    unit: str  # prompt, problem, seed, run, step or pair
    arm: str | None = None  # None: the arm that stands for vanilla
    condition: str | None = None  # None: the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One metric over n units. A field is None if the number does not exist."""

    value: float | None  # mean over units, or the statistic
    n: int
    unit: str
    interval: Interval | None = None  # 95%
    interval_90: Interval | None = None
    p: float | None = None  # two-sided, against zero
    minimum: float | None = None
    maximum: float | None = None
    nulls: Mapping[str, Measured] = field(default_factory=dict)  # keyed by the names in a criterion's `null`
    beaten_by: Sequence[str] | None = None  # trivial scores that do at least equally well; None: none measured
    by_unit: Mapping[str, float] = field(default_factory=dict)  # {unit: its value}
    trials: Mapping[str, int] = field(default_factory=dict)  # for a rate, {unit: number of outcomes}
    vacuous: str | None = None  # why the number could not have come out differently


Metrics = Mapping[MetricKey, Estimate]


def estimate(
    by_unit: Mapping[str, float],
    unit: str,
    *,
    nulls: Mapping[str, Measured] | None = None,
    trials: Mapping[str, int] | None = None,
) -> Estimate:
    """Return the mean of one value per unit.

    Args:
        by_unit: {name of the unit: value}.
        unit: kind of unit.
        nulls: tests of the same mean against directions or labels without signal.
        trials: for a rate, {unit: number of outcomes}.

    Returns:
        Mean, 95% and 90% intervals (for a rate, from `shares`), two-sided sign-flip p against zero, extremes. Equal
        values that are not rates show no variance and have no interval.
    """
    summary = _summary(tuple(by_unit.values()), tuple((trials or {}).values()))
    return replace(summary, unit=unit, nulls=nulls or {}, by_unit=by_unit, trials=trials or {})


# Cached: rewards and many other values are equal in every arm of a replay.
@lru_cache(maxsize=512)
def _summary(values: tuple[float, ...], outcomes: tuple[int, ...]) -> Estimate:
    """Compute `estimate` from the values alone."""

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
    """Return a minus b, paired by shared units."""
    both = [name for name in a.by_unit if name in b.by_unit]
    paired = estimate({name: a.by_unit[name] - b.by_unit[name] for name in both}, a.unit)
    # Equal differences between problems are evidence; seeds are too few for that, and runs of one seed still differ.
    if a.unit == "problem" and paired.interval is not None:
        return paired
    return _as_wide_as_outcomes(paired, a, b, both, both)


def unpaired_difference(a: Estimate, b: Estimate) -> Estimate:
    """Return a minus b as means of independent samples: Welch's intervals and p; n is the smaller sample size."""
    x, y = list(a.by_unit.values()), list(b.by_unit.values())
    n = min(len(x), len(y))
    if n == 0:
        return Estimate(value=None, n=0, unit=a.unit)
    unpaired = Estimate(value=float(np.mean(x) - np.mean(y)), n=n, unit=a.unit)
    if min(len(x), len(y)) > 1 and (varies(x) or varies(y)):
        from scipy import stats  # imported here: only unpaired criteria need these tests

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # raised by a side without variance
            test: Any = stats.ttest_ind(x, y, equal_var=False)
        ends = (test.confidence_interval(level) for level in (0.95, 0.9))
        interval, interval_90 = (Interval(low=float(low), high=float(high)) for low, high in ends)
        unpaired = replace(unpaired, interval=interval, interval_90=interval_90, p=float(test.pvalue))
    return _as_wide_as_outcomes(unpaired, a, b, list(a.by_unit), list(b.by_unit))


def _as_wide_as_outcomes(
    compared: Estimate, a: Estimate, b: Estimate, of_a: Sequence[str], of_b: Sequence[str]
) -> Estimate:
    """Widen a difference of rates so that its intervals span at least the sampling error of the outcomes.

    Seeds may have equal rates by chance, and the difference then shows little or no variance. With fewer than two units
    a side there is still no interval. A difference of other metrics is returned unchanged.
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
    """Return the smallest interval that contains both."""
    if interval is None:
        return other
    return Interval(low=min(interval.low, other.low), high=max(interval.high, other.high))


def mean_by_unit(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return {unit: mean of its values in the tables that have it}."""
    values_of: dict[str, list[float]] = {}
    for table in tables:
        for unit, value in table.items():
            values_of.setdefault(unit, []).append(value)
    return {unit: float(np.mean(values)) for unit, values in values_of.items()}


def by_condition(tables: Mapping[str, Metrics]) -> dict[MetricKey, Estimate]:
    """Merge {condition: metrics} into one table; the first condition also gets `condition=None`, its default."""
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
# The other step fields, flattened as in the JSON records.
_STEP_NAMES = (
    *STEP_METRICS,
    *ADVANTAGE_KEYS,
    *(f"kl/{key}" for key in KL_KEYS),
    *(f"ratio/{key}" for key in RATIO_KEYS),
)
# For steps in which the policy moves, and with it its reference, directions and penalty strength.
_MOVING = (
    *("cos_update", "hackward_frac_update", "direction_overlap", "entropy", "ratio/staleness"),
    *(f"kl/{key}" for key in KL_KEYS if key not in ("mean", "max")),
)
_PERMUTED = ("N2",)  # the nulls that draw directions, from `probe.analysis.statistics.permutation`


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """The units and nulls for which a metric exists."""

    units: tuple[str, ...]
    nulls: tuple[str, ...] = ()
    measured_alone: bool = False  # only for the arm that stands for vanilla
    is_quotient: bool = False  # has its own interval, and no value by unit


_DERIVED = {
    "d_cos_in": Availability(units=("prompt",), nulls=_PERMUTED, measured_alone=True),
    "hack_difference": Availability(units=("prompt",), nulls=("N1", *_PERMUTED), measured_alone=True),
    PURE_HACK: Availability(units=("prompt",), measured_alone=True),
    "auroc": Availability(units=("prompt",), nulls=(*_PERMUTED, "baselines"), measured_alone=True),
    "pair_sign": Availability(units=("pair",), measured_alone=True),
}
# From a replay's inner products, with an interval over prompts and pairs and no value by prompt.
_SHARES = ("pull", "benign", "pull - benign", "half - benign", "contrast")
QUOTIENT_STATISTICS = ("mean", "value", "lower95", "upper95", "n")  # statistics available for these metrics
_REMOVED = ("margin", "hacks", "honest")
_OFFLINE = dict.fromkeys(
    (*_SHARES, *(f"removed/{target}" for target in _REMOVED)),
    Availability(units=("prompt",), measured_alone=True, is_quotient=True),
)


def replay_metrics() -> dict[str, Availability]:
    """Return the metrics of a replay with frozen weights. Nulls of `cos_in` exist for the measured arm only."""
    table = {name: Availability(units=("prompt", "step")) for name in _STEP_NAMES if name not in _MOVING}
    table["cos_in"] = Availability(units=("prompt", "step"), nulls=("N1", *_PERMUTED))
    return table | _DERIVED | _OFFLINE


def training_metrics() -> dict[str, Availability]:
    """Return the metrics of runs that train: one number per run, so the seed is the unit; no nulls."""
    by_seed = Availability(units=("seed",))
    table = {name: by_seed for name, available in _DERIVED.items() if "prompt" in available.units}
    table |= dict.fromkeys(_STEP_NAMES, Availability(units=("seed", "step")))
    table |= dict.fromkeys(("kl/final", "kl/share_of_base", ELO_GAP, *MOVED.values()), by_seed)
    settings = ["", *(f"/{name}" for name in (*LOOPHOLES, NO_HINT))]
    for rate, place, setting in product(RATES, PLACES, settings):
        table[f"{rate}_{place}{setting}"] = Availability(units=("seed", "problem"))
    return table


def metrics(evidence: Evidence) -> dict[MetricKey, Estimate]:
    """Return the table of one run under one condition; keys without an arm refer to the measured arm."""
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
    """Return the measured arm's statistics that are not the plain mean of a field, and `cos_in` with its nulls."""
    by_prompt: dict[str, Estimate] = {}
    arm, cosine = evidence.measured_arm, table.get(MetricKey("cos_in", "prompt"))
    rows = evidence.of("auroc")
    area, rivals = next(iter(rows), None), [row for row in rows if row.name in TRIVIAL]
    if cosine is not None:
        nulls = _nulls(evidence, "cos_in")
        by_prompt["cos_in"] = estimate(cosine.by_unit, "prompt", nulls=nulls)
        if "N2" in nulls:
            # The mean under N2 is exactly 0; estimating it from draws would only add noise. A permutation and
            # its exchange of halves are equally likely, and the exchange reverses every oriented direction.
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
    """Return {(metric, unit): {unit: value}} for the fields of one arm's steps, by step and by prompt."""
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
    """Return {null: test} for a statistic."""
    found = {"N1": f"{metric}, {HAAR}", "N2": f"{metric}, {N2}"}
    rows = {null: evidence.get("nulls", name, evidence.measured_arm) for null, name in found.items()}
    return {null: row for null, row in rows.items() if row is not None}


def beaten_by(measurement: Measured, baselines: Iterable[Measured]) -> list[str]:
    """List the trivial scores that do at least as well as the measurement, as "name AUROC".

    If the measurement is not above chance (its interval includes .5), a baseline counts only if it differs from chance
    itself: between two uninformative scores, the larger AUROC is noise.
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
    """Return the table of one training run, from its table over prompts and steps.

    Returns:
        unit `run`: one value per metric (for a step field, its mean over the steps), the final KL, the outcome.
        unit `step`: the extremes over steps.
        unit `problem`: the rates on held-out problems.
    """
    metrics: dict[MetricKey, Estimate] = {}
    for key, row in table.items():
        if key.unit == "prompt":
            metrics[key._replace(unit="run")] = _of_one_run(row.value, vacuous=row.vacuous)
    # Second, so that the mean over steps replaces the mean over prompts for step fields.
    for key, row in table.items():
        if key.unit == "step":
            metrics[key._replace(unit="run")] = _of_one_run(row.value, vacuous=row.vacuous)
            metrics[key] = _extremes(row.by_unit)
    measured, outcome = evidence.measured_arm, evidence.outcome
    # The measured arm is looked up under a key without an arm.
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
    """Return one number of a run; `trials` is the number of outcomes of a rate."""
    return Estimate(value=value, n=1, unit="run", vacuous=vacuous, trials={"run": trials} if trials else {})


def _share_of_base(steps: Iterable[StepRecord]) -> float | None:
    """Return KL from the reference over KL from the base; None while the policy is the base, or if neither is known."""
    from_reference = from_base = 0.0
    for step in steps:
        mean = step.kl.get("mean")
        base = mean if step.reference == "base" else step.kl.get("from_base")
        if mean is not None and base is not None:
            from_reference += mean
            from_base += base
    return from_reference / from_base if from_base > 0 else None


def _final_kl(steps: Iterable[StepRecord]) -> float | None:
    """Return the mean KL over the last quarter of the steps (at least one): on-policy once the hacking policy left."""
    values = present(step.kl.get("mean") for step in steps)
    last = values[-max(1, len(values) // 4) :]
    return sum(last) / len(last) if last else None


def over_runs(tables: Mapping[str, Metrics]) -> dict[MetricKey, Estimate]:
    """Merge {seed: metrics of its training run} into one table.

    Numbers per run have the seed as their unit. A held-out problem has its mean over the seeds that met it. Steps are
    autocorrelated, so only their extremes and number are kept.
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
    """Return the extremes of training steps: no mean with an interval, because steps are not independent."""
    values = list(by_step.values())
    return Estimate(value=None, n=len(values), unit="step", minimum=min(values), maximum=max(values), by_unit=by_step)
