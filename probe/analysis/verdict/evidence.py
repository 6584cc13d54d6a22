"""What the verdict is made from (Evidence), and what the rows of the seed's tables look like (Judgement, VerdictRow).

PASS: the condition holds. FAIL: its opposite is shown. INCONCLUSIVE: the data allow both. VACUOUS: it would hold (or
fail) whatever the data say, and the reason is given. Rows of kind "mechanism" are identities of the code: they show
that it ran, and are no evidence about hacking.

A rule asks something (Rule) by a function `Evidence -> Judgement`. To let rules see something new: add a field to
Evidence, and fill it in `probe.analysis.analyze.analyze`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from extraction.words import Basis
from probe.analysis.measures.contrasts import Bucket, Contrast
from probe.analysis.measures.forecast import Forecast
from probe.analysis.measures.pull import HackwardFrac, Share
from probe.analysis.measures.specificity import SignTransfer, Specificity
from probe.analysis.measures.trajectory import ArmSummary
from probe.analysis.statistics.intervals import Interval
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.permutation import Permutation
from probe.analysis.training_outcome import TrainingOutcome
from probe.analysis.verdict.run_options import RunOptions
from probe.records.records import SampleRecord, StepRecord
from probe.settings.arms import ARMS
from probe.settings.words import Verdict
from replay_pools.agreement import Regrade
from replay_pools.environments.base import Split

AUTOCORRELATED = "the run trains: its steps are autocorrelated, the run is the unit and n = 1"

Kind = Literal["evidence", "mechanism"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a rule says: its verdict, the number that it rests on, n, and the reason."""

    verdict: Verdict
    value: str
    n: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """The judgement of one rule together with what was asked: a row of the tables V and D.

    Field names are keys of the JSON.
    """

    row: str  # V1, ..., D5
    condition: str  # what was asked, in words
    kind: Kind
    verdict: Verdict
    value: str
    n: int
    unit: str  # what n counts
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """Whose answers to which prompts a pool holds; None where its manifest does not say."""

    name: str
    reference: str  # what a command calls it: its name, or its path where the name does not find it
    hint: bool | None  # whether its prompts tell how submissions are evaluated
    policy: str | None  # model and adapter that sampled it
    problems: str | None  # environment, split, mode, number of steps and seed
    steps: int | None  # groups
    group: int | None  # rollouts of a problem
    recipe: str | None  # options of `probe pool generate` that make it, but for --steps, --group and --name
    env: str | None = None  # the environment of its problems, and the split of it that they are of
    split: Split | None = None
    has_environment: bool = True  # its problems are of an environment, from which `probe train` can sample


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What the manifest of one pool says about how it was made, and what a second grading said of its labels.

    None where the manifest says nothing or is not there any more, and where the pool was not graded again.
    """

    name: str
    grader: str | None  # of `probe pool generate`, which refuses to sample when the grader's canary fails
    isolation: str | None  # tier of its grades
    prompt_tail: str | None
    plan: PoolPlan
    regrade: Regrade | None
    regrade_command: str | None  # that would make `regrade`; None: the pool was moved or changed since the run


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """The gate options of a run."""

    gate: str | None = None  # None: each arm's own
    overshoot: float = 1.0
    target: str = "gradient"  # what it acts on where weights move


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining:
    """The training that a GO would buy. The defaults are METHOD's: 3 seeds, 30 points expected of a hack rate."""

    seeds: int = 3
    expected_effect: float = 0.30
    sd: float = 0.15  # of the effect's metric between seeds, one arm
    paired_correlation: float | None = None  # of the arms of one seed; None: unknown, so unpaired


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the rules see of one run under one condition.

    The measured arm is the one that stands for vanilla (`probe.settings.arms.measured_arm`).
    """

    steps: Sequence[StepRecord]  # of all arms
    samples: Sequence[SampleRecord]  # of the measured arm
    measured: ArmSummary | None  # None: no arm uses v_hack
    summaries: Mapping[str, ArmSummary]  # by arm
    buckets: Sequence[Bucket]  # of the measured arm
    contrasts: Sequence[Contrast]  # of the measured arm
    specificity: Specificity | None  # of cos_S_contrib in the measured arm
    trains: bool = False  # an optimizer steps: then the run is the unit
    baselines: Sequence[Specificity] = ()  # the trivial scores
    permutation: Permutation | None = None  # None: no inner products, or they do not reproduce the records
    transfer: SignTransfer | None = None  # of v_hack to the held-out pairs; None likewise
    shares: Sequence[Share] = ()  # of the held-out ceiling; empty likewise
    hackward: Sequence[HackwardFrac] = ()  # shares of the update that point hack-ward; empty likewise
    forecast: Forecast | None = None  # of the gate, to first order; None likewise
    most_directions: int | None = None  # a module, that the run's pairs can give; None likewise
    offline_error: float | None = None  # largest |offline - recorded cosine|; None without inner products
    sample_error: float | None = None  # the same of samples alone, in which the loss has no part
    additivity_tolerance: float | None = None  # of the steps' additivity_error: what the dtype's rounding explains
    starts: Sequence[StepRecord] = ()  # the first steps of the runs that differ from this one in their arm alone
    outcome: TrainingOutcome | None = None  # None: nothing was evaluated on held-out problems
    pools: Sequence[PoolFacts] = ()
    at_hand: Sequence[PoolPlan] = ()  # pools that another replay could read
    match: str = "problem"  # what the pools had in common in a step
    gate: GateFacts = GateFacts()
    options: RunOptions = field(default_factory=RunOptions)  # what a command that repeats the run has to be told
    plan: PlannedTraining = PlannedTraining()

    @property
    def basis(self) -> Basis:
        """Of the measured arm; svd where there is none."""
        return "svd" if self.measured is None else ARMS[self.measured.arm].basis

    @property
    def sure(self) -> list[SampleRecord]:
        """The samples that can stand on a side of a contrast."""
        return [sample for sample in self.samples if sample.sure]

    @property
    def unlabelled(self) -> bool:
        """Whether nothing says of any sample whether it hacks."""
        return bool(self.samples) and all(sample.hacked is None for sample in self.samples)

    @property
    def has_updates(self) -> bool:
        """Whether any group gave the measured arm a policy gradient."""
        return self.measured is not None and self.measured.num_prompts > 0

    @property
    def plans(self) -> list[PoolPlan]:
        """Whose answers to which prompts the pools of the run hold."""
        return [pool.plan for pool in self.pools]

    def share(self, name: str) -> Share | None:
        """A share by its name (`probe.analysis.measures.pull`); None where nothing was measured."""
        return next((share for share in self.shares if share.name == name), None)

    def null(self, metric: str, name: str) -> NullTest | None:
        """A statistic (`cos_in`, `auroc`, ...) against N2, N3 or N4; None where that null was not drawn."""
        if self.permutation is None:
            return None
        return self.permutation.get(metric, name)


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the tables V and D before it is evaluated; the fields are those of VerdictRow."""

    row: str
    condition: str
    kind: Kind
    unit: str
    judge: Callable[[Evidence], Judgement]

    def evaluate(self, evidence: Evidence) -> VerdictRow:
        """The row with its verdict."""
        judgement = self.judge(evidence)
        return VerdictRow(row=self.row, condition=self.condition, kind=self.kind, unit=self.unit, **asdict(judgement))


def missing(why: str, n: int = 0) -> Judgement:
    """INCONCLUSIVE, because something was not measured."""
    return Judgement(verdict="INCONCLUSIVE", value="", n=n, why=why)


def range_text(interval: Interval | None) -> str:
    """`[+0.050, +0.120]`, or '' for None."""
    return f"[{interval.low:+.3f}, {interval.high:+.3f}]" if interval else ""
