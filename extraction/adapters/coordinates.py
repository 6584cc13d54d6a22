"""The coordinates of one module: a `Frame`, and the `Tap` that reads them off a forward and a backward.

A tap gives them from a forward and a backward. In svd that of W = U diag(S) Vh has almost computed U^T dL/dy and Vh x,
so that a frozen module with d_out != d_in needs one of U and Vh only (`adapters.svd`):

    d_out > d_in   from x and dL/dx = W^T dL/dy:   sum_t (Vh x_t) * (Vh dL/dx_t) / S
    d_out < d_in   from y = W x and dL/dy:         sum_t (U^T y_t) * (U^T dL/dy_t) / S
    otherwise      from x and dL/dy:               sum_t (Vh x_t) * (U^T dL/dy_t)
    lora           from x and dL/dy:               sum_t dL/dy_t (A x_t)^T

Each line holds triplet by triplet, so it also serves the R largest alone, exactly and at R / r of the cost.
Products of tokens with U, Vh and A are in the dtype of the model; sums over tokens are in at least float32.

Shapes: G samples, T tokens, r coordinates of a module; M and W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in),
A (rank, d_in).
"""

from abc import ABC, abstractmethod
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
    """Gradients of a module's coordinates, from what is held of a forward and the gradient that comes back.

    With `keep`, that is what it makes of the module's input and output, and dL/dy. Without, it is the input x and the
    dL/dx that flows back through this module alone.
    """

    module: str
    keep: Callable[[Tensor, Tensor], Tensor] | None = None  # x (..., d_in), y (..., d_out) -> what is held
    reduce: Callable[[Tensor, Tensor, Segments], Tensor]  # held (T, d), gradient (T, d_in or d_out) -> (G, r)
    along: Callable[[Tensor, Tensor, Tensor], Tensor]  # the same two and u (r,) -> (T,): <u, what token t adds>


class Frame(ABC):
    """The coordinates of one module in some basis."""

    dtype: torch.dtype  # of the coordinates: float32, or float64 for a float64 model

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of coordinates r."""

    @abstractmethod
    def coordinates(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """(r,) of the matrix left @ right: left (d_out, n), right (n, d_in); None is the identity."""

    @abstractmethod
    def factors(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """(d_out, n) and (n, d_in), whose product is the matrix of v (r,)."""

    @abstractmethod
    def tap(self, module: str) -> Tap:
        """Return the tap that gives the coordinates of dL/dW of `module`."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """What the frame holds in memory."""

    @abstractmethod
    def to(self, device: torch.device | str) -> Self:
        """The same frame on another device."""

    def complete(self) -> "Frame":
        """Return the frame without the layer that half of it may follow from: the weight may change from now on."""
        return self


@dataclass(frozen=True, slots=True)
class SvdFrame(Frame):
    """Singular vectors of a weight.

    Attributes:
        held: U, S and Vh; one of the two frames may follow from the weight of `layer`.
        layer: frozen, of this weight; None: both frames are held, and the weight may change.
        scale: S' (r,) of the weight U diag(S') Vh in the forward, where an adapter has moved S; None: S.
    """

    held: Factors
    layer: nn.Module | None = None
    scale: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the SVD."""
        return self.held.S.dtype

    @property
    def size(self) -> int:
        """One coordinate a singular value."""
        return len(self.held.S)

    def coordinates(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """diag(U^T left right V), without the matrix in between."""
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
        """U diag(v) and Vh."""
        U, Vh = self.held.U, self.held.Vh
        if U is None or Vh is None:
            U, Vh = svd.both_factors(self.held, self._weight())
        return U * v.to(self.dtype), Vh

    def tap(self, module: str) -> Tap:
        """The line of the module docstring for the factors that are held."""
        U, S, Vh = self.held
        scale, layer = S if self.scale is None else self.scale, self.layer
        if U is None:
            assert Vh is not None
            return _rotated_tap(module, Vh, scale)

        def without_bias(_x: Tensor, y: Tensor) -> Tensor:
            # Read in the forward: a sharded bias is whole there. The identity is about W x.
            bias = getattr(layer, "bias", None)
            return y if bias is None else y - bias

        if Vh is None:
            return _rotated_tap(module, U.T, scale, keep=without_bias)
        return _direct_tap(module, U, Vh)

    def tensors(self) -> list[Tensor]:
        """The factors that are held."""
        return [part for part in self.held if part is not None]

    def to(self, device: torch.device | str) -> Self:
        """The same factors on another device."""
        return replace(self, held=self.held.each(lambda part: part.to(device)))

    def complete(self) -> "SvdFrame":
        """Hold U and Vh."""
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
class LoraFrame(Frame):
    """LoRA's B, read through an A that need not be in the model."""

    A: Tensor
    num_outputs: int
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """The entries of B."""
        return self.num_outputs * len(self.A)

    def coordinates(self, left: Tensor, right: Tensor | None = None) -> Tensor:
        """left right A^T, flattened."""
        turned = self.A.T if right is None else right.to(self.dtype) @ self.A.T
        return (left.to(self.dtype) @ turned).flatten()

    def factors(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """v (d_out, rank) and A."""
        return v.to(self.dtype).view(self.num_outputs, len(self.A)), self.A

    def tap(self, module: str) -> Tap:
        """sum_t dL/dy_t (A x_t)^T, flattened: what is held is A x (T, rank)."""
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
        """[A]."""
        return [self.A]

    def to(self, device: torch.device | str) -> Self:
        """The same A on another device."""
        return replace(self, A=self.A.to(device))


def _rotated_tap(
    module: str, frame: Tensor, scale: Tensor, keep: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tap:
    """sum_t (Q a_t) * (Q b_t) / S with Q = `frame` (r, d), of what is held and what comes back, (T, d) both."""

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
    """sum_t (Vh x_t) * (U^T dL/dy_t), of x (T, d_in) and dL/dy (T, d_out)."""

    def direct(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, Vh.to(x.dtype)), gradient @ U.to(gradient.dtype)

    return Tap(
        module=module,
        keep=lambda x, _y: x,
        reduce=lambda x, gradient, segments: segments.sums(*direct(x, gradient)),
        along=lambda x, gradient, u: wide_product(*direct(x, gradient)) @ u,
    )
