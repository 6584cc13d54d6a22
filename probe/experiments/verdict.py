"""`probe analyze SPEC`: the runs of a sweep against the registered criteria, to one decision (`SpecVerdict`).

`sweep_metrics` merges the analyses of the runs into one table of metrics, `criteria` judges one criterion against that
table, and this file judges the spec: all criteria, the rules of METHOD, the decision and its cautions.

Frozen weights: the prompt is the unit, one run a condition. Training: steps are autocorrelated, so that each run gives
one number a metric and the seed is the unit (METHOD section 6); beside it, for arms that were evaluated on the same
held-out problems, the problem is: it generalises to other problems, not to other seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probe.analysis.metric_table import MetricKey, Metrics
from probe.analysis.statistics.significance import holm
from probe.analysis.verdict.evidence import PlannedTraining, VerdictRow
from probe.analysis.verdict.run_level import shared_settings
from probe.experiments.criteria import evaluate, p_of
from probe.experiments.jobs import SweepRun, runs_of
from probe.experiments.prereg import decide, unmet
from probe.experiments.spec import RULES, Criterion, Role, Spec, SpecStatus
from probe.experiments.sweep_metrics import Analyses, analyse_all, sweep_metrics
from probe.experiments.vacuity import read_foreseen
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, settings_of
from probe.settings.arms import ARMS
from probe.settings.words import Verdict
from replay_pools.errors import InputError
from replay_pools.files import read_json
from replay_pools.tables import flat


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionVerdict:
    """One criterion and its verdict."""

    name: str
    role: Role
    condition: str  # what was asked, in words
    verdict: Verdict
    value: str
    n: int
    unit: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What there is of one run that the spec asks for."""

    name: str
    complete: bool
    spec_status: SpecStatus | None  # None: nothing is there


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    """What one arm of a training sweep ended in: {metric: its value in every seed, as far as there is one}."""

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
    rules: list[VerdictRow]  # METHOD section 7, under the primary's condition
    rules_run: str
    decision: str
    then: str
    refused: dict[str, list[str]]  # {a decision before it: its requirements that do not hold, with their verdicts}
    cautions: list[str]
    outcomes: list[ArmOutcome]  # of training; empty for a replay
    conclusions: dict[str, list[str]]  # {run: what its records say in words}

    @property
    def failed(self) -> bool:
        """Whether the primary criterion failed."""
        return any(row.role == "primary" and row.verdict == "FAIL" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        return asdict(self)


def evaluate_spec(
    spec: Spec, out_dir: Path, *, num_draws: int, seed: int = 0, regrade_agreement: float | None = None
) -> SpecVerdict:
    """Every criterion on the runs that are there, and the decision.

    Args:
        num_draws, seed, regrade_agreement: of `probe.analysis.analyze`.

    Raises:
        InputError: no run of the sweep is complete.
    """
    return judge(spec, out_dir, analyse_runs(spec, out_dir, num_draws, seed, regrade_agreement))


def analyse_runs(
    spec: Spec, out_dir: Path, num_draws: int, seed: int = 0, regrade_agreement: float | None = None
) -> Analyses:
    """{(run, condition): analysis} of the runs that are there; arguments and errors as `evaluate_spec`."""
    done = [run for run in runs_of(spec, out_dir) if run.complete]
    if not done:
        fix = f"run: probe sweep {spec.path}"
        raise InputError(out_dir, expected=f"finished runs of {spec.name}", found="none", fix=fix)
    settings = {"num_draws": num_draws, "seed": seed, "plan": go_plan(spec), "regrade_agreement": regrade_agreement}
    return analyse_all(done, **settings)


def judge(spec: Spec, out_dir: Path, analyses: Analyses) -> SpecVerdict:
    """Every criterion on the analyses of `analyse_runs`, and the decision."""
    runs = runs_of(spec, out_dir)
    done = [run for run in runs if run.complete]
    table = sweep_metrics(spec, done, analyses)
    vacuous = read_foreseen(spec, out_dir)
    rows = [_unless_vacuous(row, vacuous) for row in _rows(spec.criteria, table)]
    rules_of = _rules_of(spec, done)
    rules = analyses[rules_of].rules if rules_of else []
    verdicts: dict[str, Verdict] = {row.name: row.verdict for row in rows}
    verdicts |= {check.row: check.verdict for check in rules}
    for name in RULES:
        verdicts.setdefault(name, "INCONCLUSIVE")
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
        rules=rules,
        rules_run=" ".join(rules_of or ()),
        decision=decision.name,
        then=decision.then,
        refused=refused,
        cautions=_cautions(spec, runs),
        outcomes=_outcomes(spec, table),
        conclusions={" ".join(key): analysis.conclusions for key, analysis in analyses.items()},
    )


def go_plan(spec: Spec) -> PlannedTraining:
    """What rule R7 judges: what a GO buys, in a training spec its own runs; METHOD's plan where nothing is stated."""
    go = spec.budget.go
    if go is None and spec.settings["verb"] == "train":
        go = spec.budget.model_copy(update={"seeds": len(spec.seeds)})
    if go is None:
        return PlannedTraining()
    stated = {"seeds": go.seeds, "expected_effect": go.expected_effect, "sd": go.sd}
    given = {name: value for name, value in stated.items() if value is not None}
    return replace(PlannedTraining(stated=True), **given, paired_correlation=go.paired_correlation)


def _rows(criteria: Sequence[Criterion], table: Metrics) -> list[CriterionVerdict]:
    """The verdicts; p-values of the registered family are adjusted together (Holm)."""
    p_values = {}
    for criterion in criteria:
        p = p_of(criterion, table)
        if p is not None:
            p_values[criterion.name] = p
    adjusted = holm(p_values)
    return [
        _row(criterion, table, adjusted.get(criterion.name) if len(adjusted) > 1 else None) for criterion in criteria
    ]


def _unless_vacuous(row: CriterionVerdict, vacuous: Mapping[str, str]) -> CriterionVerdict:
    """What passes and could not have failed shows nothing."""
    key = f"criteria.{row.name}"
    why = next((why for where, why in vacuous.items() if where == key or where.startswith(f"{key}.")), None)
    return row if why is None or row.verdict != "PASS" else replace(row, verdict="VACUOUS", why=f"{why}; {row.why}")


def _row(criterion: Criterion, table: Metrics, p_holm: float | None) -> CriterionVerdict:
    judgement = evaluate(criterion, table)
    verdict, why = judgement.verdict, judgement.why
    if p_holm is not None:
        why += f"; Holm-adjusted p {p_holm:.2g}"
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
    )


def _words(criterion: Criterion) -> str:
    """`lower95 of cos_in > 0.05 (vanilla - random, in mixed; null N2)`."""
    arms = _side(criterion.arm, criterion.versus_arm)
    conditions = _side(criterion.condition, criterion.versus_condition)
    place = " in ".join(part for part in (arms, conditions) if part)
    null = "" if criterion.null == "none" else f"null {criterion.null}"
    notes = "; ".join(part for part in (place, null) if part)
    threshold = list(criterion.threshold) if isinstance(criterion.threshold, tuple) else f"{criterion.threshold:g}"
    text = f"{criterion.statistic} of {criterion.metric} {criterion.comparison} {threshold}"
    return f"{text} ({notes})" if notes else text


def _side(name: str | None, versus: str | None) -> str:
    return f"{name or 'default'} - {versus}" if versus else name or ""


def _rules_of(spec: Spec, done: Sequence[SweepRun]) -> tuple[str, str] | None:
    """(run, condition) that the rules are read from: the primary's condition, the first seed that is there; of training
    runs, which have one arm each, one that projects, so that its gate can be judged.
    """
    condition = spec.primary.condition or spec.conditions[0].name
    jobs = [run.job for run in done if condition in run.job.conditions]
    projects = [job for job in jobs if any(ARMS[arm].projects for arm in job.arms)]
    job = next(iter(projects or jobs), None)
    return None if job is None else (job.name, condition)


SHOWN = (  # of training, in the table of outcomes
    *("hack_start", "hack_final", "exploit_final", "solve_final", "margin_final"),
    *("cos_update", "hackward_frac_update", "hackward_frac_moved", "direction_overlap", "kl/mean"),
)


def _outcomes(spec: Spec, table: Metrics) -> list[ArmOutcome]:
    """What every arm of a training sweep ended in, seed by seed."""
    seeds, outcomes = list(map(str, spec.seeds)), []
    for condition in spec.conditions:
        for arm in spec.arms_of(condition):
            rows = {name: table.get(MetricKey(name, "seed", arm, condition.name)) for name in SHOWN}
            values = {name: [row.by_unit.get(seed) for seed in seeds] for name, row in rows.items() if row is not None}
            if values:
                outcomes.append(ArmOutcome(condition=condition.name, arm=arm, seeds=seeds, values=values))
    return outcomes


def _cautions(spec: Spec, runs: Sequence[SweepRun]) -> list[str]:
    """What has to be said beside every verdict: runs that are missing, stopped early, or older than the criteria."""
    missing = [run.job.name for run in runs if not run.complete]
    edited = [run.job.name for run in runs if run.spec_status not in (None, "frozen")]
    manifests = {run.job.name: read_json(run.job.directory / MANIFEST_FILE) for run in runs if run.complete}
    cautions = [
        f"STOPPED: {name}, by a tripwire ({manifest['stopped']}): its final numbers are of that step"
        for name, manifest in manifests.items()
        if manifest.get("stopped")
    ]
    for condition in spec.conditions:
        configs = []
        for run in runs:
            if run.complete and condition.name in run.job.conditions:
                configs.append(read_json(run.job.directory / CONFIG_FILE))
        cautions += _mixed(configs, condition.name)
    if missing:
        cautions.append(f"{len(missing)} of {len(runs)} runs are not complete: {', '.join(missing)}")
    if edited:
        cautions.append(
            f"EDITED: {', '.join(edited)} ran under another version of {spec.path.name}; these criteria are younger "
            "than the data and confirm nothing"
        )
    return cautions


def _mixed(configs: Sequence[dict[str, Any]], condition: str) -> list[str]:
    """Training runs of one condition that differ in more than arm and seed: a preset that was edited in between."""
    settings = [flat(shared_settings(config)) for config in configs if settings_of(config)["verb"] == "train"]
    different = {key for table in settings for key in table if table[key] != settings[0].get(key)}
    if not different:
        return []
    return [f"MIXED: the runs of {condition} differ in {', '.join(sorted(different))}: arms cannot be compared"]
