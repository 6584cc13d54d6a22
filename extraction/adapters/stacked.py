"""Several adapters of the same base model read side by side: one forward and backward serves all of them.

Every basis needs the same things of a module: its input and output, and the gradients that arrive there. Where all
adapters are at zero their models are the base model, so the pass of the first one gives them all, and the coordinates
of a module are those of every part, one after the other.

Shapes: G samples, T tokens, r coordinates of a module (of all parts together).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from extraction.adapters.interface import Coordinates, Tap


@final
class StackedCoordinates(Coordinates):
    """[part 1; part 2; ...] of every module. To be read at zero; what is trained is a part of its own.

    Raises:
        ValueError: the parts adapt different modules.
    """

    def __init__(self, parts: Sequence[Coordinates]) -> None:
        self.parts = tuple(parts)
        if any(list(part.layers) != list(self.parts[0].layers) for part in self.parts):
            raise ValueError("stacked coordinates: expected parts with the same modules in the same order")
        identity = {part.basis: part.fingerprint() for part in self.parts}
        super().__init__(self.parts[0].model, self.parts[0].layers, identity)

    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """Those of every part."""
        return tuple(parameter for part in self.parts for parameter in part.trainable(module))

    def taps(self) -> list[Tap]:
        """Those of every part, moved behind the coordinates of the parts before it."""
        found, before = [], dict.fromkeys(self.layers, 0)
        for part in self.parts:
            found += [replace(tap, start=tap.start + before[tap.module]) for tap in part.taps()]
            before = {module: before[module] + size for module, size in part.sizes.items()}
        return found

    def is_zero(self) -> bool:
        """Every part is at zero: only then are the parts' models one and the same."""
        return all(part.is_zero() for part in self.parts)

    def embed(self, part: int, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{module: (r,)} of one part as vectors of the stacked coordinates: zero in every other part."""
        widths = [own.sizes for own in self.parts]
        return {
            module: torch.cat([u if i == part else u.new_zeros(sizes[module]) for i, sizes in enumerate(widths)])
            for module, u in vectors.items()
        }

    def split(self, gradients: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """{module: (G, r)} of every part, in the order of the parts."""
        found: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for module, stacked in gradients.items():
            pieces = stacked.split([part.sizes[module] for part in self.parts], dim=1)
            for own, piece in zip(found, pieces, strict=True):
                own[module] = piece
        return found
