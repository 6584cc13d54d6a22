"""The table `intervention` of a run: its arms, their gate, and where their directions come from."""

from dataclasses import dataclass, field

from extraction.words import ExtractionSettings
from probe.settings.arms import ARMS
from probe.settings.ranges import at_least, known_words
from probe.settings.words import Gate, Target
from replay_pools.errors import FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """The gate of the arms that project (`probe.step.projection`)."""

    gate: Gate | None = None  # None: each arm's own
    overshoot: float = 1.0  # factor on the part that is removed
    target: Target = "gradient"  # where weights move: the gate acts on the gradient, or on the optimizer's update

    def __post_init__(self) -> None:
        """Refuse a negative overshoot, which would add the part that a gate removes."""
        if self.overshoot < 0:
            raise FieldError("overshoot", "at least 0", self.overshoot)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionConfig:
    """The arms, and where their directions come from."""

    arms: tuple[str, ...] = ("projected",)  # rows of probe.settings.arms.ARMS; one where weights move
    gate: GateConfig = field(default_factory=GateConfig)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    v_hack: str | None = None  # direction file; None extracts
    refresh_every: int | None = None  # steps between extractions from the current policy; None = at the start alone

    def __post_init__(self) -> None:
        """Refuse unknown or repeated arms, and a direction file together with `refresh_every`."""
        known_words("arms", self.arms, ARMS)
        if not self.arms or len(set(self.arms)) != len(self.arms):
            actual = ", ".join(self.arms) or "none"
            raise FieldError("arms", "different arms, at least one", actual)
        at_least(1, refresh_every=self.refresh_every)
        if self.v_hack is not None and self.refresh_every is not None:
            raise FieldError("v_hack, refresh_every", "one of them", "both: a file is not extracted again")
        dosed = [name for name in self.arms if ARMS[name].dosed]
        if dosed and self.refresh_every is not None:
            found = f"{dosed[0]}, whose dose is that of v_hack at the start"
            raise FieldError("refresh_every", "none with an arm that is dosed", found)
