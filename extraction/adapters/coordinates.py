"""The coordinates of one module: a `Frame`, and the `Tap` that reads the module's gradient in them.

A tap takes the gradient from a forward and a backward, which have almost computed U^T dL/dy and Vh x. A module with
d_out != d_in therefore needs only one of U and Vh (`adapters.svd`):

    d_out > d_in   from x and dL/dx = W^T dL/dy:   sum_t (Vh x_t) * (Vh dL/dx_t) / S
    d_out < d_in   from y = W x and dL/dy:         sum_t (U^T y_t) * (U^T dL/dy_t) / S
    otherwise      from x and dL/dy:               sum_t (Vh x_t) * (U^T dL/dy_t)
    lora           from x and dL/dy:               sum_t dL/dy_t (A x_t)^T

Each line holds triplet by triplet, so the R largest alone cost R / r and are exact.
Products of tokens with U, Vh and A are in the dtype of the model; sums over tokens are in at least float32.

Shapes: G samples, T tokens, r coordinates of a module; M and W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in),
A (rank, d_in).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from extraction.adapters import svd
from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.sharded import whole
from extraction.adapters.svd import Factors
from extraction.adapters.targets import weight_matrix
from extraction.batch import Segments, wide_product


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Reduces a tensor that is held from the forward and a gradient of the backward to the module's coordinates.

    With `keep`, the two are `keep(x, y)` of the module's input and output, and dL/dy. Without, they are the input x
    and the dL/dx that flows back through this module alone.
    """

    module: str
    keep: Callable[[Tensor, Tensor], Tensor] | None = None  # x (..., d_in), y (..., d_out) -> held
    reduce: Callable[[Tensor, Tensor, Segments], Tensor]  # held (T, d), gradient (T, d_in or d_out) -> (G, r)
    along: Callable[[Tensor, Tensor, Tensor], Tensor]  # held, gradient, u (r,) -> (T,): <u, contribution of token t>


@dataclass(frozen=True, slots=True)
class SvdFrame:
    """Coordinates along the singular vectors of a weight.

    Attributes:
        held: U, S and Vh; one of U and Vh may follow from the weight of `layer`.
        layer: has the frozen weight; None: U and Vh are held, and the weight may change.
        scale: S' (r,) of the weight U diag(S') Vh in the forward if an adapter has moved S; None: S.
    """

    held: Factors
    layer: nn.Module | None = None
    scale: Tensor | None = None

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
        (U, S, Vh), left = self.held, left.to(self.dtype)
        if right is not None:
            right = right.to(self.dtype)
        if U is None:
            assert Vh is not None
            turned_left = Vh @ (self._weight().T @ left) / S[:, None]
        else:
            turned_left = U.T @ left
        if Vh is None:
            assert U is not None
            W = self._weight()
            turned_right = U.T @ (W if right is None else W @ right.T) / S[:, None]
        else:
            turned_right = Vh if right is None else Vh @ right.T
        return (turned_left * turned_right).sum(1)

    def factors(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return U diag(v) and Vh: their product is the matrix of v (r,)."""
        U, Vh = self.held.U, self.held.Vh
        if U is None or Vh is None:
            U, Vh = svd.both_factors(self.held, self._weight())
        return U * v.to(self.dtype), Vh

    def tap(self, module: str) -> Tap:
        """Return the tap of dL/dW for the factors that are held (module docstring)."""
        U, S, Vh = self.held
        scale, layer = S if self.scale is None else self.scale, self.layer
        if U is None:
            assert Vh is not None
            return _rotated_tap(module, Vh, scale)

        def without_bias(_x: Tensor, y: Tensor) -> Tensor:
            # The identity is about W x. The bias is read in the forward, where a sharded one is whole.
            bias = getattr(layer, "bias", None)
            return y if bias is None else y - bias

        if Vh is None:
            return _rotated_tap(module, U.T, scale, keep=without_bias)
        return _direct_tap(module, U, Vh)

    def tensors(self) -> list[Tensor]:
        """List the tensors in memory."""
        return [part for part in self.held if part is not None]

    def to(self, device: torch.device | str) -> Self:
        """Copy the frame to another device."""
        return replace(self, held=self.held.each(lambda part: part.to(device)))

    def complete(self) -> "SvdFrame":
        """Return the frame with both U and Vh, so that the weight may change from now on."""
        if self.layer is None:
            return self
        U, Vh = svd.both_factors(self.held, self._weight())
        return SvdFrame(Factors(U, self.held.S, Vh))

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

    def tap(self, module: str) -> Tap:
        """Return the tap of sum_t dL/dy_t (A x_t)^T, flattened, which holds A x (T, rank)."""
        A, dtype = self.A, self.dtype

        def reduce(rotated: Tensor, gradient: Tensor, segments: Segments) -> Tensor:
            samples = zip(segments.split(gradient), segments.split(rotated), strict=True)
            return torch.stack([g.mT.to(dtype) @ z.to(dtype) for g, z in samples]).flatten(1)

        def along(rotated: Tensor, gradient: Tensor, u: Tensor) -> Tensor:
            # <u, g z^T> = (u^T g) . z: no outer product per token is formed.
            turned = gradient.to(dtype) @ u.to(dtype).view(gradient.shape[1], rotated.shape[1])
            return (turned * rotated.to(dtype)).sum(1)

        return Tap(module=module, keep=lambda x, _y: F.linear(x, A.to(x.dtype)), reduce=reduce, along=along)

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


def _rotated_tap(
    module: str, frame: Tensor, scale: Tensor, keep: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tap:
    """Return the tap of sum_t (Q a_t) * (Q b_t) / S with Q = `frame` (r, d), a held and b the gradient, (T, d) both."""

    def rotated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        Q = frame.to(a.dtype)
        return F.linear(a, Q), F.linear(b, Q)

    return Tap(
        module=module,
        keep=keep,
        reduce=lambda a, b, segments: segments.sums(*rotated(a, b)) / scale,
        along=lambda a, b, u: wide_product(*rotated(a, b)) @ (u / scale),
    )


def _direct_tap(module: str, U: Tensor, Vh: Tensor) -> Tap:
    """Return the tap of sum_t (Vh x_t) * (U^T dL/dy_t), with x (T, d_in) and dL/dy (T, d_out)."""

    def direct(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, Vh.to(x.dtype)), gradient @ U.to(gradient.dtype)

    return Tap(
        module=module,
        keep=lambda x, _y: x,
        reduce=lambda x, gradient, segments: segments.sums(*direct(x, gradient)),
        along=lambda x, gradient, u: wide_product(*direct(x, gradient)) @ u,
    )
