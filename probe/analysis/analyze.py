"""analyze: one run to one plain, JSON-able Analysis."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from probe.analysis.conclusions import conclusions
from probe.analysis.contrasts import (
    CONTRASTS,
    SCORES,
    Bucket,
    Cell,
    Contrast,
    Specificity,
    advantage_cells,
    buckets,
    contrast,
    specificity,
)
from probe.analysis.trajectory import ArmSummary, TrajectoryRow, summarise, trajectory
from probe.analysis.verification import Check, Evidence, verification
from probe.arms import ARMS
from probe.records import DEFAULT_CONDITION
from probe.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Everything that the records of one run say under one condition."""

    run: str
    condition: str
    arms: tuple[str, ...]  # in order of first appearance
    measured_arm: str | None  # stands for vanilla in cells, specificity and verification
    num_steps: int
    num_samples: int  # of the measured arm
    num_prompts: int
    mixed_steps: int  # steps whose group answers different prompts
    loss_types: tuple[str, ...]
    cells: list[Cell]
    trajectory: list[TrajectoryRow]
    summaries: list[ArmSummary]
    buckets: list[Bucket]
    contrasts: list[Contrast]
    specificity: list[Specificity]
    null_reasons: dict[str, int]  # samples of the measured arm without cos_S_contrib; buckets count both metrics
    checks: list[Check]
    conclusions: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        return asdict(self)


def conditions(run: Run) -> list[str]:
    """The conditions of a run, the primary first: `default`, or else the first in order of appearance."""
    names = list(dict.fromkeys(step.condition for step in run.steps))
    return sorted(names, key=lambda name: name != DEFAULT_CONDITION)


def analyze(run: Run, condition: str | None = None, *, seed: int = 0) -> Analysis:
    """Evaluate every table, null and check of one run under one condition.

    Args:
        run: as `probe.records.read_run` gives it.
        condition: None = the primary.
        seed: of the sampled sign flips and the bootstrap.
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
    contrasts = [contrast(samples[arm], spec, arm, seed=seed) for arm in arms for spec in CONTRASTS]
    areas = [specificity(own, score, measured, seed=seed) for score in SCORES] if measured else []
    all_buckets = [row for arm in arms for row in buckets(samples[arm], arm)]
    mixed_steps = len({step.step for step in run.steps if step.mixed_prompt})
    reasons = dict(Counter(s.null_reason or "" for s in own if s.cos_S_contrib is None))
    evidence = Evidence(
        steps=run.steps,
        samples=own,
        measured=summaries[measured] if measured else None,
        summaries=summaries,
        buckets=[row for row in all_buckets if row.arm == measured],
        contrasts=[row for row in contrasts if row.arm == measured],
        specificity=areas[0] if areas else None,
    )
    return Analysis(
        run=run.path.name,
        condition=condition,
        arms=arms,
        measured_arm=measured,
        num_steps=len({step.step for step in run.steps}),
        num_samples=len(own),
        num_prompts=len({step.problem_id for step in run.steps}),
        mixed_steps=mixed_steps,
        loss_types=tuple(dict.fromkeys(step.loss_type for step in run.steps)),
        cells=advantage_cells(own),
        trajectory=trajectory(run.steps),
        summaries=list(summaries.values()),
        buckets=all_buckets,
        contrasts=contrasts,
        specificity=areas,
        null_reasons=reasons,
        checks=verification(evidence),
        conclusions=conclusions(evidence.measured, summaries, contrasts, areas, reasons, len(own), mixed_steps),
    )


def measured_arm(arms: Iterable[str]) -> str | None:
    """The arm whose `*_in` measures stand for vanilla: vanilla, or else the first that uses v_hack.

    Before its gate, an arm that uses v_hack measures what vanilla measures as long as the weights are frozen.
    """
    hack = [arm for arm in arms if arm in ARMS and ARMS[arm].directions == "v_hack"]
    return "vanilla" if "vanilla" in hack else (hack[0] if hack else None)
