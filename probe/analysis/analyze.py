"""analyze: the records and inner products of one run to one Analysis, from which text, JSON and report are made.

    analysis = analyze(read_run(Path("out/runs/demo")))
    analysis.decision.outcome         BROKEN, SKIP, CONFOUNDED, GENERIC, UNDERPOWERED, GO or TRAINED
    analysis.to_json()                what `probe analyze --json` prints

To add a result: measure it in `probe.analysis.measures`, give it a field of Analysis, and a table in
`probe.analysis.tables`. To add a verdict: see `probe.analysis.verdict.decision`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from extraction.words import Basis
from probe.analysis.measures.contrasts import Bucket, Cell, Contrast, advantage_cells, buckets, contrasts
from probe.analysis.measures.forecast import Forecast, forecast
from probe.analysis.measures.pull import Ceiling, HackwardFrac, Share, ceilings, hackward_fracs, shares
from probe.analysis.measures.specificity import SCORES, SignTransfer, Specificity, sign_transfer, specificity
from probe.analysis.measures.trajectory import (
    MEASURES,
    ArmComparison,
    ArmSummary,
    TrajectoryRow,
    compare_arms,
    num_problems,
    summarise,
    trajectory,
)
from probe.analysis.metric_table import Estimate, MetricKey
from probe.analysis.metrics import metrics
from probe.analysis.statistics.gram import has_gram
from probe.analysis.statistics.permutation import NUM_DRAWS, Permutation, permutation_nulls
from probe.analysis.statistics.run_gradients import Linked, link
from probe.analysis.statistics.thresholds import REPRODUCED
from probe.analysis.training_outcome import TrainingOutcome, training_outcome
from probe.analysis.verdict.bases import BasisAnswer, answer, bases_of, in_basis
from probe.analysis.verdict.decision import Decision, decide
from probe.analysis.verdict.evidence import Evidence, PlannedTraining, VerdictRow
from probe.analysis.verdict.provenance import gate_facts, pool_facts, pools_at_hand
from probe.analysis.verdict.questions import Finding, questions
from probe.analysis.verdict.run_options import run_options
from probe.analysis.verdict.sentences import caveats
from probe.analysis.verdict.training_runs import is_training, siblings, starts, trains
from probe.analysis.verdict.validity import ValidityPart, validity
from probe.analysis.verdict.verification import verification
from probe.records.records import SampleRecord, StepRecord
from probe.records.run import Run
from probe.settings.arms import ARMS, measured_arm
from probe.settings.words import DEFAULT_CONDITION

AGAINST_GO = ("BROKEN", "SKIP", "CONFOUNDED", "GENERIC")  # shown not to be worth a training as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that the records and the inner products of one run say under one condition.

    Field names are keys of the JSON.
    """

    run: str
    condition: str
    arms: tuple[str, ...]  # in order of first appearance
    measured_arm: str | None  # stands for vanilla in cells, specificity, nulls and verdicts
    num_steps: int
    num_samples: int  # of the measured arm
    num_prompts: int  # problems, each once
    loss_types: tuple[str, ...]
    decision: Decision
    questions: list[Finding]  # that the decision rests on
    bases: list[BasisAnswer]  # the verdict in every basis with an arm along v_hack, that of the measured arm first
    shares: list[Share]
    ceilings: list[Ceiling]  # by kind of hack and by mode
    hackward: list[HackwardFrac]
    forecast: Forecast | None
    validity: list[ValidityPart]  # whether there is a measurement that can be believed, part by part
    caveats: list[str]  # what to keep in mind beside the verdict
    plan: PlannedTraining
    checks: list[VerdictRow]  # the seed's tables V and D
    permutation: Permutation | None
    transfer: SignTransfer | None
    comparisons: list[ArmComparison]
    cells: list[Cell]
    trajectory: list[TrajectoryRow]  # a row a step and arm
    summaries: list[ArmSummary]  # a row an arm
    buckets: list[Bucket]
    contrasts: list[Contrast]
    specificity: list[Specificity]
    outcome: TrainingOutcome | None  # of training; None: nothing was evaluated on held-out problems
    metrics: dict[MetricKey, Estimate]  # what preregistered criteria are evaluated from

    @property
    def failed(self) -> bool:
        """Whether the verdict stands against a GO; UNDERPOWERED leaves it open."""
        return self.decision.outcome in AGAINST_GO

    @property
    def sentences(self) -> list[str]:
        """The verdict with its reason, and the caveats."""
        return [f"{self.decision.outcome}: {self.decision.why}", *self.caveats]

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        plain = asdict(replace(self, metrics={}))
        plain["metrics"] = []
        for key, estimated in self.metrics.items():
            # Keys without an arm repeat those of the measured arm.
            if key.arm is not None or self.measured_arm is None:
                plain["metrics"].append({**key._asdict(), **asdict(estimated)})
        return plain


def conditions(run: Run) -> list[str]:
    """The conditions of a run, the primary first: `default`, or else the first in order of appearance."""
    names = list(dict.fromkeys(step.condition for step in run.steps))
    return sorted(names, key=lambda name: name != DEFAULT_CONDITION)


def analyze(
    run: Run,
    condition: str | None = None,
    *,
    basis: Basis | None = None,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    plan: PlannedTraining | None = None,
    others: Sequence[Run] = (),
) -> Analysis:
    """Evaluate every table, null and check of one run under one condition, and decide.

    Args:
        run: as `probe.records.run.read_run` gives it.
        condition: None = the primary.
        basis: whose arms alone are looked at; None: all arms, and the verdict is that of the measured arm's basis.
        num_draws: of each permutation null.
        seed: of the draws, the sampled sign flips and the bootstraps.
        plan: the training that a GO would buy; None takes METHOD's.
        others: runs beside this one; of those that train, other arms of the same settings and seed must start alike.

    Raises:
        InputError: no arm measures along v_hack in the basis; a file of inner products is missing or changed.
    """
    if basis is not None:
        run = in_basis(run, basis)
    if condition is None:
        condition = next(iter(conditions(run)), DEFAULT_CONDITION)
    steps = [step for step in run.steps if step.condition == condition]
    run = replace(run, steps=steps, samples=[sample for sample in run.samples if sample.condition == condition])
    does_train = trains(run)
    arms = tuple(dict.fromkeys(step.arm for step in steps))
    if is_training(run) and not arms:
        arms = tuple(run.settings["intervention"]["arms"])  # it stopped before its first step, and was evaluated
    measured = measured_arm(arms)
    summaries = {arm: summarise(steps, arm, trains=does_train, seed=seed) for arm in arms}
    contrast_rows: list[Contrast] = []
    bucket_rows: list[Bucket] = []
    areas: list[Specificity] = []
    for arm in arms:
        sure = [sample for sample in run.samples if sample.arm == arm and sample.sure]
        contrast_rows += contrasts(sure, arm, trains=does_train, seed=seed)
        bucket_rows += buckets(sure, arm)
        if arm == measured:
            areas = [specificity(sure, score, arm) for score in SCORES]
    samples = [sample for sample in run.samples if sample.arm == measured]
    offline = _offline(run, measured, summaries, samples, num_draws, seed)
    comparable, trained = siblings(run, others), is_training(run)
    evidence = Evidence(
        steps=steps,
        samples=samples,
        measured=summaries[measured] if measured else None,
        summaries=summaries,
        buckets=[row for row in bucket_rows if row.arm == measured],
        contrasts=[row for row in contrast_rows if row.arm == measured],
        specificity=areas[0] if areas else None,
        trains=does_train,
        baselines=areas[1:],
        permutation=offline.permutation,
        transfer=offline.transfer,
        shares=offline.shares,
        hackward=offline.hackward,
        forecast=offline.forecast,
        most_directions=offline.most_directions,
        offline_error=offline.error,
        sample_error=offline.sample_error,
        additivity_tolerance=run.manifest.get("additivity", {}).get("tolerance"),
        starts=starts(comparable),
        outcome=training_outcome(run) if trained else None,
        pools=pool_facts(run),
        at_hand=pools_at_hand(run),
        match=(run.settings.get("source") or {}).get("match", "problem"),
        gate=gate_facts(run),
        options=run_options(run),
        plan=plan or PlannedTraining(),
    )
    analysis = _assemble(run, condition, evidence, bucket_rows, contrast_rows, areas, offline, seed)
    answers = [*analysis.bases]
    for other in bases_of(arms):
        if other != evidence.basis:
            alone = analyze(run, condition, basis=other, num_draws=num_draws, seed=seed, plan=plan, others=others)
            answers += alone.bases
    return replace(analysis, bases=answers)


def _assemble(
    run: Run,
    condition: str,
    evidence: Evidence,
    bucket_rows: list[Bucket],
    contrast_rows: list[Contrast],
    areas: list[Specificity],
    offline: "_Offline",
    seed: int,
) -> Analysis:
    """The verdicts on the evidence, and every table beside them."""
    measured = evidence.measured.arm if evidence.measured else None
    parts, findings = validity(evidence), questions(evidence)
    decision = decide(findings, parts, evidence)
    return Analysis(
        run=run.path.name,
        condition=condition,
        arms=tuple(evidence.summaries),
        measured_arm=measured,
        num_steps=len({step.step for step in run.steps}),
        num_samples=len(evidence.samples),
        num_prompts=num_problems(run.steps),
        loss_types=tuple(dict.fromkeys(step.loss_type for step in run.steps)),
        decision=decision,
        questions=findings,
        bases=[answer(findings, decision, evidence)] if measured else [],
        shares=offline.shares,
        ceilings=offline.ceilings,
        hackward=offline.hackward,
        forecast=offline.forecast,
        validity=parts,
        caveats=caveats(decision.outcome, parts, evidence, offline.ceilings),
        plan=evidence.plan,
        checks=verification(evidence),
        permutation=offline.permutation,
        transfer=offline.transfer,
        comparisons=_comparisons(run.steps, evidence.summaries, measured, seed),
        cells=advantage_cells(evidence.sure),
        trajectory=trajectory(run.steps),
        summaries=list(evidence.summaries.values()),
        buckets=bucket_rows,
        contrasts=contrast_rows,
        specificity=areas,
        outcome=evidence.outcome,
        metrics=metrics(evidence, run.samples),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offline:
    """What follows from the inner products of a run; empty for a run without them.

    Where they miss the recorded cosines by more than REPRODUCED, the errors alone are set.
    """

    permutation: Permutation | None = None
    transfer: SignTransfer | None = None
    shares: list[Share] = field(default_factory=list)
    ceilings: list[Ceiling] = field(default_factory=list)
    hackward: list[HackwardFrac] = field(default_factory=list)
    forecast: Forecast | None = None
    most_directions: int | None = None
    error: float | None = None
    sample_error: float | None = None


def _offline(
    run: Run,
    measured: str | None,
    summaries: Mapping[str, ArmSummary],
    samples: list[SampleRecord],
    num_draws: int,
    seed: int,
) -> _Offline:
    """Nulls and sign transfer of a frozen run, in the basis of the measured arm."""
    if measured is None or not samples or not has_gram(run, ARMS[measured].basis):
        return _Offline()
    if summaries[measured].trains:
        return _Offline()
    linked = link(run, samples, [step for step in run.steps if step.arm == measured])
    # A null that was drawn from other gradients than the records' would be compared with the wrong statistic.
    if linked.error > REPRODUCED:
        return _Offline(error=linked.error, sample_error=linked.sample_error)
    return _Offline(
        permutation=permutation_nulls(linked, num_draws=num_draws, seed=seed),
        transfer=sign_transfer(linked.pairs),
        shares=shares(linked, seed=seed),
        ceilings=list(ceilings(linked.pairs, seed)),
        hackward=hackward_fracs(linked, seed=seed),
        forecast=_forecast(run, linked, measured, seed),
        most_directions=linked.pairs.most_directions,
        error=linked.error,
        sample_error=linked.sample_error,
    )


def _forecast(run: Run, linked: Linked, measured: str, seed: int) -> Forecast | None:
    """The forecast of the gate that the run's projecting arm has, or would have."""
    facts = gate_facts(run)
    gate: Any = facts.gate or ARMS[measured].gate
    return forecast(linked, gate=gate, overshoot=facts.overshoot, seed=seed)


def _comparisons(
    steps: Sequence[StepRecord], summaries: Mapping[str, ArmSummary], measured: str | None, seed: int
) -> list[ArmComparison]:
    """Every other arm against the measured one, in every measure."""
    if measured is None:
        return []
    rows = []
    for arm, summary in summaries.items():
        if arm != measured:
            rows += [
                compare_arms(steps, arm, measured, measure, trains=summary.trains, seed=seed) for measure in MEASURES
            ]
    return rows
