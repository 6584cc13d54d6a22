"""Everything that was measured of one run under one condition: `Evidence`, from which every verdict is made.

To add a measure: a function in `probe.analysis`, and a property here.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from extraction.words import Adapted, Basis
from probe.analysis.cosines import (
    ArmSummary,
    Cell,
    Contrast,
    Specificity,
    advantage_cells,
    buckets,
    contrasts,
    num_problems,
    summarise,
)
from probe.analysis.forecast import Forecast, forecast
from probe.analysis.lookahead import Moved, moves
from probe.analysis.pull import Ceiling, Share, ceilings, shares
from probe.analysis.remembered import remembered
from probe.analysis.rivals import areas
from probe.analysis.statistics.nulls import SignTransfer, sign_transfer
from probe.analysis.statistics.permutation import NUM_DRAWS, Permutation, permutation_nulls
from probe.analysis.statistics.run_gradients import Linked, has_gram, link
from probe.analysis.statistics.thresholds import REPRODUCED
from probe.analysis.training_runs import TrainingOutcome, is_training, starts, training_outcome, trains
from probe.analysis.transfer import Transfer, transfer
from probe.analysis.verdict.pools import PoolFacts, pool_facts
from probe.records.records import SampleRecord, StepRecord
from probe.records.run import Run
from probe.settings.arms import ARMS, measured_arm
from probe.settings.training import GateConfig
from probe.settings.words import DEFAULT_CONDITION


class Evidence:
    """One run under one condition. A measure is computed when it is first asked for.

    The measured arm stands for vanilla (`probe.settings.arms.measured_arm`). What rests on inner products of gradients
    is empty or None where the run has none of the measured arm's basis, where it trains, and where they miss the
    recorded cosines.
    """

    def __init__(
        self,
        run: Run,
        condition: str | None = None,
        *,
        basis: Basis | None = None,
        num_draws: int = NUM_DRAWS,
        seed: int = 0,
        others: Sequence[Run] = (),
    ) -> None:
        """As `probe.analysis.analyze.analyze`."""
        self.condition = next(iter(conditions(run)), DEFAULT_CONDITION) if condition is None else condition
        self.given, self.others = run, others
        self.num_draws, self.seed = num_draws, seed

        def is_here(record: StepRecord | SampleRecord) -> bool:
            of_basis = basis is None or (record.arm in ARMS and ARMS[record.arm].basis == basis)
            return of_basis and record.condition == self.condition

        self.records = replace(run, steps=list(filter(is_here, run.steps)), samples=list(filter(is_here, run.samples)))

    @property
    def run(self) -> str:
        """Its name."""
        return self.records.path.name

    @property
    def steps(self) -> list[StepRecord]:
        """Of all arms."""
        return self.records.steps

    @cached_property
    def trains(self) -> bool:
        """Whether an optimizer steps: steps are autocorrelated then, and the run is the unit."""
        return trains(self.records)

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """In the order of their first steps."""
        arms = tuple(dict.fromkeys(step.arm for step in self.steps))
        # A training may stop before its first step, and is evaluated all the same.
        return tuple(self.records.settings["intervention"]["arms"]) if is_training(self.records) and not arms else arms

    @cached_property
    def measured_arm(self) -> str | None:
        """The arm that stands for vanilla; None where none measures along v_hack."""
        return measured_arm(self.arms)

    @property
    def basis(self) -> Basis:
        """Of the measured arm; svd where there is none."""
        return "svd" if self.measured_arm is None else ARMS[self.measured_arm].basis

    @cached_property
    def samples(self) -> list[SampleRecord]:
        """Of the measured arm."""
        return [sample for sample in self.records.samples if sample.arm == self.measured_arm]

    @cached_property
    def sure(self) -> list[SampleRecord]:
        """Those of them whose label is sure: only these stand on a side of a contrast."""
        return [sample for sample in self.samples if sample.sure]

    @property
    def unlabelled(self) -> bool:
        """Whether nothing says of any sample whether it hacks."""
        return bool(self.samples) and all(sample.hacked is None for sample in self.samples)

    @property
    def num_steps(self) -> int:
        """Groups."""
        return len({step.step for step in self.steps})

    @property
    def num_samples(self) -> int:
        """Of the measured arm."""
        return len(self.samples)

    @property
    def num_prompts(self) -> int:
        """Problems, each once."""
        return num_problems(self.steps)

    @property
    def loss_types(self) -> tuple[str, ...]:
        """In the order of their first steps."""
        return tuple(dict.fromkeys(step.loss_type for step in self.steps))

    @property
    def gate(self) -> GateConfig:
        """The gate options of the run."""
        options = self.records.settings.get("intervention", {}).get("gate", {})
        return GateConfig(**{name: options[name] for name in ("gate", "overshoot", "target") if name in options})

    @property
    def adapted(self) -> Adapted | None:
        """How much of the model has coordinates; None of a run that does not say."""
        stored = self.records.manifest.get("adapted")
        return None if stored is None else Adapted(**stored)

    @cached_property
    def pools(self) -> list[PoolFacts]:
        """How the pools of the run were made and graded."""
        return pool_facts(self.records)

    @cached_property
    def starts(self) -> list[StepRecord]:
        """The first steps of the runs that differ from this one in their arm alone."""
        return starts(self.records, self.others)

    @cached_property
    def outcome(self) -> TrainingOutcome | None:
        """What training did; None where nothing was evaluated on held-out problems."""
        return training_outcome(self.records) if is_training(self.records) else None

    @cached_property
    def summaries(self) -> list[ArmSummary]:
        """A row an arm."""
        return [summarise(self.steps, arm, trains=self.trains, seed=self.seed) for arm in self.arms]

    def summary(self, arm: str | None) -> ArmSummary | None:
        """The row of an arm."""
        return next((row for row in self.summaries if row.arm == arm), None)

    @cached_property
    def contrasts(self) -> list[Contrast]:
        """Of every arm."""
        rows = []
        for arm in self.arms:
            sure = [sample for sample in self.records.samples if sample.arm == arm and sample.sure]
            rows += contrasts(sure, arm, trains=self.trains, seed=self.seed)
        return rows

    @cached_property
    def buckets(self) -> list[Cell]:
        """Of the measured arm."""
        return buckets(self.sure)

    @cached_property
    def cells(self) -> list[Cell]:
        """Of the measured arm."""
        return advantage_cells(self.sure)

    @cached_property
    def specificity(self) -> list[Specificity]:
        """How well the cosine (first) and each trivial score tell hacks apart, in the measured arm."""
        if self.measured_arm is None:
            return []
        extracted = None if self.linked is None else 2 * int((~self.linked.pairs.held_out).sum())
        return areas(self.records, self.sure, self.measured_arm, labels=extracted)

    @cached_property
    def linked(self) -> Linked | None:
        """The records of the measured arm with their inner products; None where there are none, or weights move."""
        arm = self.measured_arm
        if arm is None or self.trains or not self.samples or not has_gram(self.records, ARMS[arm].basis):
            return None
        return link(self.records, self.samples, [step for step in self.steps if step.arm == arm])

    @property
    def reproduced(self) -> Linked | None:
        """The same where they give the recorded cosines: a null of other gradients would be of another statistic."""
        return None if self.linked is None or self.linked.error > REPRODUCED else self.linked

    @cached_property
    def permutation(self) -> Permutation | None:
        """Statistics against directions of permuted labels."""
        linked = self.reproduced
        if linked is None:
            return None
        make = partial(permutation_nulls, linked, num_draws=self.num_draws, seed=self.seed)
        return remembered(self.records, f"permutation {self.num_draws} {self.seed}", Permutation, make)

    @cached_property
    def transfer(self) -> SignTransfer | None:
        """Of v_hack to the held-out pairs."""
        return None if self.reproduced is None else sign_transfer(self.reproduced.pairs)

    @cached_property
    def shares(self) -> list[Share]:
        """Of the held-out ceiling."""
        if self.reproduced is None:
            return []
        make = partial(shares, self.reproduced, seed=self.seed)
        return remembered(self.records, f"shares {self.seed}", list[Share], make)

    def share(self, name: str) -> Share | None:
        """A share by its name (`probe.analysis.pull`); None where nothing was measured."""
        return next((share for share in self.shares if share.name == name), None)

    @cached_property
    def ceilings(self) -> list[Ceiling]:
        """By kind of hack."""
        if self.reproduced is None:
            return []
        pairs = self.reproduced.pairs
        return remembered(
            self.records, f"ceilings {self.seed}", list[Ceiling], lambda: list(ceilings(pairs, self.seed))
        )

    @cached_property
    def forecast(self) -> Forecast | None:
        """Of the gate that the projecting arm of the run has, or would have."""
        if self.reproduced is None or self.measured_arm is None:
            return None
        gate, overshoot = self.gate.gate or ARMS[self.measured_arm].gate, self.gate.overshoot
        make = partial(forecast, self.reproduced, gate=gate, overshoot=overshoot, seed=self.seed)
        return remembered(self.records, f"forecast {gate} {overshoot} {self.seed}", Forecast | None, make)

    @cached_property
    def own(self) -> Transfer | None:
        """How v_hack tells apart what the policy itself has sampled; None without inner products."""
        settings = self.records.settings.get("model") or {}
        policy = (self.records.config.get("model"), settings.get("adapter"))
        names = [pool.name for pool in self.pools if pool.policy == policy]
        return None if self.reproduced is None else transfer(self.reproduced, names)

    @cached_property
    def lookahead(self) -> list[Moved]:
        """What every arm's steps on the stored rollouts moved; empty for a run that did not look ahead."""
        return moves(self.records.lookahead)


def conditions(run: Run) -> list[str]:
    """The conditions of a run, the primary first: `default`, or else the first in order of appearance."""
    names = list(dict.fromkeys(step.condition for step in run.steps))
    return sorted(names, key=lambda name: name != DEFAULT_CONDITION)
