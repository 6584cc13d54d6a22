"""The runs of a sweep, analysed and merged into one table of metrics: over arms, seeds and conditions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.analysis.analyze import Analysis, analyze
from probe.analysis.metric_table import Estimate, MetricKey, Metrics, by_condition, estimate, mean_by_unit
from probe.analysis.verdict.run_level import is_training, over_runs
from probe.experiments.jobs import SweepRun, runs_of
from probe.experiments.spec import Spec, SpecCondition
from probe.records.run import read_run

Analyses = Mapping[tuple[str, str], Analysis]  # by run and condition
STOP_DRAWS = 99  # the value of a metric needs no fine null


def analyse_all(done: Sequence[SweepRun], **settings: Any) -> Analyses:
    """{(run, condition): analysis}; a run that trains has one condition, whatever the spec calls it."""
    read = [(run, read_run(run.job.directory)) for run in done]
    others = [one for _, one in read]
    return {
        (run.job.name, c): analyze(one, None if is_training(one) else c, others=others, **settings)
        for run, one in read
        for c in run.job.conditions
    }


def sweep_metrics(spec: Spec, done: Sequence[SweepRun], analyses: Analyses) -> dict[MetricKey, Estimate]:
    """Every metric of the spec's conditions over the seeds that are there."""
    return by_condition({c.name: _of_condition(spec, c, done, analyses) for c in spec.conditions})


def block_value(spec: Spec, seed: int, out_dir: Path) -> float | None:
    """The primary's value (or difference) in the block of one seed, minus its threshold; None when it is not there.

    What the stop rules look at: a mean over the prompts of the block, without its interval.
    """
    done = [run for run in runs_of(spec, out_dir) if run.complete and run.job.seed == seed]
    analyses = analyse_all(done, num_draws=STOP_DRAWS, seed=seed)
    table = by_condition({c.name: _merged(c, done, analyses) for c in spec.conditions})
    own = spec.primary
    value = _value(table, own.metric, own.arm, own.condition)
    if own.versus_arm is not None or own.versus_condition is not None:
        rival = _value(table, own.metric, own.versus_arm or own.arm, own.versus_condition or own.condition)
        value = None if value is None or rival is None else value - rival
    if value is None or isinstance(own.threshold, tuple):
        return value
    return value - (0.0 if own.statistic == "p" else own.threshold)


def _value(table: Metrics, metric: str, arm: str | None, condition: str | None) -> float | None:
    """Of a training run, or over the prompts of a replay."""
    found = [
        row for unit in ("run", "prompt") if (row := table.get(MetricKey(metric, unit, arm, condition))) is not None
    ]
    return found[0].value if found else None


def _of_condition(spec: Spec, condition: SpecCondition, done: Sequence[SweepRun], analyses: Analyses) -> Metrics:
    """The metrics of one condition over its seeds."""
    seeds = dict.fromkeys(run.job.seed for run in done)
    tables = {str(s): _merged(condition, [run for run in done if run.job.seed == s], analyses) for s in seeds}
    tables = {name: table for name, table in tables.items() if table}
    if not spec.resolved[condition.name].frozen:
        return over_runs(tables)
    return _pooled(list(tables.values()))


def _merged(condition: SpecCondition, done: Sequence[SweepRun], analyses: Analyses) -> dict[MetricKey, Estimate]:
    """The metrics of one condition and seed: of its one run, or of its runs of one arm each, the first arm first."""
    found: dict[MetricKey, Estimate] = {}
    for run in done:
        if condition.name in run.job.conditions:
            found = analyses[run.job.name, condition.name].metrics | found
    return found


def _pooled(tables: Sequence[Metrics]) -> Metrics:
    """Prompt means over several seeds of a replay, which share their prompts. Nulls belong to one run and stay out."""
    if len(tables) < 2:
        return tables[0] if tables else {}
    found: dict[MetricKey, Estimate] = {}
    for key in tables[0]:
        rows = [table[key].by_unit if key in table else {} for table in tables]
        if key.unit != "prompt":
            rows = [{f"{number}/{unit}": value for unit, value in row.items()} for number, row in enumerate(rows)]
        if any(rows):
            found[key] = estimate(mean_by_unit(rows), key.unit)
    return found
