"""The gate law: which multiples of the directions V a gate takes from a gradient g, given c = V g.

    one_sided   relu(c)    what points hack-ward, and only that
    two_sided   c          the whole component in the span of V
    reverse     2 c        the mirror image: what pointed hack-ward points away

The same expressions serve torch tensors (`probe.step.projection`) and numpy arrays (`probe.analysis`).

To add a gate: add its word to `Gate` in `probe.settings.words`, and its law here.
"""

from collections.abc import Callable
from typing import Any

from probe.settings.words import Gate

GATES: dict[Gate, Callable[[Any], Any]] = {
    "one_sided": lambda c: c.clip(min=0),
    "two_sided": lambda c: c,
    "reverse": lambda c: 2 * c,
}
