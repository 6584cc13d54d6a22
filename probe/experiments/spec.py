"""The tables of a preregistered experiment, `spec/NAME.toml`; `spec_file` reads them and checks what they name.

Undeclared keys are refused and no value is converted. `spec/guide/specs.md` is the manual.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from probe.settings.arms import ARMS
from probe.settings.verbs import GenerateConfig, ReplayConfig, TrainConfig
from probe.settings.words import OF_ARM, OF_REPLAY, word_of
from replay_pools.base.errors import InputError
from replay_pools.base.files import PLAIN_NAME
from replay_pools.base.tables import STRICT

Cell = tuple[str, str]  # (condition, arm): a run in every seed
Rows = TypeVar("Rows", bound=tuple[Any, ...])

# {evidence that a decision may require in addition to criteria: its words}
VERDICT, OUTCOME = "verdict", "outcome"
WORDS: Mapping[str, tuple[str, ...]] = {VERDICT: OF_REPLAY, OUTCOME: OF_ARM}


def _different(rows: Rows) -> Rows:
    if not rows:
        raise InputError("", expected="at least 1", found="none")
    names = [getattr(row, "name", row) for row in rows]
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise InputError("", expected="different names", found=f"{twice[0]!r} twice")
    return rows


Name = Annotated[str, Field(pattern=f"^{PLAIN_NAME.pattern}$")]  # part of the names of files
Different = AfterValidator(_different)
Arms = Annotated[tuple[Annotated[str, word_of(ARMS)], ...], Different]
Seeds = Annotated[tuple[int, ...], Different]


@dataclass(kw_only=True, config=STRICT)
class Experiment:
    """The name and the question of an experiment."""

    name: str  # the file's name without .toml
    question: str
    hypotheses: tuple[str, ...] = Field(min_length=1)


@dataclass(kw_only=True, config=STRICT)
class SpecCondition:
    """Named settings that override the spec's; tables are merged key by key."""

    name: Name
    settings: dict[str, Any] = field(default_factory=dict)
    arms: Arms = ()  # without a value in the file: the spec's
    seeds: Seeds = ()  # the same
    config: ReplayConfig | TrainConfig = field(init=False)  # all settings: of the first arm in training, else of all


@dataclass(kw_only=True, config=STRICT)
class SpecPool:
    """A pool that the sweep generates before its runs if missing, with settings of `probe pool generate`."""

    name: Name
    settings: dict[str, Any] = field(default_factory=dict)
    config: GenerateConfig = field(init=False)  # all settings


@dataclass(kw_only=True, config=STRICT)
class Criterion:
    """An estimate, or its difference between two sides, against exactly one of `above`, `below` and `inside`."""

    name: Name
    estimate: str  # one of `probe.analysis.measures.names`
    above: float | None = None
    below: float | None = None
    inside: tuple[float, float] | None = None  # both ends included
    role: Literal["primary", "check", "mechanism"]
    arm: str | None = None  # None: the arm that represents vanilla
    versus_arm: str | None = None
    condition: str | None = None  # None: the first
    versus_condition: str | None = None
    why: str = ""

    sides: tuple[Cell, ...] = field(init=False)  # the cell of the estimate, and the one that it is compared with


@dataclass(kw_only=True, config=STRICT)
class SpecDecision:
    """A decision, taken if every named criterion has (one of) the required verdicts; the last one requires nothing.

    A decision may also require `verdict`, the replay's verdict under the primary's condition, and `outcome`, the
    training outcome of the primary's arm (METHOD section 7).
    """

    name: str
    requires: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    then: str = ""

    def __post_init__(self) -> None:
        """Make one word a tuple of one."""
        self.requires = {name: (word,) if isinstance(word, str) else word for name, word in self.requires.items()}

    def unmet(self, words: Mapping[str, str]) -> list[str]:
        """Return the requirements that {criterion, `verdict` or `outcome`: its word} do not meet, as "NAME WORD"."""
        return [f"{name} {words[name]}" for name, allowed in self.requires.items() if words[name] not in allowed]


@dataclass(kw_only=True, config=STRICT)
class Budget:
    """The effect that the experiment should detect, and its price; missing values are measured or left out."""

    hours_per_run: float | None = Field(default=None, gt=0)
    price_per_hour: float | None = Field(default=None, ge=0)
    currency: str = "USD"
    expected_effect: float | None = Field(default=None, gt=0)
    effect_unit: str = ""
    sd: float | None = Field(default=None, gt=0)  # of the metric between units of one arm


@dataclass(kw_only=True, config=STRICT)
class Ceiling:
    """A limit on spending before the answer is known: the runs that a criterion needs come first, in every seed.

    The sweep makes the other runs only if the criterion passes on the first. Each further criterion adds its runs.
    """

    criteria: tuple[str, ...] = ()  # empty: the primary


@dataclass(kw_only=True, config=STRICT)
class Spec:
    """One experiment, as `load_spec` returns it."""

    experiment: Experiment
    pools: tuple[SpecPool, ...] = ()
    settings: dict[str, Any]  # tables of a run, with `verb` and the `preset` to start from
    conditions: Annotated[tuple[SpecCondition, ...], Different] = field(
        default_factory=lambda: (SpecCondition(name="base"),)
    )
    arms: Arms
    seeds: Seeds
    criteria: Annotated[tuple[Criterion, ...], Different]
    decisions: tuple[SpecDecision, ...] = Field(min_length=1)
    budget: Budget = field(default_factory=Budget)
    ceiling: Ceiling | None = None

    path: Path = field(init=False)
    sha256: str = field(init=False)  # of the file's content, independent of key order, comments and blanks

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.experiment.name

    @property
    def mark(self) -> str:
        """NAME@SHA256, stored as `preregistered` in the config of every run of the spec."""
        return f"{self.name}@{self.sha256}"

    @property
    def trains(self) -> bool:
        """True for runs of `probe train`."""
        return self.settings["verb"] == "train"

    @property
    def cells(self) -> list[Cell]:
        """All cells, in the order of the conditions."""
        return [(row.name, arm) for row in self.conditions for arm in row.arms]

    @property
    def primary(self) -> Criterion:
        """Criterion that answers the experiment's question."""
        return next(criterion for criterion in self.criteria if criterion.role == "primary")

    @property
    def baseline(self) -> Cell | None:
        """The vanilla cell that trainings are compared with; None without vanilla.

        It is vanilla under the condition that the primary compares with, else under the first that has vanilla.
        """
        names = [*(condition for condition, _ in self.primary.sides[1:]), *(row.name for row in self.conditions)]
        return next(((name, "vanilla") for name in names if "vanilla" in self.condition(name).arms), None)

    def condition(self, name: str | None) -> SpecCondition:
        """Return the condition with this name; None: the first."""
        return next(entry for entry in self.conditions if name in (None, entry.name))

    def decide(self, words: Mapping[str, str]) -> SpecDecision:
        """Return the first decision whose requirements {criterion, `verdict` or `outcome`: its word} meet."""
        return next(decision for decision in self.decisions if not decision.unmet(words))
