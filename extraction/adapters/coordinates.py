"""The coordinates of one module: a `Frame`, which also reads the module's gradient off a forward and a backward.

The two have almost computed U^T dL/dy and Vh x. A module with d_out != d_in therefore needs only one of U and Vh
(`adapters.svd`):

    d_out > d_in   from x and dL/dx = W^T dL/dy:   sum_t (Vh x_t) * (Vh dL/dx_t) / S
    d_out < d_in   from y = W x and dL/dy:         sum_t (U^T y_t) * (U^T dL/dy_t) / S
    otherwise      from x and dL/dy:               sum_t (Vh x_t) * (U^T dL/dy_t)
    lora           from x and dL/dy:               sum_t dL/dy_t (A x_t)^T

Each line holds triplet by triplet, so the R largest alone cost R / r and are exact.
Products of tokens with U, Vh and A are in the dtype of the model; sums over tokens are in at least float32.

A frame holds `keep(x, y)` of the module's input and output until dL/dy arrives; one that `reads_input` holds x until
dL/dx arrives that flows back through this module alone. `sums` and `along` reduce the two.

Shapes: G samples, T tokens, r coordinates of a module; M and W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in),
A (rank, d_in); held and gradient (T, d).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from extraction.adapters import svd
from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.svd import Factors
from extraction.adapters.targets import weight_matrix, whole
from extraction.batch import Segments, wide_product


@dataclass(frozen=True, slots=True)
class SvdFrame:
    """Coordinates along the singular vectors of a weight.

    Attributes:
        held: U, S and Vh; one of U and Vh may follow from the weight of `layer`.
        scale: S' (r,) of the weight U diag(S') Vh in the forward: S unless an adapter has moved it.
        layer: has the frozen weight; None: U and Vh are held, and the weight may change.
    """

    held: Factors
    scale: Tensor
    layer: nn.Module | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the coordinates: float32, or float64 for a float64 model."""
        return self.held.S.dtype

    @property
    def size(self) -> int:
        """The number of coordinates r, one for each singular value."""
        return len(self.held.S)

    def coordinates(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """Return diag(U^T left right V), (r,), for left (d_out, n) and right (n, d_in); None is the identity."""
        (turn_left, turn_right), S = self.held.turns, self.held.S[:, None]
        left, right = left.to(self.dtype), None if right is None else right.to(self.dtype)
        turned_left = turn_left @ left if self.held.U is not None else turn_left @ (self._weight().T @ left) / S
        if self.held.Vh is None:
            W = self._weight()
            turned_right = turn_right @ (W if right is None else W @ right.T) / S
        else:
            turned_right = turn_right if right is None else turn_right @ right.T
        return (turned_left * turned_right).sum(1)

    def factors(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return U diag(v) and Vh: their product is the matrix of v (r,)."""
        U, Vh = self._both()
        return U * v.to(self.dtype), Vh

    @property
    def reads_input(self) -> bool:
        """Whether the module's input and dL/dx are read; otherwise `keep` and dL/dy."""
        return self.held.U is None

    def keep(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x, or W x where Vh is not held."""
        if self.held.Vh is not None:
            return x
        # Read in the forward, where a sharded bias is whole.
        bias = getattr(self.layer, "bias", None)
        return y if bias is None else y - bias

    def sums(self, held: Tensor, gradient: Tensor, segments: Segments) -> Tensor:
        """Return the coordinates of dL/dW of every segment, (G, r)."""
        total = segments.sums(*self._turned(held, gradient))
        return total if self.held.is_whole else total / self.scale

    def along(self, held: Tensor, gradient: Tensor, u: Tensor) -> Tensor:
        """Return <u, contribution of token t>, (T,), for u (r,)."""
        return wide_product(*self._turned(held, gradient)) @ (u if self.held.is_whole else u / self.scale)

    def tensors(self) -> list[Tensor]:
        """List the tensors in memory."""
        return [part for part in self.held if part is not None]

    def to(self, device: torch.device | str) -> Self:
        """Copy the frame to another device."""
        return replace(self, held=self.held.each(lambda part: part.to(device)), scale=self.scale.to(device))

    def complete(self) -> "SvdFrame":
        """Return the frame with both U and Vh, so that the weight may change from now on."""
        if self.layer is None:
            return self
        U, Vh = self._both()
        return SvdFrame(Factors(U, self.held.S, Vh), self.held.S)

    def _turned(self, held: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, (T, d), in the coordinates, (T, r)."""
        left, right = self.held.turns
        return F.linear(held, right.to(held.dtype)), F.linear(gradient, left.to(gradient.dtype))

    def _both(self) -> tuple[Tensor, Tensor]:
        return svd.both_factors(self.held, None if self.held.is_whole else self._weight())

    def _weight(self) -> Tensor:
        assert self.layer is not None
        if isinstance(self.layer, DeltaSLayer):
            return self.layer.base_weight().to(self.dtype)  # without what may be merged into it
        return whole(weight_matrix(self.layer, "")).to(self.dtype)


@dataclass(frozen=True, slots=True)
class LoraFrame:
    """The coordinates of LoRA's B (d_out, rank), through an A that need not be in the model; methods as `SvdFrame`."""

    A: Tensor
    num_outputs: int
    dtype: torch.dtype
    reads_input = False

    @property
    def size(self) -> int:
        """The number of coordinates, the entries of B."""
        return self.num_outputs * len(self.A)

    def coordinates(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """Return left right A^T, flattened."""
        turned = self.A.T if right is None else right.to(self.dtype) @ self.A.T
        return (left.to(self.dtype) @ turned).flatten()

    def factors(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return v (d_out, rank) and A."""
        return v.to(self.dtype).view(self.num_outputs, len(self.A)), self.A

    def keep(self, x: Tensor, _y: Tensor) -> Tensor:
        """Return A x."""
        return F.linear(x, self.A.to(x.dtype))

    def sums(self, held: Tensor, gradient: Tensor, segments: Segments) -> Tensor:
        """Return sum_t dL/dy_t (A x_t)^T of every segment, flattened, (G, r)."""
        samples = zip(segments.split(gradient), segments.split(held), strict=True)
        return torch.stack([g.mT.to(self.dtype) @ z.to(self.dtype) for g, z in samples]).flatten(1)

    def along(self, held: Tensor, gradient: Tensor, u: Tensor) -> Tensor:
        """Return <u, dL/dy_t (A x_t)^T> = (u^T dL/dy_t) . A x_t, (T,): no outer product per token is formed."""
        turned = gradient.to(self.dtype) @ u.to(self.dtype).view(gradient.shape[1], held.shape[1])
        return (turned * held.to(self.dtype)).sum(1)

    def tensors(self) -> list[Tensor]:
        """List the tensors in memory."""
        return [self.A]

    def to(self, device: torch.device | str) -> Self:
        """Copy the frame to another device."""
        return replace(self, A=self.A.to(device))

    def complete(self) -> "LoraFrame":
        """Return the frame, which does not depend on the weight."""
        return self


Frame = SvdFrame | LoraFrame
