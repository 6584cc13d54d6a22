"""`probe analyze SPEC`: the runs of a sweep against the criteria that were registered, to one decision.

Frozen weights: the prompt is the unit, one run a condition. Training: steps are autocorrelated, so that each seed gives
one number a metric and the seed is the unit (METHOD section 6).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probe.analysis.analyze import Analysis, analyze
from probe.analysis.criteria import evaluate, p_of
from probe.analysis.evidence import Check, Plan
from probe.analysis.metrics import Estimate, Key, Metrics, by_condition, estimate, over_runs
from probe.analysis.multiplicity import holm
from probe.jobs import SweepRun, frozen, runs_of
from probe.prereg import decide, unmet
from probe.runs import read_run
from probe.spec import RULES, Condition, Criterion, Role, Spec, SpecStatus
from probe.vocabulary import Verdict
from replay_pools.errors import InputError

Analyses = dict[tuple[str, str], Analysis]
STOP_DRAWS = 99  # the value of a metric needs no fine null


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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
class RunState:
    """What there is of one run that the spec asks for."""

    name: str
    complete: bool
    spec_status: SpecStatus | None  # None: nothing is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The verdict of an experiment."""

    spec: str
    sha256: str
    question: str
    runs: list[RunState]
    rows: list[Row]
    rules: list[Check]  # METHOD section 7, under the primary's condition
    rules_run: str
    decision: str
    then: str
    refused: dict[str, list[str]]  # {a decision before it: its requirements that do not hold, with their verdicts}
    cautions: list[str]
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
) -> Evaluation:
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
    return _analyses(done, **settings)


def judge(spec: Spec, out_dir: Path, analyses: Analyses) -> Evaluation:
    """Every criterion on the analyses of `analyse_runs`, and the decision."""
    runs = runs_of(spec, out_dir)
    done = [run for run in runs if run.complete]
    table = by_condition({c.name: _table(spec, c, done, analyses) for c in spec.conditions})
    rows = _rows(spec.criteria, table)
    rules_of = _rules_of(spec, done)
    rules = analyses[rules_of].rules if rules_of else []
    verdicts: dict[str, Verdict] = {row.name: row.verdict for row in rows}
    verdicts |= {check.row: check.verdict for check in rules}
    for name in RULES:
        verdicts.setdefault(name, "INCONCLUSIVE")
    decision = decide(spec, verdicts)
    return Evaluation(
        spec=spec.name,
        sha256=spec.sha256,
        question=spec.experiment.question,
        runs=[RunState(name=r.job.name, complete=r.complete, spec_status=r.spec_status) for r in runs],
        rows=rows,
        rules=rules,
        rules_run=" ".join(rules_of or ()),
        decision=decision.name,
        then=decision.then,
        refused={other.name: unmet(other, verdicts) for other in spec.decisions[: spec.decisions.index(decision)]},
        cautions=_cautions(spec, runs),
        conclusions={" ".join(key): analysis.conclusions for key, analysis in analyses.items()},
    )


def block_value(spec: Spec, seed: int, out_dir: Path) -> float | None:
    """The primary's value (or difference) in the block of one seed, minus its threshold; None when it is not there.

    What the stop rules look at: a mean over the prompts of the block, without its interval.
    """
    done = [run for run in runs_of(spec, out_dir) if run.complete and run.job.seed == seed]
    analyses = _analyses(done, num_draws=STOP_DRAWS, seed=seed)
    table = by_condition({c.name: _merged(c, done, analyses) for c in spec.conditions})
    own = spec.primary
    value = _value(table, own.metric, own.arm, own.condition)
    if own.versus_arm is not None or own.versus_condition is not None:
        rival = _value(table, own.metric, own.versus_arm or own.arm, own.versus_condition or own.condition)
        value = None if value is None or rival is None else value - rival
    if value is None or isinstance(own.threshold, tuple):
        return value
    return value - (0.0 if own.statistic == "p" else own.threshold)


def _analyses(done: Sequence[SweepRun], **settings: Any) -> Analyses:
    """{(run, condition): analysis}."""
    read = [(run, read_run(run.job.directory)) for run in done]
    return {(run.job.name, c): analyze(one, c, **settings) for run, one in read for c in run.job.conditions}


def _value(table: Metrics, metric: str, arm: str | None, condition: str | None) -> float | None:
    found = table.get(Key(metric, "prompt", arm, condition))
    return None if found is None else found.value


def go_plan(spec: Spec) -> Plan:
    """What rule R7 judges: METHOD's plan, where the budget does not state another."""
    go = spec.budget.go
    if go is None:
        return Plan()
    stated = {"seeds": go.seeds, "expected_effect": go.expected_effect, "sd": go.sd}
    given = {name: value for name, value in stated.items() if value is not None}
    return replace(Plan(), **given, paired_correlation=go.paired_correlation)


def _table(spec: Spec, condition: Condition, done: Sequence[SweepRun], analyses: Analyses) -> Metrics:
    """The metrics of one condition over its seeds."""
    seeds = dict.fromkeys(run.job.seed for run in done)
    tables = {str(s): _merged(condition, [run for run in done if run.job.seed == s], analyses) for s in seeds}
    tables = {name: table for name, table in tables.items() if table}
    if not frozen(spec, condition):
        return over_runs(tables)
    return _pooled(list(tables.values()))


def _merged(condition: Condition, done: Sequence[SweepRun], analyses: Analyses) -> dict[Key, Estimate]:
    """The metrics of one condition and seed: of its one run, or of its runs of one arm each, the first arm first."""
    found: dict[Key, Estimate] = {}
    for run in done:
        if condition.name in run.job.conditions:
            found = analyses[run.job.name, condition.name].metrics | found
    return found


def _pooled(tables: Sequence[Metrics]) -> Metrics:
    """Prompt means over several seeds of a replay, which share their prompts. Nulls belong to one run and stay out."""
    if len(tables) < 2:
        return tables[0] if tables else {}
    found: dict[Key, Estimate] = {}
    for key in tables[0]:
        values: dict[str, list[float]] = {}
        for number, table in enumerate(tables):
            own = table[key].by_unit if key in table else {}
            for unit, value in own.items():
                values.setdefault(unit if key.unit == "prompt" else f"{number}/{unit}", []).append(value)
        if values:
            found[key] = estimate({unit: float(np.mean(several)) for unit, several in values.items()}, key.unit)
    return found


def _rows(criteria: Sequence[Criterion], table: Metrics) -> list[Row]:
    """The verdicts; p-values of the registered family are adjusted together (Holm)."""
    p_values = {c.name: p for c in criteria if (p := p_of(c, table)) is not None}
    adjusted = holm(p_values)
    return [
        _row(criterion, table, adjusted.get(criterion.name) if len(adjusted) > 1 else None) for criterion in criteria
    ]


def _row(criterion: Criterion, table: Metrics, p_holm: float | None) -> Row:
    found = evaluate(criterion, table)
    verdict, why = found.verdict, found.why
    if p_holm is not None:
        why += f"; Holm-adjusted p {p_holm:.2g}"
        if verdict == "PASS" and isinstance(criterion.threshold, float) and p_holm >= criterion.threshold:
            verdict = "INCONCLUSIVE"
    return Row(
        name=criterion.name,
        role=criterion.role,
        condition=_words(criterion),
        verdict=verdict,
        value=found.value,
        n=found.n,
        unit=criterion.unit,
        why=f"{why}. {criterion.why}" if criterion.why else why,
    )


def _words(c: Criterion) -> str:
    """`lower95 of cos_in > 0.05 (vanilla - random, in mixed; null N2)`."""
    place = " in ".join(part for part in (_side(c.arm, c.versus_arm), _side(c.condition, c.versus_condition)) if part)
    notes = "; ".join(part for part in (place, "" if c.null == "none" else f"null {c.null}") if part)
    threshold = list(c.threshold) if isinstance(c.threshold, tuple) else f"{c.threshold:g}"
    return f"{c.statistic} of {c.metric} {c.comparison} {threshold}" + (f" ({notes})" if notes else "")


def _side(own: str | None, versus: str | None) -> str:
    return f"{own or 'default'} - {versus}" if versus else own or ""


def _rules_of(spec: Spec, done: Sequence[SweepRun]) -> tuple[str, str] | None:
    """(run, condition) that the rules are read from: the primary's condition, the first seed that is there."""
    condition = spec.primary.condition or spec.conditions[0].name
    return next(((run.job.name, condition) for run in done if condition in run.job.conditions), None)


def _cautions(spec: Spec, runs: Sequence[SweepRun]) -> list[str]:
    """What has to be said beside every verdict: runs that are missing, runs that are older than the criteria."""
    missing = [run.job.name for run in runs if not run.complete]
    other = [run.job.name for run in runs if run.spec_status not in (None, "frozen")]
    cautions = []
    if missing:
        cautions.append(f"{len(missing)} of {len(runs)} runs are not complete: {', '.join(missing)}")
    if other:
        cautions.append(
            f"EDITED: {', '.join(other)} ran under another version of {spec.path.name}; these criteria are younger "
            "than the data and confirm nothing"
        )
    return cautions
