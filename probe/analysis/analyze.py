"""analyze: one run to one plain, JSON-able Analysis."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from probe.analysis.measures.cells import Bucket, Cell, advantage_cells, buckets
from probe.analysis.measures.comparisons import MEASURES, ArmComparison, compare_arms
from probe.analysis.measures.contrasts import Contrast, contrasts
from probe.analysis.measures.sensitivity import Setting, settings
from probe.analysis.measures.specificity import SCORES, Specificity, specificity
from probe.analysis.measures.trajectory import ArmSummary, TrajectoryRow, num_problems, summarise, trajectory
from probe.analysis.measures.transfer import SignTransfer, sign_transfer
from probe.analysis.metric_table import Estimate, MetricKey
from probe.analysis.metrics import metrics
from probe.analysis.statistics.gram import has_gram
from probe.analysis.statistics.linked import link
from probe.analysis.statistics.permutation import NUM_DRAWS, Permutation, permutation_nulls
from probe.analysis.statistics.thresholds import REPRODUCED
from probe.analysis.training_outcome import TrainingOutcome, training_outcome
from probe.analysis.verdict.decision import TrainingDecision, decide
from probe.analysis.verdict.evidence import Evidence, PlannedTraining, VerdictRow
from probe.analysis.verdict.rules import rules
from probe.analysis.verdict.run_level import gate_facts, is_training, pool_facts, realised_update, siblings, starts
from probe.analysis.verdict.sentences import conclusions
from probe.analysis.verdict.validity import ValidityPart, validity
from probe.analysis.verdict.verification import verification
from probe.records.records import DEFAULT_CONDITION, SampleRecord, StepRecord
from probe.records.run import Run
from probe.settings.arms import ARMS, measured_arm

FATAL = ("R0", "R1", "R3", "R4", "R5")  # a FAIL of one of these stands against a GO; R2 is the opposite of R1


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that the records and the inner products of one run say under one condition."""

    run: str
    condition: str
    arms: tuple[str, ...]  # in order of first appearance
    measured_arm: str | None  # stands for vanilla in cells, specificity, nulls and verdicts
    num_steps: int
    num_samples: int  # of the measured arm
    num_prompts: int  # problems, each once
    mixed_steps: int  # steps whose group answers different prompts
    loss_types: tuple[str, ...]
    decision: TrainingDecision
    rules: list[VerdictRow]
    validity: list[ValidityPart]
    checks: list[VerdictRow]
    conclusions: list[str]
    permutation: Permutation | None
    transfer: SignTransfer | None
    settings: list[Setting]  # what another k would have measured; empty without inner products
    comparisons: list[ArmComparison]
    cells: list[Cell]
    trajectory: list[TrajectoryRow]
    summaries: list[ArmSummary]
    buckets: list[Bucket]
    contrasts: list[Contrast]
    specificity: list[Specificity]
    outcome: TrainingOutcome | None  # of training; None: nothing was evaluated on held-out problems
    null_reasons: dict[str, int]  # samples of the measured arm without cos_S_contrib; buckets count both metrics
    metrics: dict[MetricKey, Estimate]  # what preregistered criteria are evaluated from

    @property
    def failed(self) -> bool:
        """Whether a rule that a GO needs has failed."""
        return any(check.verdict == "FAIL" for check in self.rules if check.row in FATAL)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        plain = asdict(replace(self, metrics={}))
        named = {key: row for key, row in self.metrics.items() if key.arm is not None or self.measured_arm is None}
        plain["metrics"] = [{**key._asdict(), **asdict(row)} for key, row in named.items()]
        return plain


def conditions(run: Run) -> list[str]:
    """The conditions of a run, the primary first: `default`, or else the first in order of appearance."""
    names = list(dict.fromkeys(step.condition for step in run.steps))
    return sorted(names, key=lambda name: name != DEFAULT_CONDITION)


def analyze(
    run: Run,
    condition: str | None = None,
    *,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    plan: PlannedTraining | None = None,
    regrade_agreement: float | None = None,
    others: Sequence[Run] = (),
) -> Analysis:
    """Evaluate every table, null, check and rule of one run under one condition.

    Args:
        run: as `probe.records.run.read_run` gives it.
        condition: None = the primary.
        num_draws: of each permutation null.
        seed: of the draws, the sampled sign flips and the bootstraps.
        plan: the training that a GO would buy; None takes METHOD's.
        regrade_agreement: share of the pools' labels that a second grading repeats, when one was made.
        others: runs beside this one; of those that train, other arms and seeds of the same settings enter rules R0, R4.
    """
    condition = next(iter(conditions(run)), DEFAULT_CONDITION) if condition is None else condition
    run = replace(
        run,
        samples=[s for s in run.samples if s.condition == condition],
        steps=[s for s in run.steps if s.condition == condition],
    )
    arms = tuple(dict.fromkeys(step.arm for step in run.steps))
    samples = {arm: [s for s in run.samples if s.arm == arm] for arm in arms}
    summaries = {arm: summarise(run.steps, arm, seed=seed) for arm in arms}
    measured = measured_arm(arms)
    own = samples[measured] if measured else []
    sure = {arm: [s for s in samples[arm] if not s.flaky] for arm in arms}
    found = [row for arm in arms for row in contrasts(sure[arm], arm, trains=summaries[arm].trains, seed=seed)]
    areas = [specificity(sure[measured], score, measured, seed=seed) for score in SCORES] if measured else []
    beside = siblings(run, others)
    rows = [row for arm in arms for row in buckets(sure[arm], arm)]
    offline = _offline(run, measured, summaries, own, num_draws, seed)
    evidence = Evidence(
        steps=run.steps,
        samples=own,
        measured=summaries[measured] if measured else None,
        summaries=summaries,
        buckets=[row for row in rows if row.arm == measured],
        contrasts=[row for row in found if row.arm == measured],
        specificity=areas[0] if areas else None,
        baselines=areas[1:],
        permutation=offline.permutation,
        transfer=offline.transfer,
        offline_error=offline.error,
        update=realised_update(beside) if is_training(run) else None,
        starts=starts(beside),
        outcome=training_outcome(run) if is_training(run) else None,
        pools=pool_facts(run),
        regrade_agreement=regrade_agreement,
        gate=gate_facts(run),
        plan=plan or PlannedTraining(),
    )
    return _assemble(run, condition, evidence, rows, found, areas, offline, seed)


def _assemble(
    run: Run,
    condition: str,
    evidence: Evidence,
    rows: list[Bucket],
    found: list[Contrast],
    areas: list[Specificity],
    offline: "_Offline",
    seed: int,
) -> Analysis:
    """The verdicts, and every table beside them."""
    measured = evidence.measured.arm if evidence.measured else None
    own = evidence.samples
    verdicts = rules(evidence)
    mixed_steps = len({step.step for step in run.steps if step.mixed_prompt})
    reasons = dict(Counter(s.null_reason or "" for s in own if s.cos_S_contrib is None))
    return Analysis(
        run=run.path.name,
        condition=condition,
        arms=tuple(evidence.summaries),
        measured_arm=measured,
        num_steps=len({step.step for step in run.steps}),
        num_samples=len(own),
        num_prompts=num_problems(run.steps),
        mixed_steps=mixed_steps,
        loss_types=tuple(dict.fromkeys(step.loss_type for step in run.steps)),
        decision=decide(verdicts, evidence),
        rules=verdicts,
        validity=validity(evidence),
        checks=verification(evidence),
        conclusions=conclusions(evidence, found, areas, reasons, mixed_steps),
        permutation=offline.permutation,
        transfer=offline.transfer,
        settings=offline.settings,
        comparisons=_comparisons(run.steps, evidence.summaries, measured, seed),
        cells=advantage_cells(own),
        trajectory=trajectory(run.steps),
        summaries=list(evidence.summaries.values()),
        buckets=rows,
        contrasts=found,
        specificity=areas,
        outcome=evidence.outcome,
        null_reasons=reasons,
        metrics=metrics(evidence, run.samples),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offline:
    """What the inner products of a run give; nothing for a run that has none that fit its records."""

    permutation: Permutation | None = None
    transfer: SignTransfer | None = None
    settings: list[Setting] = field(default_factory=list)
    error: float | None = None


def _offline(
    run: Run,
    measured: str | None,
    summaries: Mapping[str, ArmSummary],
    samples: list[SampleRecord],
    num_draws: int,
    seed: int,
) -> _Offline:
    """Nulls, sign transfer and other k of a frozen run that measures in the SVD basis."""
    if measured is None or not samples or ARMS[measured].basis != "svd" or not has_gram(run):
        return _Offline()
    if summaries[measured].trains:
        return _Offline()
    linked = link(run, samples, [step for step in run.steps if step.arm == measured])
    if linked.error > REPRODUCED:
        return _Offline(error=linked.error)
    return _Offline(
        permutation=permutation_nulls(linked, num_draws=num_draws, seed=seed),
        transfer=sign_transfer(linked.pairs),
        settings=settings(linked),
        error=linked.error,
    )


def _comparisons(
    steps: Iterable[StepRecord], summaries: Mapping[str, ArmSummary], measured: str | None, seed: int
) -> list[ArmComparison]:
    """Every other arm against the measured one."""
    rows = list(steps)
    return [
        compare_arms(rows, arm, measured, metric, trains=summaries[arm].trains, seed=seed)
        for arm in summaries
        if measured is not None and arm != measured
        for metric in MEASURES
    ]
