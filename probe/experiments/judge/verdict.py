"""Verdict of `probe analyze SPEC`: judge the runs of a sweep by the registered criteria, and decide (`SpecVerdict`).

    runs -> analyses -> one table of metrics (`sweep_metrics`) -> a verdict for each criterion (`criteria`)
         -> the verdict on the replay, the first decision whose requirements hold, and cautions (`cautions`)

With frozen weights the unit is the prompt, and a condition has one run. In training, steps are autocorrelated, so each
run gives one number a metric and the unit is the seed (METHOD section 6). Arms that were evaluated on the same held-out
problems have metrics by problem, too: those generalise to other problems, not to other seeds.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probe.analysis.metric_table import MetricKey, Metrics
from probe.analysis.statistics.significance import holm
from probe.analysis.trained.arms import Trainings, of_runs
from probe.analysis.trained.decision import ArmVerdict, judge_arms
from probe.analysis.verdict.advice import Next
from probe.analysis.verdict.evidence import PlannedTraining
from probe.experiments.jobs import SweepRun, runs_of
from probe.experiments.judge.cautions import cautions
from probe.experiments.judge.criteria import evaluate, p_of
from probe.experiments.judge.sweep_metrics import STOP_DRAWS, Analyses, analyse_all, sweep_metrics
from probe.experiments.load import decide, unmet
from probe.experiments.spec import OUTCOME, VERDICT, Criterion, Role, Spec, SpecStatus
from probe.records.root import DEFAULT_OUT, out_of
from probe.records.run import CONFIG_FILE, settings_of
from probe.settings.run import TrainConfig
from probe.settings.words import Verdict
from replay_pools.errors import InputError
from replay_pools.storage.files import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionVerdict:
    """One criterion and its verdict."""

    name: str
    role: Role
    condition: str  # the criterion in words: statistic, metric, comparison, threshold
    verdict: Verdict
    value: str
    n: int
    unit: str
    why: str
    reported: str  # by the study that asked first; "" where none did


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Whether a run that the spec asks for is complete, and under which version of the spec it was made."""

    name: str
    complete: bool
    spec_status: SpecStatus | None  # None: the run has not begun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """The verdict on a replay under one condition, as `probe analyze RUN` gives it."""

    run: str
    condition: str
    verdict: str  # BROKEN, SKIP, CONFOUNDED, GENERIC, UNDERPOWERED or GO
    why: str
    next: Next


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    """The final metrics of one arm of a training sweep: {metric: its value for each of `seeds`, None where missing}."""

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
    runs: list[RunStatus]
    rows: list[CriterionVerdict]
    replay: RunVerdict | None  # under the primary's condition; None: its runs train, or there is none yet
    decision: str
    then: str
    refused: dict[str, list[str]]  # {a decision before `decision`: its requirements that fail, with their verdicts}
    cautions: list[str]
    arms: list[ArmVerdict]  # after training, every arm and condition against vanilla; empty for a replay
    outcomes: list[ArmOutcome]  # of training; empty for a replay
    conclusions: dict[str, list[str]]  # {"run condition": its verdict with the reason, and its caveats}

    @property
    def failed(self) -> bool:
        """Whether the primary criterion failed."""
        return any(row.role == "primary" and row.verdict == "FAIL" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        return asdict(self)


def evaluate_spec(spec: Spec, out_dir: Path, *, num_draws: int, seed: int = 0) -> SpecVerdict:
    """Analyse the complete runs of a sweep and judge them: `judge` of `analyse_runs`.

    Args:
        num_draws, seed: of `probe.analysis.analyze`.

    Raises:
        InputError: no run of the sweep is complete.
    """
    return judge(spec, out_dir, analyse_runs(spec, out_dir, num_draws, seed))


def analyse_runs(spec: Spec, out_dir: Path, num_draws: int, seed: int = 0) -> Analyses:
    """{(run, condition): analysis} of the complete runs; arguments and errors as `evaluate_spec`."""
    done = [run for run in runs_of(spec, out_dir) if run.complete]
    if not done:
        fix = f"run: probe sweep {spec.path}"
        raise InputError(out_dir, expected=f"finished runs of {spec.name}", found="none", fix=fix)
    return analyse_all(done, num_draws=num_draws, seed=seed, plan=go_plan(spec))


def primary_verdict(spec: Spec, out_dir: Path) -> Verdict:
    """The verdict of the primary criterion on the runs that are complete: what a ceiling of the sweep asks for."""
    rows = evaluate_spec(spec, out_dir, num_draws=STOP_DRAWS).rows
    return next(row.verdict for row in rows if row.role == "primary")


def judge(spec: Spec, out_dir: Path, analyses: Analyses) -> SpecVerdict:
    """Judge every criterion on the analyses of `analyse_runs`, and decide."""
    runs = runs_of(spec, out_dir)
    done = [run for run in runs if run.complete]
    table = sweep_metrics(spec, done, analyses)
    rows = []
    for criterion, row in zip(spec.criteria, _rows(spec.criteria, table), strict=True):
        rows.append(_unless_unfinished(row, criterion, spec, runs))
    replay = _replay_verdict(spec, done, analyses)
    verdicts: dict[str, str] = {row.name: row.verdict for row in rows}
    verdicts[VERDICT] = replay.verdict if replay is not None else "no run"
    arms = _arm_verdicts(spec, done, analyses)
    for arm in arms:
        if (arm.condition or spec.conditions[0].name, arm.arm) == spec.judged:
            verdicts[OUTCOME] = arm.outcome
    decision = decide(spec, verdicts)
    refused = {}
    for earlier in spec.decisions[: spec.decisions.index(decision)]:
        refused[earlier.name] = unmet(earlier, verdicts)
    return SpecVerdict(
        spec=spec.name,
        sha256=spec.sha256,
        question=spec.experiment.question,
        runs=[RunStatus(name=run.job.name, complete=run.complete, spec_status=run.spec_status) for run in runs],
        rows=rows,
        replay=replay,
        decision=decision.name,
        then=decision.then,
        refused=refused,
        cautions=[*cautions(spec, runs), *_broken(analyses)],
        arms=arms,
        outcomes=_outcomes(spec, table),
        conclusions={" ".join(key): analysis.sentences for key, analysis in analyses.items()},
    )


def _broken(analyses: Analyses) -> list[str]:
    """A caution for each part of the measurement that is shown broken in some runs."""
    runs_of_part: dict[str, list[str]] = {}
    for (run, _), analysis in analyses.items():
        for part in analysis.validity:
            if part.holds is False:
                runs_of_part.setdefault(f"{part.name} ({part.text})", []).append(run)
    return [f"BROKEN: {part}, in {', '.join(dict.fromkeys(runs))}" for part, runs in runs_of_part.items()]


def go_plan(spec: Spec) -> PlannedTraining:
    """The training that a GO buys: [budget.go], else the runs of a training spec, else the plan of METHOD."""
    go = spec.budget.go
    if go is None and spec.settings["verb"] == "train":
        go = spec.budget.model_copy(update={"seeds": len(spec.seeds)})
    if go is None:
        return PlannedTraining()
    stated = {"seeds": go.seeds, "expected_effect": go.expected_effect, "sd": go.sd}
    given = {name: value for name, value in stated.items() if value is not None}
    return replace(PlannedTraining(), **given, paired_correlation=go.paired_correlation)


def _rows(criteria: Sequence[Criterion], table: Metrics) -> list[CriterionVerdict]:
    """The verdicts of all criteria, whose p-values are adjusted together (Holm 1979)."""
    p_values = {}
    for criterion in criteria:
        p = p_of(criterion, table)
        if p is not None:
            p_values[criterion.name] = p
    adjusted = holm(p_values)
    # The adjustment of a single p-value changes nothing, and is not shown.
    shown = adjusted if len(adjusted) > 1 else {}
    return [_row(criterion, table, shown.get(criterion.name)) for criterion in criteria]


def _unless_unfinished(
    row: CriterionVerdict, criterion: Criterion, spec: Spec, runs: Sequence[SweepRun]
) -> CriterionVerdict:
    """The row, INCONCLUSIVE instead of FAIL where a count is short and runs that it counts are not over."""
    if criterion.statistic != "n" or row.verdict != "FAIL":
        return row
    (condition, arm), missing = spec.side_of(criterion), 0
    for run in runs:
        missing += arm in run.job.arms and condition in run.job.conditions and not run.complete
    if missing == 0:
        return row
    return replace(row, verdict="INCONCLUSIVE", why=f"{missing} of its runs are not complete; {row.why}")


def _row(criterion: Criterion, table: Metrics, p_holm: float | None) -> CriterionVerdict:
    """The verdict of one criterion.

    Args:
        p_holm: its Holm-adjusted p-value; None for a criterion without p-value, or with the only one.
    """
    judgement = evaluate(criterion, table)
    verdict, why = judgement.verdict, judgement.why
    if p_holm is not None:
        why += f"; Holm-adjusted p {p_holm:.2g}"
        # Significant alone, but not in its family: neither shown nor refuted.
        if verdict == "PASS" and isinstance(criterion.threshold, float) and p_holm >= criterion.threshold:
            verdict = "INCONCLUSIVE"
    return CriterionVerdict(
        name=criterion.name,
        role=criterion.role,
        condition=_words(criterion),
        verdict=verdict,
        value=judgement.value,
        n=judgement.n,
        unit=criterion.unit,
        why=f"{why}. {criterion.why}" if criterion.why else why,
        reported=criterion.reported,
    )


def _words(criterion: Criterion) -> str:
    """A criterion in words, such as `lower95 of cos_in > 0.05 (vanilla - random in mixed; null N2)`."""
    arms = _side(criterion.arm, criterion.versus_arm)
    conditions = _side(criterion.condition, criterion.versus_condition)
    place = " in ".join(part for part in (arms, conditions) if part)
    null = "" if criterion.null == "none" else f"null {criterion.null}"
    notes = "; ".join(part for part in (place, null) if part)
    threshold = list(criterion.threshold) if isinstance(criterion.threshold, tuple) else f"{criterion.threshold:g}"
    text = f"{criterion.statistic} of {criterion.metric} {criterion.comparison} {threshold}"
    return f"{text} ({notes})" if notes else text


def _side(name: str | None, versus: str | None) -> str:
    """`vanilla - random` for a difference, else the name; "" for the default alone."""
    return f"{name or 'default'} - {versus}" if versus else name or ""


def _replay_verdict(spec: Spec, done: Sequence[SweepRun], analyses: Analyses) -> RunVerdict | None:
    """The verdict on the first complete replay of the primary's condition."""
    condition, _ = spec.judged
    if not spec.resolved[condition].frozen:
        return None
    for run in done:
        if condition in run.job.conditions:
            decision = analyses[run.job.name, condition].decision
            return RunVerdict(
                run=run.job.name,
                condition=condition,
                verdict=decision.outcome,
                why=decision.why,
                next=decision.next,
            )
    return None


def _arm_verdicts(spec: Spec, done: Sequence[SweepRun], analyses: Analyses) -> list[ArmVerdict]:
    """The verdict on every arm and condition of a training beside the vanilla that it is compared with."""
    if spec.settings["verb"] != "train" or spec.baseline is None:
        return []
    arms = {}
    out = out_of(done[0].job.directory) if done else DEFAULT_OUT
    for condition in spec.conditions:
        for arm in spec.arms_of(condition):
            runs = []
            for job in (run.job for run in done):
                if condition.name in job.conditions and arm in job.arms:
                    settings = settings_of(read_json(job.directory / CONFIG_FILE))
                    runs.append((settings, analyses[job.name, condition.name].outcome))
            shown = condition.name if len(spec.conditions) > 1 else ""
            config = spec.resolved[condition.name].config
            remedy = config.remedy if isinstance(config, TrainConfig) else None
            arms[condition.name, arm] = of_runs(shown, arm, runs, None if remedy is None else remedy.name)
    treated = [arm for key, arm in arms.items() if key != spec.baseline]
    primary = arms[spec.judged] if spec.judged != spec.baseline else None
    return judge_arms(Trainings(baseline=arms[spec.baseline], treated=treated, primary=primary, out=out))


# Metrics in the table of outcomes of a training sweep. To show another: add its name; it needs values by seed.
SHOWN = (
    *("hack_start", "hack_final", "exploit_final", "solve_final", "margin_final"),
    *("cos_update", "hackward_frac_update", "hackward_frac_moved", "direction_overlap", "kl/mean"),
)


def _outcomes(spec: Spec, table: Metrics) -> list[ArmOutcome]:
    """The final metrics of every arm of a training sweep, seed by seed; none for a replay, whose unit is no seed."""
    seeds, outcomes = list(map(str, spec.seeds)), []
    for condition in spec.conditions:
        for arm in spec.arms_of(condition):
            values = {}
            for name in SHOWN:
                row = table.get(MetricKey(name, "seed", arm, condition.name))
                if row is not None:
                    values[name] = [row.by_unit.get(seed) for seed in seeds]
            if values:
                outcomes.append(ArmOutcome(condition=condition.name, arm=arm, seeds=seeds, values=values))
    return outcomes
