"""Arms: the experimental conditions, one row each."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from extraction.words import Basis
from probe.settings.words import Gate
from replay_pools.errors import InputError

DirectionKind = Literal["v_hack", "haar", "permuted", "placebo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One condition. Every arm measures against its directions; an arm that `projects` also acts on them.

    >>> ARMS["projected"].directions, ARMS["projected"].gate
    ('v_hack', 'one_sided')
    """

    name: str
    basis: Basis  # coordinates in which gradients, directions and updates live
    directions: DirectionKind
    gate: Gate
    projects: bool  # the gated gradient replaces the gradient; otherwise the gradient is left alone
    routes: bool = False  # in training, what the gate would remove is parked and not deployed (`probe.step.update`)


_ROWS = (
    Arm(name="vanilla", basis="svd", directions="v_hack", gate="one_sided", projects=False),
    Arm(name="projected", basis="svd", directions="v_hack", gate="one_sided", projects=True),
    Arm(name="projected-lora", basis="lora", directions="v_hack", gate="one_sided", projects=True),
    Arm(name="route", basis="svd", directions="v_hack", gate="one_sided", projects=False, routes=True),
    # Controls: what a gate of the same shape does along directions that carry no hack signal.
    Arm(name="random", basis="svd", directions="haar", gate="one_sided", projects=True),
    Arm(name="permuted", basis="svd", directions="permuted", gate="one_sided", projects=True),
    Arm(name="placebo", basis="svd", directions="placebo", gate="one_sided", projects=True),
)
ARMS: dict[str, Arm] = {row.name: row for row in _ROWS}


def get_arm(name: str) -> Arm:
    """The row of `name`.

    Raises:
        InputError: no such arm; lists the arms.
    """
    if name not in ARMS:
        raise InputError("arm", expected=f"one of {', '.join(ARMS)}", found=repr(name))
    return ARMS[name]


def measured_arm(arms: Iterable[str]) -> str | None:
    """The arm whose `*_in` measures stand for vanilla: vanilla, or else the first that uses v_hack.

    Before its gate, an arm that uses v_hack measures what vanilla measures as long as the weights are frozen.
    """
    hack = [arm for arm in arms if arm in ARMS and ARMS[arm].directions == "v_hack"]
    return "vanilla" if "vanilla" in hack else (hack[0] if hack else None)
