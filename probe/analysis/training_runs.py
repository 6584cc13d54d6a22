"""Runs that train: which of them are compared, and the metrics of one run and of several seeds.

    is_training, trains          whether it is a run of `probe train`; whether weights move in it
    siblings, starts             runs of `probe train` that differ in arm and seed alone, and their first steps
    training_run_metrics         one number a metric for a run that trains
    over_runs                    those of several seeds as one table

Steps of training are autocorrelated, so that the run is the unit of everything that was measured in its steps. Over
runs the seed is the unit, and, secondary, the held-out problem: its interval holds for other problems, not for other
seeds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import orjson

from probe.analysis.metric_table import Estimate, MetricKey, Metrics, estimate, mean_by_unit
from probe.analysis.training_outcome import TrainingOutcome
from probe.records.records import StepRecord
from probe.records.run import Run, settings_of
from probe.settings.arms import measured_arm
from probe.settings.run import TrainConfig
from probe.settings.training import ModelConfig, OptimizerConfig
from replay_pools.storage.tables import overlaid


def is_training(run: Run) -> bool:
    """Whether it is a run of `probe train`."""
    return run.verb == "train"


def trains(run: Run) -> bool:
    """Whether an optimizer steps in a run, of `probe train` or of a replay with a rate; it need not have moved."""
    return is_training(run) or ((run.settings.get("optimizer") or {}).get("lr") or 0) > 0


def siblings(run: Run, others: Iterable[Run]) -> list[Run]:
    """The runs that may be compared with a training run: the run itself first, then those of `others` with the same
    settings but for arm and seed. A replay has all its arms in one run and stands alone.
    """
    if not is_training(run):
        return [run]
    comparable = [run]
    for other in others:
        if not is_training(other) or other.path == run.path:
            continue
        if shared_settings(other.config) == shared_settings(run.config):
            comparable.append(other)
    return comparable


def shared_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Everything that shapes the numbers of a run of `probe train` but its arm and seed, from its `config.json`.

    A setting that did not exist yet when the run was made has its default: the run had no other value.
    """
    settings = overlaid(_defaults(), settings_of(config))
    weights, directions = config["base_weights_sha256"], config.get("directions")
    intervention = {**settings["intervention"], "arms": None}
    # Of an adapter that a training starts from its weights count, not where they lie.
    model = {**settings["model"], "adapter": config.get("adapter_sha256")}
    fixed = {"seed": None, "preregistered": None, "weights": weights, "directions": directions}
    return {**settings, "intervention": intervention, "model": model, **fixed}


@cache
def _defaults() -> dict[str, Any]:
    """The settings of a training that states nothing, as JSON has them."""
    # Of model, steps and learning rate every training states its own.
    plain = TrainConfig(model=ModelConfig(name=""), steps=1, optimizer=OptimizerConfig(lr=1.0))
    return orjson.loads(orjson.dumps(plain))


def starts(runs: Sequence[Run]) -> list[StepRecord]:
    """The first steps of the runs with the seed of the first run: before any update, all arms are one policy."""
    steps = []
    for run in runs:
        if run is runs[0] or _arm_and_seed(run)[1] == _arm_and_seed(runs[0])[1]:
            first = min((step.step for step in run.steps), default=0)
            steps += [step for step in run.steps if step.step == first]
    return steps


def _arm_and_seed(run: Run) -> tuple[str, str]:
    """(arm, seed) of a run of `probe train`."""
    settings = run.settings
    return str(settings["intervention"]["arms"][0]), str(settings["seed"])


def training_run_metrics(
    table: Metrics, steps: Sequence[StepRecord], arms: Sequence[str], outcome: TrainingOutcome | None
) -> dict[MetricKey, Estimate]:
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
    measured = measured_arm(arms)
    # Without an arm, the key under which the measured one is found.
    for arm in (*arms, None) if measured else arms:
        of_arm = [step for step in steps if step.arm == (arm or measured)]
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
    values = []
    for step in steps:
        mean = step.kl.get("mean")
        if mean is not None:
            values.append(mean)
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
