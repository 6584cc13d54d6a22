"""The tables of a preregistered experiment, `spec/NAME.toml`: types only; `load` reads and checks them.

No table has a key that is not declared here, and no value is converted; `spec/guide/specs.md` is the manual.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from probe.settings.arms import measured_arm
from probe.settings.run import ReplayConfig, TrainConfig
from probe.settings.words import OF_ARM, OF_REPLAY

Role = Literal["primary", "check", "mechanism"]
Statistic = Literal["mean", "value", "lower95", "upper95", "interval90", "p", "min", "max", "n"]
Comparison = Literal[">", ">=", "<", "<=", "inside"]
Unit = Literal["prompt", "problem", "seed", "step", "pair"]
Null = Literal["none", "N1", "N2", "N3", "N4", "baselines"]
SpecStatus = Literal["frozen", "edited", "none"]

BASE_CONDITION = "base"
# {what a decision may require beside a criterion: its words}
VERDICT, OUTCOME = "verdict", "outcome"
WORDS: Mapping[str, tuple[str, ...]] = {VERDICT: OF_REPLAY, OUTCOME: OF_ARM}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCondition:
    """What the runs of a condition are told."""

    name: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    config: ReplayConfig | TrainConfig  # of its first arm where it trains, else of all

    @property
    def frozen(self) -> bool:
        """Whether nothing is trained."""
        return not self.config.trains

    @property
    def group(self) -> int:
        """G, rollouts that share a baseline."""
        if isinstance(self.config, ReplayConfig):
            return self.config.source.per_pool * len(self.config.source.replay_dirs)
        return self.config.rollouts.group

    @property
    def prompts_per_step(self) -> int:
        """Groups in a step."""
        return self.config.rollouts.prompts_per_step if isinstance(self.config, TrainConfig) else 1

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools that are read."""
        if isinstance(self.config, ReplayConfig):
            return self.config.source.replay_dirs
        teacher = self.config.rollouts.teacher
        return () if teacher is None else (teacher.pool,)


class _Table(BaseModel):
    """A table of the file: unknown keys and wrong types are refused, nothing is converted, nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Experiment(_Table):
    """What is asked."""

    name: str  # the file's name without .toml
    question: str
    hypotheses: tuple[str, ...] = Field(min_length=1)


class SpecCondition(_Table):
    """A named set of settings that replace those of the spec; a table replaces key by key."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)
    arms: tuple[str, ...] | None = Field(default=None, min_length=1)  # None: those of the spec
    seeds: tuple[int, ...] | None = Field(default=None, min_length=1)  # None: those of the spec


class SpecPool(_Table):
    """A pool that the sweep generates first, unless it is there: settings of `probe pool generate`."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)


class Criterion(_Table):
    """`statistic` of `metric` over `unit`s, compared with `threshold`; a difference where a `versus_*` is given."""

    name: str
    metric: str
    statistic: Statistic
    comparison: Comparison
    threshold: float | tuple[float, float]
    unit: Unit
    null: Null = "none"
    role: Role
    arm: str | None = None  # None: the arm that stands for vanilla
    versus_arm: str | None = None
    condition: str | None = None  # None: the first
    versus_condition: str | None = None
    paired: bool = True  # the difference: unit by unit, or of two independent samples (Welch)
    why: str = ""
    reported: str = ""  # what the study that asked this first found, in its own numbers

    @property
    def compared(self) -> bool:
        """Whether it is about a difference."""
        return self.versus_arm is not None or self.versus_condition is not None


class SpecDecision(_Table):
    """What follows when every named criterion has (one of) the required verdicts; the last decision needs nothing.

    Beside criteria it may name `verdict`, of the replay under the primary's condition, and `outcome`, of the arm that
    the primary is about after its training (METHOD section 7).
    """

    name: str
    requires: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    then: str = ""

    def allowed(self, name: str) -> tuple[str, ...]:
        """The words that are accepted of one of its requirements."""
        required = self.requires[name]
        return (required,) if isinstance(required, str) else required


class Cost(_Table):
    """The size and price of a set of training or replay runs; what is not stated is measured or left out."""

    seeds: int | None = Field(default=None, ge=1)
    arms: int | None = Field(default=None, ge=1)
    hours_per_run: float | None = Field(default=None, gt=0)
    price_per_hour: float | None = Field(default=None, ge=0)
    currency: str = "USD"
    expected_effect: float | None = Field(default=None, gt=0)
    effect_unit: str = ""
    sd: float | None = Field(default=None, gt=0)  # of the effect's metric between units, one arm
    paired_correlation: float | None = Field(default=None, gt=-1, lt=1)  # of the arms of one unit


class Budget(Cost):
    """What this experiment costs, and `go`: what a GO would buy."""

    go: Cost | None = None


class Ceiling(_Table):
    """What is spent before the answer is known: the runs that a criterion is about come first, in every seed.

    The others are made only if the criterion has one of the verdicts `others_if` on them. Of several criteria each adds
    its runs to those of the earlier ones.
    """

    criteria: tuple[str, ...] = ()  # none: the primary
    others_if: tuple[Literal["PASS", "FAIL", "INCONCLUSIVE", "VACUOUS"], ...] = Field(default=("PASS",), min_length=1)


class Spec(_Table):
    """One experiment, as `load_spec` read it."""

    experiment: Experiment
    pools: tuple[SpecPool, ...] = ()
    settings: dict[str, Any]  # tables of a run, with `verb`, and `preset` to begin from
    conditions: tuple[SpecCondition, ...] = (SpecCondition(name=BASE_CONDITION),)
    arms: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    decisions: tuple[SpecDecision, ...] = Field(min_length=1)
    budget: Budget = Budget()
    ceiling: Ceiling | None = None

    _path: Path = PrivateAttr(default=Path())
    _sha256: str = PrivateAttr(default="")
    _resolved: "Mapping[str, ResolvedCondition]" = PrivateAttr(default_factory=dict)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.experiment.name

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def sha256(self) -> str:
        """Hash of what the file says: key order, comments and blanks do not count."""
        return self._sha256

    @property
    def mark(self) -> str:
        """NAME@SHA256, which the config of every run of the spec holds as `preregistered`."""
        return f"{self.name}@{self.sha256}"

    @property
    def primary(self) -> Criterion:
        """The one criterion that the experiment is about."""
        return next(criterion for criterion in self.criteria if criterion.role == "primary")

    @property
    def ceilings(self) -> tuple[Criterion, ...]:
        """The criteria that must pass, in this order, before the runs that they are not about are made."""
        if self.ceiling is None:
            return ()
        names = self.ceiling.criteria or (self.primary.name,)
        return tuple(next(entry for entry in self.criteria if entry.name == name) for name in names)

    @property
    def judged(self) -> tuple[str, str]:
        """(condition, arm) that the primary criterion is about."""
        return self.sides_of(self.primary)[0]

    @property
    def baseline(self) -> tuple[str, str] | None:
        """(condition, arm) of the vanilla that trainings are compared with: under the condition that the primary
        compares with, else under the first that has one; None without vanilla.
        """
        with_vanilla = [entry.name for entry in self.conditions if "vanilla" in self.arms_of(entry)]
        against = self.primary.versus_condition
        if against is None and self.primary.versus_arm is not None:
            against = self.condition_of(self.primary).name
        if against in with_vanilla:
            return against, "vanilla"
        return (with_vanilla[0], "vanilla") if with_vanilla else None

    @property
    def resolved(self) -> "Mapping[str, ResolvedCondition]":
        """{condition: what its runs are told, defaults included}, in the order of the file."""
        return self._resolved

    def arms_of(self, condition: SpecCondition) -> tuple[str, ...]:
        """The arms under a condition."""
        return condition.arms or self.arms

    def seeds_of(self, condition: SpecCondition) -> tuple[int, ...]:
        """The seeds of a condition."""
        return condition.seeds or self.seeds

    def sides_of(self, criterion: Criterion) -> tuple[tuple[str, str], tuple[str, str]]:
        """(condition, arm) that a criterion is about, of a comparison the left side; and of the right side."""
        condition = self.condition_of(criterion)
        left = condition.name, criterion.arm or self.stand_in(condition)
        return left, (criterion.versus_condition or left[0], criterion.versus_arm or left[1])

    def stand_in(self, condition: SpecCondition) -> str:
        """The arm that a criterion without one is about: the one that stands for vanilla under a condition."""
        arms = self.arms_of(condition)
        return measured_arm(arms) or arms[0]

    def condition(self, name: str) -> SpecCondition:
        """The condition of a name."""
        return next(entry for entry in self.conditions if entry.name == name)

    def condition_of(self, criterion: Criterion) -> SpecCondition:
        """The condition that a criterion is about, of a comparison the left side: the first where it names none."""
        return next(entry for entry in self.conditions if criterion.condition in (None, entry.name))
