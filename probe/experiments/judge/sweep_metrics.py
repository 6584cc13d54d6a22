"""Metrics of a sweep: analyse its runs, and merge them into one table over metrics, arms and conditions.

`probe.experiments.judge.criteria` judges a criterion against that table, and `probe.experiments.judge.verdict` decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probe.analysis.analyze import Analysis, analyze
from probe.analysis.metrics import Estimate, MetricKey, Metrics, by_condition, estimate, mean_by_unit, over_runs
from probe.analysis.training_runs import is_training
from probe.experiments.jobs import SweepRun
from probe.experiments.spec import Spec, SpecCondition
from probe.records.run import read_run

Analyses = Mapping[tuple[str, str], Analysis]  # {(run, condition): analysis}
# Draws of a null in the analyses for the stop rules, which use values alone: few are enough.
STOP_DRAWS = 99


def analyse_all(done: Sequence[SweepRun], **settings: Any) -> Analyses:
    """Analyse every run under every one of its conditions.

    Args:
        done: the complete runs; training runs among them must start alike.
        settings: keyword arguments of `probe.analysis.analyze.analyze`.
    """
    read = [(run, read_run(run.job.directory)) for run in done]
    records = [record for _, record in read]
    analyses: dict[tuple[str, str], Analysis] = {}
    for run, record in read:
        for condition in run.job.conditions:
            # A training run has one condition, and its records do not know the name that the spec gives it.
            named = None if is_training(record) else condition
            analyses[run.job.name, condition] = analyze(record, named, others=records, **settings).settle()
    return analyses


def sweep_metrics(spec: Spec, done: Sequence[SweepRun], analyses: Analyses) -> dict[MetricKey, Estimate]:
    """Every metric of every condition of the spec, over the seeds whose runs are complete."""
    return by_condition(
        {condition.name: _of_condition(spec, condition, done, analyses) for condition in spec.conditions}
    )


def _of_condition(spec: Spec, condition: SpecCondition, done: Sequence[SweepRun], analyses: Analyses) -> Metrics:
    """The metrics of one condition over its seeds: a row has a value for each seed (training) or prompt (replay)."""
    seeds = dict.fromkeys(run.job.seed for run in done)
    tables = {}
    for seed in seeds:
        table = _merged(spec, condition, [run for run in done if run.job.seed == seed], analyses)
        if table:
            tables[str(seed)] = table
    if not spec.resolved[condition.name].frozen:
        return over_runs(tables)
    return _pooled(list(tables.values()))


def _merged(
    spec: Spec, condition: SpecCondition, done: Sequence[SweepRun], analyses: Analyses
) -> dict[MetricKey, Estimate]:
    """The metrics of one condition and seed: of its only run (replay), or of its runs of one arm each (training)."""
    merged: dict[MetricKey, Estimate] = {}
    for run in done:
        if condition.name in run.job.conditions:
            metrics = analyses[run.job.name, condition.name].metrics
            # A metric without an arm is that of one arm, whichever runs are there.
            if spec.stand_in(condition) not in run.job.arms:
                metrics = {key: row for key, row in metrics.items() if key.arm is not None}
            merged |= metrics
    return merged


def _pooled(tables: Sequence[Metrics]) -> Metrics:
    """Metrics of a replay over several seeds: the mean of each prompt, since all seeds replay the same prompts.

    Units other than prompts are of one seed each and stay apart. Rows without values by unit (nulls) belong to one run
    and are dropped.
    """
    if len(tables) < 2:
        return tables[0] if tables else {}
    merged: dict[MetricKey, Estimate] = {}
    # A seed may lack a metric: without an update, say, it has no cosine. A dict keeps the order of the tables.
    for key in dict.fromkeys(key for table in tables for key in table):
        rows = [table[key].by_unit if key in table else {} for table in tables]
        if key.unit != "prompt":
            rows = [{f"{number}/{unit}": value for unit, value in row.items()} for number, row in enumerate(rows)]
        if any(rows):
            vacuous = next((table[key].vacuous for table in tables if key in table and table[key].vacuous), None)
            merged[key] = replace(estimate(mean_by_unit(rows), key.unit), vacuous=vacuous)
    return merged
