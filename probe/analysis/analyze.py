"""Analysis: the full analysis of one run under one loss variant, from its records and stored inner products.

    analysis = analyze("demo")
    analysis.verdict.word             BROKEN, SKIP, CONFOUNDED, GENERIC, UNDERPOWERED, LIKELY, GO or TRAINED
    analysis.of("auroc")              estimates of one family: AUROC of v_hack, then of scores without a direction
    analysis.to_json()                the output of `probe analyze --json`

To add an estimate, see `probe.analysis.families`.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from extraction.settings import Adapted, Basis
from probe.analysis.cosines import cells, num_problems
from probe.analysis.estimate import Estimate
from probe.analysis.families import FAMILIES
from probe.analysis.statistics.run_gradients import Linked, has_gram, link
from probe.analysis.statistics.thresholds import REPRODUCED
from probe.analysis.training_runs import TrainingOutcome, training_outcome
from probe.analysis.verdict.decision import decide
from probe.analysis.verdict.pools import PoolFacts, pool_facts
from probe.analysis.verdict.validity import validity
from probe.analysis.verdict.verdict import Finding, Verdict
from probe.records.records import SampleRecord, StepRecord
from probe.records.run import Run, read_run
from probe.settings.arms import ARMS, measured_arm
from probe.settings.words import DEFAULT_CONDITION, Side, Word
from replay_pools.base.errors import InputError

__all__ = ["FAMILIES", "Analysis", "analyze", "conditions"]
ANY = "*"  # arm


class Analysis:
    """One run under one loss variant. Each measure is computed on first access.

    The measured arm stands for vanilla (`probe.settings.arms.measured_arm`). Estimates that need inner products of
    gradients are missing if the run stored none in the measured arm's basis, if it trains, or if the inner products do
    not reproduce the recorded cosines.
    """

    def __init__(
        self,
        run: Run,
        condition: str | None = None,
        *,
        basis: Basis | None = None,
        seed: int = 0,
        others: Sequence[Run] = (),
    ) -> None:
        """Take the arguments of `analyze`."""
        self.condition = next(iter(conditions(run)), DEFAULT_CONDITION) if condition is None else condition
        self.given, self.others, self.seed = run, others, seed
        self._families: dict[str, list[Estimate]] = {}

        def is_here(record: StepRecord | SampleRecord) -> bool:
            of_basis = basis is None or (record.arm in ARMS and ARMS[record.arm].basis == basis)
            return of_basis and record.condition == self.condition

        self.records = replace(run, steps=list(filter(is_here, run.steps)), samples=list(filter(is_here, run.samples)))

    def __repr__(self) -> str:
        """Return one line; `print(analysis.verdict)` shows the screen of `probe analyze`."""
        return f"Analysis({self.run}: {self.verdict.word})"

    def _repr_html_(self) -> str:
        """Return the screen, for a notebook."""
        return f"<pre>{escape(str(self.verdict))}</pre>"

    @property
    def run(self) -> str:
        """The run's name."""
        return self.records.path.name

    @property
    def steps(self) -> list[StepRecord]:
        """The step records of all arms."""
        return self.records.steps

    @cached_property
    def trains(self) -> bool:
        """Return True if an optimizer steps: the steps are then autocorrelated, so the run is the unit."""
        return self.records.settings.trains

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """The arms, in the order of their first steps."""
        arms = tuple(dict.fromkeys(step.arm for step in self.steps))
        # A training that stops before its first step is still evaluated.
        return self.records.settings.intervention.arms if self.records.settings.verb == "train" and not arms else arms

    @cached_property
    def measured_arm(self) -> str | None:
        """The arm that stands for vanilla; None if no arm measures along v_hack."""
        return measured_arm(self.arms)

    @property
    def basis(self) -> Basis:
        """The measured arm's basis, or "svd" without one."""
        return "svd" if self.measured_arm is None else ARMS[self.measured_arm].basis

    @cached_property
    def samples(self) -> list[SampleRecord]:
        """The measured arm's samples."""
        return [sample for sample in self.records.samples if sample.arm == self.measured_arm]

    @cached_property
    def sure(self) -> list[SampleRecord]:
        """The measured arm's samples with a reliable label; only these enter contrasts."""
        return [sample for sample in self.samples if sample.sure]

    @property
    def unlabelled(self) -> bool:
        """Return True if no sample has a hack label."""
        return bool(self.samples) and all(sample.hacked is None for sample in self.samples)

    @cached_property
    def size(self) -> dict[str, Any]:
        """The numbers of groups, of the measured arm's samples, and of distinct problems; the loss types in use."""
        return {
            "num_steps": len({step.step for step in self.steps}),
            "num_samples": len(self.samples),
            "num_prompts": num_problems(self.steps),
            "loss_types": tuple(dict.fromkeys(step.loss_type for step in self.steps)),
        }

    @property
    def adapted(self) -> Adapted | None:
        """The part of the model that has coordinates; None if the run does not record it."""
        stored = self.records.manifest.get("adapted")
        return None if stored is None else Adapted(**stored)

    @cached_property
    def pools(self) -> list[PoolFacts]:
        """The origin and grading of the run's pools."""
        return pool_facts(self.records)

    @cached_property
    def outcome(self) -> TrainingOutcome | None:
        """The result of training; None without an evaluation on held-out problems."""
        return training_outcome(self.records) if self.records.settings.verb == "train" else None

    def of(self, family: str) -> list[Estimate]:
        """Return the estimates of a family (a key of `FAMILIES`), computed on first access."""
        if family not in self._families:
            self._families[family] = list(FAMILIES[family].make(self))
        return self._families[family]

    def get(self, family: str, name: str, arm: str | None = ANY) -> Estimate:
        """Return one estimate of a family by name and arm; one without value, n and parts if it was not measured."""
        rows = (row for row in self.of(family) if row.name == name and arm in (ANY, row.arm))
        return next(rows, Estimate(name=name))

    @cached_property
    def linked(self) -> Linked | None:
        """The measured arm's records with their inner products; None without inner products or if the weights move."""
        arm = self.measured_arm
        if arm is None or self.trains or not self.samples or not has_gram(self.records, ARMS[arm].basis):
            return None
        return link(self.records, self.samples, [step for step in self.steps if step.arm == arm])

    @property
    def reproduced(self) -> Linked | None:
        """`linked` if it reproduces the recorded cosines: nulls of other gradients would test another statistic."""
        return None if self.linked is None or self.linked.error > REPRODUCED else self.linked

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        """The measured arm's samples by source, label, hint, correctness and sign of the advantage."""
        return cells(self.sure)

    @property
    def projection(self) -> tuple[Side, float]:
        """The forecast projection: side and overshoot of the arm that projects, or would project."""
        how, arm = self.records.settings.intervention.projection, self.measured_arm
        return how.side or (ARMS[arm].side if arm else "one_sided"), how.overshoot

    @cached_property
    def validity(self) -> list[Finding]:
        """The findings on whether the measurement can be trusted, one per part."""
        return validity(self)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict of the measured arm's basis."""
        return decide(self, self.validity)

    @property
    def failed(self) -> bool:
        """Return True if the verdict argues against a GO; UNDERPOWERED and LIKELY leave it open."""
        return self.verdict.word in (Word.BROKEN, Word.SKIP, Word.CONFOUNDED, Word.GENERIC)

    def settle(self) -> "Analysis":
        """Compute everything that a sweep needs, then free the inner products; later access loads them again."""
        _ = self.verdict, self.trains or [self.of(family) for family in FAMILIES]
        self.__dict__.pop("linked", None)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and None; `estimates` lists the estimates of every family."""
        adapted, outcome = (None if part is None else asdict(part) for part in (self.adapted, self.outcome))
        return {
            **{"run": self.run, "condition": self.condition, "arms": self.arms, "measured_arm": self.measured_arm},
            **self.size,
            **{"verdict": asdict(self.verdict), "validity": [asdict(part) for part in self.validity]},
            **{"adapted": adapted, "cells": self.cells, "outcome": outcome},
            "estimates": [{"family": family, **asdict(row)} for family in FAMILIES for row in self.of(family)],
        }


def analyze(
    run: Run | str | Path,
    condition: str | None = None,
    *,
    basis: Basis | None = None,
    seed: int = 0,
    others: Sequence[Run] = (),
) -> Analysis:
    """Judge one run under one loss variant, as `probe analyze` does.

    >>> print(probe.analyze("demo").verdict.word)
    UNDERPOWERED

    Args:
        run: the result of `probe.replay` or `probe.read_run`, a path, or a name in out/runs.
        condition: the loss variant; None = the primary one.
        basis: analyze only the arms in this basis; None: all arms, with the verdict in the measured arm's basis.
        seed: seed of the draws, the sampled sign flips and the bootstraps.
        others: further runs; trainings that differ only in their arm must have the same first step.

    Raises:
        InputError: no arm measures along v_hack in the basis; a file of inner products is missing or changed.
    """
    run = run if isinstance(run, Run) else read_run(run)
    arms = list(dict.fromkeys(step.arm for step in run.steps))
    measured = {ARMS[arm].basis for arm in arms if arm in ARMS and ARMS[arm].directions == "v_hack"}
    if basis is not None and basis not in measured:
        fix = "replay the same pools with such an arm: projected for svd, projected-lora for lora"
        raise InputError(run.path, expected=f"an arm along v_hack in the basis {basis}", found=", ".join(arms), fix=fix)
    analysis = Analysis(run, condition, basis=basis, seed=seed, others=others)
    _ = analysis.verdict  # raises errors about the run's files here
    return analysis


def conditions(run: Run) -> list[str]:
    """Return the loss variants of a run, the primary first: `default`, or else the first to appear."""
    names = list(dict.fromkeys(step.condition for step in run.steps))
    return sorted(names, key=lambda name: name != DEFAULT_CONDITION)
