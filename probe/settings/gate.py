"""The gate laws: which multiples of the directions V a gate subtracts from a gradient g, given c = V g.

    one_sided   relu(c)    the hack-ward component alone
    two_sided   c          the whole component in the span of V

The same expressions serve torch tensors (`probe.step.projection`) and numpy arrays (`probe.analysis`): `clip` has the
keyword `min` in both.

To add a gate: its word in `Gate` of `probe.settings.words`, its law and its moments as rows here.
"""

from collections.abc import Callable
from typing import Any

from probe.settings.words import Gate

GATES: dict[Gate, Callable[[Any], Any]] = {
    "one_sided": lambda c: c.clip(min=0),
    "two_sided": lambda c: c,
}
# E[gate(c) c] and E[gate(c)^2] in units of E[c^2], for a c whose law is symmetric around 0.
MOMENTS: dict[Gate, tuple[float, float]] = {
    "one_sided": (0.5, 0.5),
    "two_sided": (1.0, 1.0),
}
