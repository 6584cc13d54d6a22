"""StackedCoordinates: per-sample gradients in several bases from one forward and backward.

    stacked = StackedCoordinates([svd_coordinates, lora_coordinates])
    svd_gradients, lora_gradients = stacked.split(per_sample_gradients(stacked, batch).gradients)

Every basis needs the same things of a module: its input and output, and the gradients that arrive there. Where all
adapters are at zero their models are the base model, so the pass of the first one serves them all, and the coordinates
of a module are those of every part, one after the other.

Shapes: G samples, r coordinates of a module (of all parts together).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import final

import torch
from torch import Tensor, nn

from extraction.adapters.interface import Coordinates, Tap


@final
class StackedCoordinates(Coordinates):
    """The coordinates of a module are [part 1; part 2; ...]. Valid at zero only, so nothing is trained through it.

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
        """The parameters of every part, part after part."""
        return tuple(chain.from_iterable(part.trainable(module) for part in self.parts))

    def taps(self) -> list[Tap]:
        """The taps of every part, moved behind the coordinates of the parts before it."""
        taps, offsets = [], dict.fromkeys(self.layers, 0)
        for part in self.parts:
            taps += [replace(tap, start=tap.start + offsets[tap.module]) for tap in part.taps()]
            for module, size in part.sizes.items():
                offsets[module] += size
        return taps

    def is_zero(self) -> bool:
        """True when every part is at zero: only then are the parts' models one and the same."""
        return all(part.is_zero() for part in self.parts)

    def embed(self, part: int, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{module: (r,)} of the part of index `part`, as vectors of the stacked coordinates: 0 in every other part."""
        embedded = {}
        for module, u in vectors.items():
            pieces = [u.new_zeros(coordinates.sizes[module]) for coordinates in self.parts]
            pieces[part] = u
            embedded[module] = torch.cat(pieces)
        return embedded

    def split(self, gradients: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Stacked {module: (G, r)} -> {module: (G, r)} of every part, in the order of the parts."""
        gradients_by_part: list[dict[str, Tensor]] = [{} for _ in self.parts]
        for module, stacked in gradients.items():
            pieces = stacked.split([part.sizes[module] for part in self.parts], dim=1)
            for part_gradients, piece in zip(gradients_by_part, pieces, strict=True):
                part_gradients[module] = piece
        return gradients_by_part
