"""What a run that measures in several bases says in each of them, side by side, and whether the verdicts agree.

`in_basis` gives the part of a run that is of one basis; analysed by itself (`probe.analysis.analyze`), it has the
questions, numbers and verdict of that basis.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from extraction.words import Basis
from probe.analysis.statistics.intervals import Bounded
from probe.analysis.verdict.decision import Decision
from probe.analysis.verdict.evidence import Evidence
from probe.analysis.verdict.questions import Finding
from probe.analysis.verdict.unread import why_unread
from probe.records.run import Run
from probe.settings.arms import ARMS
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisAnswer:
    """The numbers behind the three questions in one basis, and the verdict; None where a share is not defined.

    Field names are keys of the JSON.
    """

    basis: Basis
    arm: str  # that stands for vanilla
    pull: Bounded | None
    contrast: Bounded | None  # hacks against clean samples
    removed: Bounded | None  # share of the progress on held-out hacks
    honest_removed: Bounded | None  # share of the progress on honest solutions: the price
    verdict: str
    unread: str  # why nothing could be read; '' where something was


def answer(findings: Sequence[Finding], decision: Decision, evidence: Evidence) -> BasisAnswer:
    """What `questions` and `decide` made of the evidence, in the basis of the measured arm, which there must be."""
    assert evidence.measured is not None
    number = {finding.name: finding.number for finding in findings}
    honest = None if evidence.forecast is None else evidence.forecast.row("honest")
    return BasisAnswer(
        basis=evidence.basis,
        arm=evidence.measured.arm,
        pull=number["hackward"],
        contrast=number["about"],
        removed=number["removable"],
        honest_removed=None if honest is None else honest.removed,
        verdict=decision.outcome,
        unread=why_unread(evidence),
    )


def bases_of(arms: Iterable[str]) -> list[Basis]:
    """The bases in which an arm measures along v_hack, in the order of the arms."""
    return list(dict.fromkeys(ARMS[arm].basis for arm in arms if arm in ARMS and ARMS[arm].directions == "v_hack"))


def in_basis(run: Run, basis: Basis) -> Run:
    """The run as if its arms of other bases had not been there.

    Raises:
        InputError: no arm of the run measures along v_hack in that basis.
    """
    arms = list(dict.fromkeys(step.arm for step in run.steps))
    if basis not in bases_of(arms):
        fix = "replay the same pools with such an arm: projected for svd, projected-lora for lora"
        raise InputError(run.path, expected=f"an arm along v_hack in the basis {basis}", found=", ".join(arms), fix=fix)
    of_basis = {arm for arm in arms if arm in ARMS and ARMS[arm].basis == basis}
    return replace(
        run,
        steps=[step for step in run.steps if step.arm in of_basis],
        samples=[sample for sample in run.samples if sample.arm in of_basis],
    )


def agreement(answers: Sequence[BasisAnswer]) -> str:
    """One sentence: whether the bases end in one verdict; '' for less than two."""
    if len(answers) < 2:
        return ""
    more = "; --basis prints each by itself"
    unread = [f"in {row.basis} nothing can be read ({row.unread})" for row in answers if row.unread]
    if unread:
        return f"The bases are not compared: {'; '.join(unread)}{more}"
    if len({row.verdict for row in answers}) == 1:
        return f"The bases agree: {answers[0].verdict} in {' and '.join(row.basis for row in answers)}{more}"
    return f"The bases do not agree: {', '.join(f'{row.verdict} in {row.basis}' for row in answers)}{more}"
