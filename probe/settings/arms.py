"""Arms: what is done to the gradient of a run, and along which directions; one row of `ARMS` each.

To add an arm: a row in `_ARMS`. Its `directions` may be of a new kind: add the word to `DirectionKind` here and its
construction to `extraction.library.DirectionLibrary.get`.

The gate laws say which multiples of the directions V a gate subtracts from a gradient g, given c = V g:

    one_sided   relu(c)    the hack-ward component alone
    two_sided   c          the whole component in the span of V
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from extraction.words import Basis
from probe.settings.words import Gate
from replay_pools.base.errors import InputError

# Of torch tensors (`probe.step.projection`) and numpy arrays (`probe.analysis`): `clip` has the keyword `min` in both.
GATES: dict[Gate, Callable[[Any], Any]] = {"one_sided": lambda c: c.clip(min=0), "two_sided": lambda c: c}
DirectionKind = Literal["v_hack", "haar", "permuted", "flipped", "placebo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm. Every arm measures the gradient against its directions; an arm that `projects` also changes it.

    >>> ARMS["projected"].directions, ARMS["projected"].gate
    ('v_hack', 'one_sided')
    """

    name: str
    basis: Basis  # coordinates in which gradients, directions and updates live
    directions: DirectionKind
    gate: Gate
    projects: bool  # the gated gradient replaces the gradient; otherwise the gradient is left alone
    dosed: bool = False  # removes as large a part of each gradient as the gate along v_hack would
    scales: bool = False  # keeps the direction, and shrinks the whole gradient to the norm that the gate would leave
    routes: bool = False  # in training, what the gate would remove is parked and not deployed (`probe.step.update`)

    @property
    def removes_v_hack(self) -> bool:
        """Whether it takes away what points along v_hack; a control takes away something else, or no direction."""
        return self.directions == "v_hack" and (self.projects or self.routes) and not self.scales


_ARMS = (
    Arm(name="vanilla", basis="svd", directions="v_hack", gate="one_sided", projects=False),
    Arm(name="projected", basis="svd", directions="v_hack", gate="one_sided", projects=True),
    # The seed's third arm, and what it is compared with: LoRA without the gate.
    Arm(name="vanilla-lora", basis="lora", directions="v_hack", gate="one_sided", projects=False),
    Arm(name="projected-lora", basis="lora", directions="v_hack", gate="one_sided", projects=True),
    Arm(name="route", basis="svd", directions="v_hack", gate="one_sided", projects=False, routes=True),
    # Controls: what a gate of the same shape does along directions that carry no hack signal.
    Arm(name="random", basis="svd", directions="haar", gate="one_sided", projects=True),
    Arm(name="permuted", basis="svd", directions="permuted", gate="one_sided", projects=True),
    Arm(name="random-dosed", basis="svd", directions="haar", gate="one_sided", projects=True, dosed=True),
    Arm(name="permuted-dosed", basis="svd", directions="permuted", gate="one_sided", projects=True, dosed=True),
    # The subspace of v_hack without its orientation.
    Arm(name="flipped-dosed", basis="svd", directions="flipped", gate="one_sided", projects=True, dosed=True),
    Arm(name="placebo", basis="svd", directions="placebo", gate="one_sided", projects=True),
    # What the gate's size does without its direction.
    Arm(name="scaled", basis="svd", directions="v_hack", gate="one_sided", projects=True, scales=True),
)
ARMS: dict[str, Arm] = {arm.name: arm for arm in _ARMS}


def get_arm(name: str) -> Arm:
    """The arm of a name.

    Raises:
        InputError: there is no such arm; the error lists the arms.
    """
    if name not in ARMS:
        raise InputError("arm", expected=f"one of {', '.join(ARMS)}", found=repr(name))
    return ARMS[name]


def measured_arm(arms: Iterable[str]) -> str | None:
    """The arm whose `*_in` measures stand for those of vanilla: vanilla, or else the first that uses v_hack.

    While the weights are frozen, an arm that uses v_hack measures before its gate what vanilla measures. None where no
    arm uses v_hack.
    """
    with_v_hack = [name for name in arms if name in ARMS and ARMS[name].directions == "v_hack"]
    if "vanilla" in with_v_hack:
        return "vanilla"
    return with_v_hack[0] if with_v_hack else None
