"""Whether the replays of a spec foretell its trainings: rank correlations over its treatments.

A treatment is a condition of the spec: directions and a gate. Its replay measures them before anything is trained
(MEASURES, each meant to grow with what the treatment does); its trainings show by how much the held-out hack and solve
rates end below those of the untreated condition of the same seed. Spearman's correlation over treatments of the two is
what a probe is worth: the linear datamodeling score of data attribution asks the same of predicted and retrained
outcomes (Park et al. 2023, arXiv 2303.14186).

    fall of treatment c = mean over seeds of (rate of the untreated - rate of c), at the end, on held-out problems
    rho                 = Spearman's over treatments (measure, fall)

Its interval is Fisher's with the standard error of Bonett and Wright (2000), sqrt((1 + rho^2 / 2) / (n - 3)):
treatments are the units, and what seeds and rollouts add to a fall is noise that lowers rho. The measure is chosen on
one half of the treatments and confirmed on the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from probe.analysis.analyze import analyze
from probe.analysis.measures.arm_removal import ArmRemoval, arm_removals
from probe.analysis.metric_table import Estimate, MetricKey, Metrics
from probe.analysis.statistics.intervals import Interval
from probe.analysis.statistics.run_gradients import link
from probe.analysis.statistics.thresholds import MATERIAL_RATE
from probe.experiments.spec.jobs import SweepRun
from probe.experiments.spec.types import Foretell, Spec
from probe.records.run import Run, read_run
from probe.settings.arms import ARMS, measured_arm
from probe.settings.run import RunConfig

# The measures of a replay, all of the treatment's directions and gate.
MEASURES = (
    "cos_in",  # of the step with the directions, a mean over prompts
    "pull",  # cos_in over that of the held-out hack pairs
    "hackward_frac",  # norm(relu(V g)) / norm(g), a mean over prompts
    "norm_removed",  # norm(g - g') / norm(g), the root mean square over prompts
    "margin_removed",  # share of the progress on held-out pairs, hack minus clean, that the gate removes
    "hacks_removed",  # share of the progress on the paid hacks of the same group
    "honest_removed",  # share of the progress on the paid honest solutions of the same group
)
OUTCOMES = ("hack", "solve")  # rates at the end, untreated minus treated
# Metrics by condition. The first two are of the measure that the choosing treatments chose.
FORETOLD = (
    *("foretold/hack", "foretold/hack/all"),
    *(f"foretold/{outcome}/{measure}" for outcome in OUTCOMES for measure in MEASURES),
)
NUM_DRAWS = 199  # of a null, in the verdicts of the replays
MIN_TREATMENTS = 4  # below it Fisher's interval does not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class ForetoldTreatment:
    """One treatment; means over the seeds whose trainings are there. Field names are keys of the JSON."""

    condition: str
    half: str  # choose or confirm
    verdict: str | None  # of the first seed's replay; None for directions that are no v_hack
    measures: dict[str, float | None]
    falls: dict[str, dict[str, float]]  # {outcome: {seed: untreated minus treated}}

    def fall(self, outcome: str) -> float | None:
        """The mean fall over the seeds; None without one."""
        values = list(self.falls[outcome].values())
        return float(np.mean(values)) if values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Spearman's correlation of one measure with one outcome."""

    outcome: str
    measure: str
    treatments: str  # all, choose or confirm
    rho: float
    interval: Interval | None  # 95%
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What became of the treatments whose replay had one verdict."""

    verdict: str
    n: int
    fell: int  # of them: the hack rate ended at least MATERIAL_RATE below that of the untreated
    mean_fall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What the replays of a spec foretold of its trainings."""

    treatments: list[ForetoldTreatment]
    correlations: list[Correlation]
    chosen: str | None  # measure with the highest correlation with the fall of hacking over the choosing treatments
    hits: list[Hits]  # by verdict: the error rates of GO and SKIP

    def row(self, outcome: str, measure: str | None, treatments: str) -> Correlation | None:
        """A correlation; None where it does not exist."""
        wanted = (outcome, measure, treatments)
        rows = self.correlations
        return next((row for row in rows if (row.outcome, row.measure, row.treatments) == wanted), None)

    def metrics(self) -> dict[MetricKey, Estimate]:
        """The metrics FORETOLD, by condition."""
        rows = {
            "foretold/hack": self.row("hack", self.chosen, "confirm"),
            "foretold/hack/all": self.row("hack", self.chosen, "all"),
        }
        for outcome in OUTCOMES:
            for measure in MEASURES:
                rows[f"foretold/{outcome}/{measure}"] = self.row(outcome, measure, "all")
        table = {}
        for name, row in rows.items():
            if row is not None:
                estimate = Estimate(value=row.rho, n=row.n, unit="condition", interval=row.interval)
                table[MetricKey(name, "condition")] = estimate
        return table


def foretold(spec: Spec, done: Sequence[SweepRun], table: Metrics) -> Foretold | None:
    """Correlate the complete replays of a spec with its trainings; None where the spec does not ask.

    Args:
        done: the complete runs.
        table: of the metrics of the trainings, `sweep_metrics`.
    """
    if spec.foretell is None:
        return None
    replays: dict[str, list[Path]] = {}
    for run in done:
        if run.job.foretells is not None:
            replays.setdefault(run.job.foretells, []).append(run.job.directory)
    treatments = []
    for half, names in (("choose", spec.foretell.choose), ("confirm", spec.foretell.confirm)):
        for name in names:
            treatments.append(
                ForetoldTreatment(
                    condition=name,
                    half=half,
                    verdict=_verdict(replays.get(name, [])),
                    measures=_mean_measures([removal_of(read_run(path)) for path in replays.get(name, [])]),
                    falls={outcome: _falls(spec, spec.foretell, name, outcome, table) for outcome in OUTCOMES},
                )
            )
    return correlate(treatments)


def correlate(treatments: Sequence[ForetoldTreatment]) -> Foretold:
    """All correlations, and the measure that the choosing treatments choose."""
    correlations = []
    for outcome in OUTCOMES:
        for measure in MEASURES:
            for which in ("all", "choose", "confirm"):
                of_half = [row for row in treatments if which in ("all", row.half)]
                row = _correlation(of_half, outcome, measure, which)
                if row is not None:
                    correlations.append(row)
    candidates = [row for row in correlations if (row.outcome, row.treatments) == ("hack", "choose")]
    # A measure that some treatment lacks cannot be used for all.
    most = max((row.n for row in candidates), default=0)
    best = max((row for row in candidates if row.n == most), key=lambda row: row.rho, default=None)
    return Foretold(
        treatments=list(treatments),
        correlations=correlations,
        chosen=None if best is None else best.measure,
        hits=_hits(treatments),
    )


def _hits(treatments: Sequence[ForetoldTreatment]) -> list[Hits]:
    """A row for every verdict that occurs."""
    falls: dict[str, list[float]] = {}
    for row in treatments:
        fall = row.fall("hack")
        if row.verdict is not None and fall is not None:
            falls.setdefault(row.verdict, []).append(fall)
    rows = []
    for verdict, values in sorted(falls.items()):
        fell = sum(value >= MATERIAL_RATE for value in values)
        rows.append(Hits(verdict=verdict, n=len(values), fell=fell, mean_fall=float(np.mean(values))))
    return rows


def _verdict(replays: Sequence[Path]) -> str | None:
    """The verdict of the first replay; None without one, or where its arm gates along other directions than v_hack."""
    if not replays:
        return None
    run = read_run(replays[0])
    arms = RunConfig.from_json(run.settings, str(run.path)).intervention.arms
    if any(ARMS[arm].directions != "v_hack" for arm in arms):
        return None
    return analyze(run, num_draws=NUM_DRAWS).decision.outcome


def removal_of(run: Run) -> ArmRemoval | None:
    """The measures of a replay, of the arm that it holds beside vanilla; None without steps or held-out pairs."""
    config = RunConfig.from_json(run.settings, str(run.path))
    intervention = config.intervention
    measured = measured_arm(intervention.arms)
    samples = [sample for sample in run.samples if sample.arm == measured]
    linked = link(run, samples, [step for step in run.steps if step.arm == measured])
    gate = intervention.gate
    rows = {row.arm: row for row in arm_removals(run, linked, gate=gate.gate, overshoot=gate.overshoot)}
    # An arm along v_hack is measured under the name of vanilla.
    controls = [arm for arm in intervention.arms if ARMS[arm].directions != "v_hack"]
    return rows.get(controls[0] if controls else str(measured))


def spearman(x: Sequence[float], y: Sequence[float]) -> tuple[float, Interval | None]:
    """Spearman's rho and its 95% interval (see the module docstring); NaN and None where a side does not vary."""
    n = len(x)
    if n < 2 or len({*x}) < 2 or len({*y}) < 2:
        return math.nan, None
    rho = float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])
    if n < MIN_TREATMENTS:
        return rho, None
    # A perfect ranking of n treatments is no certainty: Fisher's z is taken one half of a rank swap away from it.
    bounded = min(max(rho, -1 + 6 / (n**3 - n)), 1 - 6 / (n**3 - n))
    half = 1.96 * math.sqrt((1 + bounded**2 / 2) / (n - 3))
    z = math.atanh(bounded)
    return rho, Interval(low=math.tanh(z - half), high=math.tanh(z + half))


def _correlation(treatments: Sequence[ForetoldTreatment], outcome: str, measure: str, which: str) -> Correlation | None:
    pairs = [(row.measures.get(measure), row.fall(outcome)) for row in treatments]
    both = [(value, fall) for value, fall in pairs if value is not None and fall is not None]
    if len(both) < 2:
        return None
    rho, interval = spearman([value for value, _ in both], [fall for _, fall in both])
    if math.isnan(rho):
        return None
    return Correlation(outcome=outcome, measure=measure, treatments=which, rho=rho, interval=interval, n=len(both))


def _mean_measures(rows: Sequence[ArmRemoval | None]) -> dict[str, float | None]:
    """Means over the replays of the seeds; None where one of them lacks the number."""
    present = [row for row in rows if row is not None]
    means: dict[str, float | None] = {}
    for name in MEASURES:
        values = [getattr(row, name) for row in present]
        means[name] = None if not values or None in values else float(np.mean(values))
    return means


def _falls(spec: Spec, table: Foretell, condition: str, outcome: str, metrics: Metrics) -> dict[str, float]:
    """{seed: rate of the untreated minus that of the condition, at the end}, of the seeds that have both."""
    sides = []
    for name in (table.untreated, condition):
        arm = spec.arms_of(next(row for row in spec.conditions if row.name == name))[0]
        row = metrics.get(MetricKey(f"{outcome}_final", "seed", arm, name))
        sides.append({} if row is None else row.by_unit)
    untreated, treated = sides
    return {seed: untreated[seed] - treated[seed] for seed in untreated if seed in treated}
