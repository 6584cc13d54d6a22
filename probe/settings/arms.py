"""Arms: each row of `ARMS` names a change to the gradient and the directions it acts along.

To add an arm, add a row to `_ARMS`. For a new kind of direction, add its word to `DirectionKind` and its construction
to `extraction.library.DirectionLibrary.get`.

A projection subtracts multiples of the directions V from a gradient g. `SIDES` gives the multiples from c = V g:

    one_sided   relu(c)    only the component toward the hack
    two_sided   c          the whole component in the span of V
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from extraction.settings import Basis
from probe.settings.words import Side
from replay_pools.base.errors import InputError

# These act on torch tensors (`probe.step.projection`) and numpy arrays (`probe.analysis`): both have `clip(min=...)`.
SIDES: dict[Side, Callable[[Any], Any]] = {"one_sided": lambda c: c.clip(min=0), "two_sided": lambda c: c}
DirectionKind = Literal["v_hack", "haar", "permuted", "flipped", "placebo"]
Subspace = Literal["clean", "hacks", "haar"]  # of a few supervised steps, or uniform: `probe.runs.trusted`


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm. Every arm measures the gradient along its directions; an arm that `projects` also changes it.

    >>> ARMS["projected"].directions, ARMS["projected"].side
    ('v_hack', 'one_sided')
    """

    name: str
    basis: Basis  # coordinates in which gradients, directions and updates live
    directions: DirectionKind = "v_hack"
    side: Side = "one_sided"
    projects: bool = False  # the projected gradient replaces the gradient
    dosed: bool = False  # norm-matched to the same arm along v_hack, or in the clean subspaces
    scales: bool = False  # shrinks the gradient to the norm that the projection would leave, without turning it
    at_deployment: bool = False  # trains as vanilla, and subtracts the removed parts from the deployed weights
    onto: Subspace | None = None  # keeps only the gradient's component in output subspaces, weighted
    flat: bool = False  # adds the gradient of the gradient's norm: `probe.step.step.flattened`
    quarantines: bool = False  # flagged rollouts move one half of the LoRA's columns alone, which is not deployed

    @property
    def acts(self) -> bool:
        """True for arms that replace the gradient or the update by its projection."""
        return self.projects or self.onto is not None

    @property
    def removes_v_hack(self) -> bool:
        """True for arms that remove the component along v_hack; False for controls."""
        return self.directions == "v_hack" and (self.projects or self.at_deployment) and not self.scales


_ARMS = (
    Arm(name="vanilla", basis="svd"),
    Arm(name="projected", basis="svd", projects=True),
    # The seed's third arm projects a LoRA gradient; its comparison is LoRA without the projection.
    Arm(name="vanilla-lora", basis="lora"),
    Arm(name="projected-lora", basis="lora", projects=True),
    Arm(name="projected-at-deployment", basis="svd", at_deployment=True),
    Arm(name="quarantine", basis="lora", quarantines=True),
    # Trusted-direction projection (TDGA, arXiv 2605.25189), and its controls: of the same norm, and taught by hacks.
    Arm(name="trusted", basis="lora", onto="clean"),
    Arm(name="trusted-hacks", basis="lora", onto="hacks"),
    Arm(name="trusted-random", basis="lora", onto="haar", dosed=True),
    Arm(name="trusted-scaled", basis="lora", onto="clean", scales=True),
    # Gradient regularisation (arXiv 2602.18037).
    Arm(name="flat", basis="svd", flat=True),
    # Controls: the same projection along directions without a hack signal.
    Arm(name="random", basis="svd", directions="haar", projects=True),
    Arm(name="permuted", basis="svd", directions="permuted", projects=True),
    Arm(name="random-dosed", basis="svd", directions="haar", projects=True, dosed=True),
    Arm(name="permuted-dosed", basis="svd", directions="permuted", projects=True, dosed=True),
    # Keeps the subspace of v_hack and loses its sign.
    Arm(name="flipped-dosed", basis="svd", directions="flipped", projects=True, dosed=True),
    Arm(name="placebo", basis="svd", directions="placebo", projects=True),
    # Keeps the size of the projection and loses its direction.
    Arm(name="scaled", basis="svd", projects=True, scales=True),
)
ARMS: dict[str, Arm] = {arm.name: arm for arm in _ARMS}


def get_arm(name: str) -> Arm:
    """Return the arm with this name.

    Raises:
        InputError: no such arm; the error lists the arms.
    """
    if name not in ARMS:
        raise InputError("arm", expected=f"one of {', '.join(ARMS)}", found=repr(name))
    return ARMS[name]


def measured_arm(arms: Iterable[str]) -> str | None:
    """Return the arm to read `*_in` values from: vanilla, else the first arm that uses v_hack, else None.

    While weights are frozen, every arm that uses v_hack measures the same gradient before it projects.
    """
    with_v_hack = [name for name in arms if name in ARMS and ARMS[name].directions == "v_hack"]
    if "vanilla" in with_v_hack:
        return "vanilla"
    return with_v_hack[0] if with_v_hack else None


# `probe demo` and `probe check` replay the update, projection and a control, with coloured tokens in the first steps.
USUAL_ARMS = "vanilla", "projected", "random"
COLOURED_STEPS = 8
