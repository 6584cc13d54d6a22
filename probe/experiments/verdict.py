"""Verdict of `probe analyze SPEC`: judge the runs of a sweep by the registered criteria, and decide (`SpecVerdict`).

    runs -> analyses -> one table over metrics, arms and conditions -> a verdict for each criterion (`criteria`)
         -> the verdict on the replay, the first decision with all requirements met, and cautions (`cautions`)

With frozen weights the unit is the prompt, and a condition has one run. In training, steps are autocorrelated, so each
run gives one number per metric and the unit is the seed (METHOD section 6). Arms evaluated on the same held-out
problems also have metrics by problem, which generalise to other problems but not to other seeds.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probe.analysis.analyze import Analysis, analyze
from probe.analysis.horizon import cautions_of
from probe.analysis.metrics import Estimate, MetricKey, Metrics, by_condition, estimate, mean_by_unit, over_runs
from probe.analysis.statistics.significance import holm
from probe.analysis.training_runs import is_training
from probe.analysis.verdict.trained import judge_arms
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings, of_runs, same_records
from probe.analysis.verdict.verdict import Verdict
from probe.experiments.cautions import cautions
from probe.experiments.criteria import evaluate, p_of
from probe.experiments.jobs import Job, runs_of
from probe.experiments.load import decide, unmet
from probe.experiments.spec import OUTCOME, VERDICT, Criterion, Spec, SpecCondition
from probe.records.run import DEFAULT_OUT, out_of, read_run
from probe.settings.run import TrainConfig
from probe.settings.words import Word
from replay_pools.base.errors import InputError

Analyses = Mapping[tuple[str, str], Analysis]  # {(run, condition): analysis}
# Draws of each null in the analyses for a ceiling: few are enough, because a ceiling uses values and no nulls.
STOP_DRAWS = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    """Final metrics of one arm of a training sweep: {metric: one value for each of `seeds`, None if missing}."""

    condition: str
    arm: str
    seeds: list[str]
    values: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecVerdict:
    """The verdict of an experiment."""

    spec: str
    sha256: str
    question: str
    runs: list[Job]
    verdict: Verdict  # the decision; findings are the criteria, caveats say why no earlier decision was taken
    replay: Verdict | None  # on the run under the primary's condition; None: its runs train, or none is complete
    arms: list[Verdict]  # every trained arm and condition against vanilla; empty for a replay
    trained: list[TrainedArm]  # the arms that `arms` judges, with the baseline first
    outcomes: list[ArmOutcome]  # empty for a replay

    @property
    def primary(self) -> Word:
        """Verdict on the primary criterion."""
        return next(finding.says for finding in self.verdict.findings if finding.role == "primary")

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and None; a run has its progress and the version of its spec."""
        runs = [{"name": run.name, "complete": run.complete, "spec_status": run.spec_status} for run in self.runs]
        plain = asdict(replace(self, runs=[], trained=[])) | {"runs": runs}
        del plain["trained"]
        return plain


def evaluate_spec(spec: Spec, out_dir: Path, *, num_draws: int, seed: int = 0) -> SpecVerdict:
    """Analyse the complete runs of a sweep and judge them: `judge` of `analyse_runs`.

    Args:
        num_draws, seed: of `probe.analysis.analyze`.

    Raises:
        InputError: no run of the sweep is complete.
    """
    return judge(spec, out_dir, analyse_runs(spec, out_dir, num_draws, seed))


def analyse_runs(spec: Spec, out_dir: Path, num_draws: int, seed: int = 0) -> Analyses:
    """Return {(run, condition): analysis} of the complete runs; arguments and errors as `evaluate_spec`."""
    done = [run for run in runs_of(spec, out_dir) if run.complete]
    if not done:
        fix = f"run: probe spec sweep {shlex.quote(str(spec.path))}"
        raise InputError(out_dir, expected=f"finished runs of {spec.name}", found="none", fix=fix)
    return analyse_all(done, num_draws=num_draws, seed=seed)


def verdict_of(criterion: Criterion, spec: Spec, out_dir: Path) -> Word:
    """Return the verdict of one criterion on the complete runs, for a ceiling of the sweep."""
    return evaluate_spec(spec, out_dir, num_draws=STOP_DRAWS).verdict.finding(criterion.name).says


def judge(spec: Spec, out_dir: Path, analyses: Analyses) -> SpecVerdict:
    """Judge every criterion on the analyses of `analyse_runs`, and choose the decision."""
    runs = runs_of(spec, out_dir)
    done = [run for run in runs if run.complete]
    table = sweep_metrics(spec, done, analyses)
    p_values = {criterion.name: p_of(criterion, table) for criterion in spec.criteria}
    adjusted = holm({name: p for name, p in p_values.items() if p is not None})
    findings, cells = [], _trained(spec, done, analyses)
    for criterion in spec.criteria:
        # Adjusting a single p-value changes nothing, so it is not shown.
        finding = evaluate(criterion, table, adjusted.get(criterion.name) if len(adjusted) > 1 else None)
        left, right = (cells.get(side) for side in spec.sides_of(criterion))
        if left is not None and right is not None and left is not right and (seeds := same_records(left, right)):
            text = f"both sides have the same records in seeds {', '.join(map(str, seeds))}: nothing was compared"
            finding = replace(finding, says=Word.VACUOUS, text=text, number=None)
        elif criterion.statistic == "n" and finding.says is Word.FAIL:
            ((condition, arm), _), missing = spec.sides_of(criterion), 0
            for run in runs:
                missing += arm in run.arms and condition in run.conditions and not run.complete
            if missing:  # the count may still rise
                text = f"{missing} of its runs are not complete; {finding.text}"
                finding = replace(finding, says=Word.INCONCLUSIVE, text=text)
        findings.append(finding)
    (condition, _), replay = spec.judged, None
    if spec.resolved[condition].frozen:
        names = (run.name for run in done if condition in run.conditions)
        replay = next((analyses[name, condition].verdict for name in names), None)
    trained, arms = [*cells.values()], []
    baseline = None if spec.baseline is None else cells.get(spec.baseline)
    if baseline is not None:
        primary = cells[spec.judged] if spec.judged != spec.baseline else None
        out = out_of(done[0].directory) if done else DEFAULT_OUT
        arms = judge_arms(Trainings(baseline=baseline, treated=trained[1:], primary=primary, out=out))
    words: dict[str, str] = {finding.name: finding.says for finding in findings}
    words[VERDICT] = replay.word if replay is not None else "no run"
    for arm in arms:
        if (arm.about["condition"] or spec.conditions[0].name, arm.about["arm"]) == spec.judged:
            words[OUTCOME] = arm.word
    decision, caveats = decide(spec, words), []
    for earlier in spec.decisions[: spec.decisions.index(decision)]:
        caveats.append(f"not {earlier.name}: {', '.join(unmet(earlier, words))}")
    return SpecVerdict(
        spec=spec.name,
        sha256=spec.sha256,
        question=spec.experiment.question,
        runs=runs,
        verdict=Verdict(
            about={"spec": spec.name},
            word=decision.name,
            sentence=decision.then,
            findings=findings,
            caveats=[*caveats, *cautions_of(trained, baseline), *cautions(spec, runs), *_broken(analyses)],
        ),
        replay=replay,
        arms=arms,
        trained=trained,
        outcomes=_outcomes(spec, table),
    )


def _broken(analyses: Analyses) -> list[str]:
    """Return a caution for each part of the measurement that is broken in some runs."""
    runs_of_part: dict[str, list[str]] = {}
    for (run, _), analysis in analyses.items():
        for part in analysis.validity:
            if part.says is Word.BROKEN:
                runs_of_part.setdefault(f"{part.name} ({part.text})", []).append(run)
    return [f"BROKEN: {part}, in {', '.join(dict.fromkeys(runs))}" for part, runs in runs_of_part.items()]


def _trained(spec: Spec, done: Sequence[Job], analyses: Analyses) -> dict[tuple[str, str], TrainedArm]:
    """Return {(condition, arm): its runs} of a training, with the baseline first."""
    if spec.settings["verb"] != "train":
        return {}
    arms = {}
    for condition in spec.conditions:
        for arm in spec.arms_of(condition):
            runs = []
            for run in done:
                if condition.name in run.conditions and arm in run.arms:
                    runs.append(analyses[run.name, condition.name])
            shown = condition.name if len(spec.conditions) > 1 else ""
            config = spec.resolved[condition.name].config
            remedy = config.remedy if isinstance(config, TrainConfig) else None
            arms[condition.name, arm] = of_runs(shown, arm, runs, None if remedy is None else remedy.name)
    return {cell: arms[cell] for cell in sorted(arms, key=lambda cell: cell != spec.baseline)}


# Metrics in the outcomes table of a training sweep. To show another, add its name; it needs values by seed.
SHOWN = (
    *("hack_start", "hack_final", "exploit_final", "solve_final", "margin_final"),
    *("cos_update", "hackward_frac_update", "hackward_frac_moved", "direction_overlap", "kl/mean"),
)


def _outcomes(spec: Spec, table: Metrics) -> list[ArmOutcome]:
    """Return the final metrics of every arm of a training sweep by seed; empty for a replay."""
    outcomes = []
    for condition in spec.conditions:
        seeds = list(map(str, spec.seeds_of(condition)))
        for arm in spec.arms_of(condition):
            values = {}
            for name in SHOWN:
                row = table.get(MetricKey(name, "seed", arm, condition.name))
                if row is not None:
                    values[name] = [row.by_unit.get(seed) for seed in seeds]
            if values:
                outcomes.append(ArmOutcome(condition=condition.name, arm=arm, seeds=seeds, values=values))
    return outcomes


def analyse_all(done: Sequence[Job], **settings: Any) -> Analyses:
    """Analyse every run under each of its conditions.

    Args:
        done: the complete runs; training runs must start from the same state.
        settings: keyword arguments of `probe.analysis.analyze.analyze`.
    """
    read = [(run, read_run(run.directory)) for run in done]
    records = [record for _, record in read]
    analyses: dict[tuple[str, str], Analysis] = {}
    for run, record in read:
        for condition in run.conditions:
            # A training run has one condition, and its records lack the spec's name for it.
            named = None if is_training(record) else condition
            analyses[run.name, condition] = analyze(record, named, others=records, **settings).settle()
    return analyses


def sweep_metrics(spec: Spec, done: Sequence[Job], analyses: Analyses) -> dict[MetricKey, Estimate]:
    """Return every metric of every condition of the spec, over the seeds with complete runs."""
    return by_condition(
        {condition.name: _of_condition(spec, condition, done, analyses) for condition in spec.conditions}
    )


def _of_condition(spec: Spec, condition: SpecCondition, done: Sequence[Job], analyses: Analyses) -> Metrics:
    """Return the metrics of one condition over its seeds, with a value for each seed (training) or prompt (replay).

    A seed has one run of the condition (replay), or one for each arm (training).
    """
    tables: dict[str, dict[MetricKey, Estimate]] = {}
    for run in done:
        if condition.name in run.conditions:
            metrics = analyses[run.name, condition.name].metrics
            # A metric without an arm always comes from the same arm, whichever runs exist.
            if spec.stand_in(condition) not in run.arms:
                metrics = {key: row for key, row in metrics.items() if key.arm is not None}
            tables.setdefault(str(run.seed), {}).update(metrics)
    tables = {seed: table for seed, table in tables.items() if table}
    return _pooled(list(tables.values())) if spec.resolved[condition.name].frozen else over_runs(tables)


def _pooled(tables: Sequence[Metrics]) -> Metrics:
    """Pool metrics of a replay over seeds: the mean of each prompt, since all seeds replay the same prompts.

    Other units belong to one seed each and stay separate. Rows without values by unit (nulls) belong to one run and are
    dropped.
    """
    if len(tables) < 2:
        return tables[0] if tables else {}
    merged: dict[MetricKey, Estimate] = {}
    # A seed may lack a metric (no cosine without an update). A dict keeps the order of the tables.
    for key in dict.fromkeys(key for table in tables for key in table):
        rows = [table[key].by_unit if key in table else {} for table in tables]
        if key.unit != "prompt":
            rows = [{f"{number}/{unit}": value for unit, value in row.items()} for number, row in enumerate(rows)]
        if any(rows):
            vacuous = next((table[key].vacuous for table in tables if key in table and table[key].vacuous), None)
            merged[key] = replace(estimate(mean_by_unit(rows), key.unit), vacuous=vacuous)
    return merged
