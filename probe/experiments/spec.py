"""Types of the tables of a preregistered experiment, `spec/NAME.toml`; `load` reads and checks them.

Undeclared keys are refused and no value is converted. `spec/guide/specs.md` is the manual.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from probe.settings.arms import measured_arm
from probe.settings.run import GenerateConfig, ReplayConfig, TrainConfig
from probe.settings.words import OF_ARM, OF_REPLAY

Role = Literal["primary", "check", "mechanism"]

BASE_CONDITION = "base"
# {evidence that a decision may require in addition to criteria: its words}
VERDICT, OUTCOME = "verdict", "outcome"
WORDS: Mapping[str, tuple[str, ...]] = {VERDICT: OF_REPLAY, OUTCOME: OF_ARM}


class _Table(BaseModel):
    """A table of the file: frozen, without unknown keys, wrong types or conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Experiment(_Table):
    """The name and the question of an experiment."""

    name: str  # the file's name without .toml
    question: str
    hypotheses: tuple[str, ...] = Field(min_length=1)


class SpecCondition(_Table):
    """Named settings that override the spec's; tables are merged key by key."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)
    arms: tuple[str, ...] = Field(default=(), min_length=1)  # without a value in the file: the spec's
    seeds: tuple[int, ...] = Field(default=(), min_length=1)  # the same

    _config: ReplayConfig | TrainConfig | None = PrivateAttr(default=None)

    @property
    def config(self) -> ReplayConfig | TrainConfig:
        """All settings, defaults included: of the first arm in training, else of all arms."""
        assert self._config is not None, "load_spec sets it"
        return self._config

    @property
    def frozen(self) -> bool:
        """True if nothing is trained."""
        return not self.config.trains


class SpecPool(_Table):
    """A pool that the sweep generates before its runs if missing, with settings of `probe pool generate`."""

    name: str
    settings: dict[str, Any] = Field(default_factory=dict)

    _config: GenerateConfig | None = PrivateAttr(default=None)

    @property
    def config(self) -> GenerateConfig:
        """All settings, defaults included."""
        assert self._config is not None, "load_spec sets it"
        return self._config


class Criterion(_Table):
    """An estimate, or its difference between two sides, against exactly one of `above`, `below` and `inside`."""

    name: str
    estimate: str  # one of `probe.analysis.measures.names`
    above: float | None = None
    below: float | None = None
    inside: tuple[float, float] | None = None  # both ends included
    role: Role
    arm: str | None = None  # None: the arm that represents vanilla
    versus_arm: str | None = None
    condition: str | None = None  # None: the first
    versus_condition: str | None = None
    why: str = ""

    @property
    def compared(self) -> bool:
        """True if the criterion is about a difference."""
        return self.versus_arm is not None or self.versus_condition is not None


class SpecDecision(_Table):
    """A decision, taken if every named criterion has (one of) the required verdicts; the last one requires nothing.

    A decision may also require `verdict`, the replay's verdict under the primary's condition, and `outcome`, the
    training outcome of the primary's arm (METHOD section 7).
    """

    name: str
    requires: dict[str, str | tuple[str, ...]] = Field(default_factory=dict)
    then: str = ""

    def allowed(self, name: str) -> tuple[str, ...]:
        """Return the accepted words of one requirement."""
        required = self.requires[name]
        return (required,) if isinstance(required, str) else required


class Budget(_Table):
    """The effect that the experiment should detect, and its price; missing values are measured or left out."""

    hours_per_run: float | None = Field(default=None, gt=0)
    price_per_hour: float | None = Field(default=None, ge=0)
    currency: str = "USD"
    expected_effect: float | None = Field(default=None, gt=0)
    effect_unit: str = ""
    sd: float | None = Field(default=None, gt=0)  # of the metric between units of one arm


class Ceiling(_Table):
    """A limit on spending before the answer is known: the runs that a criterion needs come first, in every seed.

    The sweep makes the other runs only if the criterion's verdict on the first runs is in `others_if`. Each further
    criterion adds its runs to the earlier ones.
    """

    criteria: tuple[str, ...] = ()  # empty: the primary
    others_if: tuple[Literal["PASS", "FAIL", "INCONCLUSIVE", "VACUOUS"], ...] = Field(default=("PASS",), min_length=1)


class Spec(_Table):
    """One experiment, as `load_spec` returns it."""

    experiment: Experiment
    pools: tuple[SpecPool, ...] = ()
    settings: dict[str, Any]  # tables of a run, with `verb` and the `preset` to start from
    conditions: tuple[SpecCondition, ...] = (SpecCondition(name=BASE_CONDITION),)
    arms: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    decisions: tuple[SpecDecision, ...] = Field(min_length=1)
    budget: Budget = Budget()
    ceiling: Ceiling | None = None

    _path: Path = PrivateAttr(default=Path())
    _sha256: str = PrivateAttr(default="")

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.experiment.name

    @property
    def path(self) -> Path:
        """File of the spec."""
        return self._path

    @property
    def sha256(self) -> str:
        """Hash of the file's content, independent of key order, comments and blanks."""
        return self._sha256

    @property
    def mark(self) -> str:
        """NAME@SHA256, stored as `preregistered` in the config of every run of the spec."""
        return f"{self.name}@{self.sha256}"

    @property
    def primary(self) -> Criterion:
        """Criterion that answers the experiment's question."""
        return next(criterion for criterion in self.criteria if criterion.role == "primary")

    @property
    def ceilings(self) -> tuple[Criterion, ...]:
        """Criteria that must pass, in this order, before the sweep makes the other runs."""
        if self.ceiling is None:
            return ()
        names = self.ceiling.criteria or (self.primary.name,)
        return tuple(next(entry for entry in self.criteria if entry.name == name) for name in names)

    @property
    def judged(self) -> tuple[str, str]:
        """(condition, arm) of the primary criterion."""
        return self.sides_of(self.primary)[0]

    @property
    def baseline(self) -> tuple[str, str] | None:
        """(condition, arm) of the vanilla arm that trainings are compared with; None without vanilla.

        It is vanilla under the primary's `versus_condition`, else under the first condition that has vanilla.
        """
        with_vanilla = [entry.name for entry in self.conditions if "vanilla" in entry.arms]
        against = self.primary.versus_condition
        if against is None and self.primary.versus_arm is not None:
            against = self.condition(self.primary.condition).name
        if against in with_vanilla:
            return against, "vanilla"
        return (with_vanilla[0], "vanilla") if with_vanilla else None

    def sides_of(self, criterion: Criterion) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return (condition, arm) for the left side of a criterion, then for the right side.

        By default, the arm is the one that represents vanilla under the condition.
        """
        condition = self.condition(criterion.condition)
        left = condition.name, criterion.arm or measured_arm(condition.arms) or condition.arms[0]
        return left, (criterion.versus_condition or left[0], criterion.versus_arm or left[1])

    def condition(self, name: str | None) -> SpecCondition:
        """Return the condition with this name; None: the first."""
        return next(entry for entry in self.conditions if name in (None, entry.name))
