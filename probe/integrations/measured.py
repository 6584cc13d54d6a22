"""MeasuredModel: what is read of a model in a step, as {module: (r,)} in the coordinates of a direction file.

    MeasuredAdapter     the model carries the adapter of the directions (delta_S, or their LoRA): its `.grad`
    MeasuredWeights     any other model, in probe.integrations.weights

To measure something else: a subclass, and a branch in `gradient_probe._measured`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from extraction.adapters.interface import Coordinates


class MeasuredModel(ABC):
    """A model whose steps are measured; r coordinates of a module.

    Attributes:
        sizes: {module: r}.
        device: of the gradients.
    """

    sizes: dict[str, int]
    device: torch.device

    @abstractmethod
    def stepped(self) -> dict[str, tuple[nn.Parameter, ...]]:
        """{module: parameters that the optimizer has to step}."""

    @abstractmethod
    def gradients(self, loss_scale: float = 1.0) -> dict[str, Tensor]:
        """{module: (r,)} since gradients were last zeroed; `loss_scale` is the factor that is on every `.grad`."""

    @abstractmethod
    def replace_gradients(self, gated: Mapping[str, Tensor]) -> None:
        """Change `.grad` in place so that the step has the components of `gated` along the directions."""

    @abstractmethod
    def remember(self) -> None:
        """Keep what `update` needs of the weights before a step."""

    @abstractmethod
    def update(self) -> dict[str, Tensor] | None:
        """{module: (r,)}, the weights remembered minus those after the step; None where that cannot be told."""

    @abstractmethod
    def start(self, witness: nn.Parameter) -> None:
        """Begin to watch forwards and backwards; `.grad` of `witness` says when gradients are zeroed."""

    @abstractmethod
    def stop(self) -> None:
        """Stop watching."""


class MeasuredAdapter(MeasuredModel):
    """The adapter of the directions: its coordinates are parameters, with everything in their `.grad`."""

    def __init__(self, coordinates: Coordinates) -> None:
        self._coordinates = coordinates
        self.sizes = coordinates.sizes
        self.device = coordinates.parameters()[0].device

    def stepped(self) -> dict[str, tuple[nn.Parameter, ...]]:
        """The parameters of the adapter."""
        return {module: self._coordinates.trainable(module) for module in self.sizes}

    def gradients(self, loss_scale: float = 1.0) -> dict[str, Tensor]:
        """`.grad` of every module, flattened; 0 for none."""
        _ = loss_scale
        return self._coordinates.gradients()

    def replace_gradients(self, gated: Mapping[str, Tensor]) -> None:
        """`gated` itself is put into `.grad`."""
        self._coordinates.replace_gradients(gated)

    def remember(self) -> None:
        """The coordinates."""
        self._before = self._coordinates.values()

    def update(self) -> dict[str, Tensor]:
        """By subtraction."""
        after = self._coordinates.values()
        return {module: before - after[module] for module, before in self._before.items()}

    def start(self, witness: nn.Parameter) -> None:
        """Everything is in `.grad`: nothing to watch."""

    def stop(self) -> None:
        """Nothing was watched."""
