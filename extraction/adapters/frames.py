"""Frames: the coordinates of a direction file, read off any matrix of a module, so that the model needs no adapter.

    svd    W = U diag(S) Vh as extracted    coordinates of M: diag(U^T M V), (r,)       matrix of v: U diag(v) Vh
           one of U and Vh where W is frozen: the other follows (`adapters.svd`), and taps cost less
    lora   A from a seed                    coordinates of M: M A^T, (d_out rank,)      matrix of v: v A

The coordinates of dL/dW are the gradient that an adapter of that basis, at zero, would have on top of W, whatever W is
now. The two maps are adjoint: <matrix of v, M> = <v, coordinates of M>.

    frames = make_frames("v_hack.safetensors", target_layers(model, targets), fingerprint, cache_dir)
    framed = FramedCoordinates(model, "v_hack.safetensors", fingerprint, cache_dir)     per-sample gradients, too

Shapes: M and W (d_out, d_in), r coordinates of a module; U (d_out, r), Vh (r, d_in), A (rank, d_in).
To add a basis: a subclass of `Frame`, and a branch in `make_frames`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn

from extraction.adapters import svd
from extraction.adapters.interface import Coordinates, Tap
from extraction.adapters.lora import orthonormal_frames, outer_tap
from extraction.adapters.sharded import whole
from extraction.adapters.singular import svd_method, svd_tap
from extraction.adapters.svd import Factors, combine, digest_all, factorise_all
from extraction.adapters.targets import is_quantised, weight_matrix
from replay_pools.errors import InputError
from replay_pools.policy.load import load_policy

MUCH = 2**30  # bytes of frames from which on their memory is said


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
        """Gives the coordinates of dL/dW of `module` from its input and the gradient of its output."""

    def complete(self) -> "Frame":
        """Return the frame without the layer that half of it may follow from: the weight may change from now on."""
        return self


@dataclass(frozen=True, slots=True)
class SvdFrame(Frame):
    """Singular vectors of the weight that the directions were extracted from.

    Attributes:
        held: U, S and Vh; one of the two frames may follow from the weight of `layer`.
        layer: frozen, of this weight; None: both frames are held, and the weight may change.
    """

    held: Factors
    layer: nn.Module | None = None

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
            U, Vh = svd.frames(self.held, self._weight())
        return U * v.to(self.dtype), Vh

    def tap(self, module: str) -> Tap:
        """sum_t (Vh x_t) * (U^T dL/dy_t)."""
        return svd_tap(module, self.held, getattr(self.layer, "bias", None))

    def complete(self) -> "SvdFrame":
        """Hold U and Vh."""
        return self if self.layer is None else SvdFrame(_with_both(self.held, self._weight()))

    def _weight(self) -> Tensor:
        assert self.layer is not None
        return whole(weight_matrix(self.layer, "")).to(self.dtype)


def _with_both(held: Factors, weight: Tensor) -> Factors:
    U, Vh = svd.frames(held, weight)
    return Factors(U, held.S, Vh)


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
        """sum_t dL/dy_t (A x_t)^T, flattened."""
        return outer_tap(module, self.A, self.dtype)


@final
class FramedCoordinates(Coordinates):
    """Any model, with or without adapters of peft, read in the frames of a direction file; nothing in it is trained.

    Args:
        model: is not changed.
        where, fingerprint, cache_dir: as of `make_frames`.

    Raises:
        InputError: a model without the layers of the fingerprint, or with other weights.
    """

    def __init__(self, model: Any, where: object, fingerprint: Mapping[str, Any], cache_dir: Path | None) -> None:
        layers = target_layers(model, fingerprint["targets"])
        check_adapters(layers, has_dropout=False)
        self._frames = make_frames(where, layers, fingerprint, cache_dir)
        self.basis = fingerprint["basis"]
        # Watched below the adapters, which change the input or the output of a layer.
        super().__init__(model, {name: base_layer(layer) for name, layer in layers.items()}, fingerprint)
        self.sizes = {module: frame.size for module, frame in self._frames.items()}

    def trainable(self, module: str) -> tuple[nn.Parameter, ...]:
        """None."""
        return ()

    def taps(self) -> list[Tap]:
        """One tap per module."""
        return [frame.tap(module) for module, frame in self._frames.items()]

    def is_zero(self) -> bool:
        """False: the model runs as it is, with its adapters."""
        return False


def target_layers(model: nn.Module, targets: Sequence[str]) -> dict[str, nn.Module]:
    """The layers of `model` that are named `targets` before any adapter; a layer may have an adapter around it.

    Raises:
        InputError: the model has no such layer.
    """
    base = model.base_model if isinstance(model, PeftModel) else model
    # Not get_base_model(), which fails once the active adapter is deleted.
    layers = dict((base.model if isinstance(base, BaseTuner) else base).named_modules())
    absent = [name for name in targets if name not in layers]
    if absent:
        raise InputError(
            f"modules of {type(model).__name__}",
            expected=f"those of the directions, such as {absent[0]}",
            found=f"{len(absent)} of {len(targets)} missing",
            fix="give the model that the directions were extracted from, or run probe extract on this one",
        )
    return {name: layers[name] for name in targets}


def base_layer(layer: nn.Module) -> nn.Module:
    """The Linear below the adapters of a layer, or the layer itself."""
    return layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer


# Tuners of peft that use the frozen weight W in one call of the Linear below them, so that dL/dW is a sum over what
# passes this Linear. Each was compared with autograd away from its start (tests/bench/attach_setups.py).
READABLE = (
    *("adalora", "beft", "boft", "c3a", "deft", "delora", "fourierft", "gralora", "ia3", "lily", "loha", "lokr"),
    *("lora", "miss", "oft", "osf", "pvera", "randlora", "tinylora", "unilora", "vblora", "vera"),
)


def check_adapters(layers: Mapping[str, nn.Module], *, has_dropout: bool) -> None:
    """InputError where dL/dW of the weight below an adapter does not follow from what passes the Linear there.

    Args:
        layers: see `target_layers`.
        has_dropout: the model runs in training mode, where dropout is on.
    """
    for name, layer in layers.items():
        package, _, tuner = type(layer).__module__.partition(".tuners.")
        if package != "peft":
            continue
        found = None if tuner.partition(".")[0] in READABLE else tuner.partition(".")[0]
        drops = isinstance(layer, LoraLayer) and any(isinstance(one, nn.Dropout) for one in layer.lora_dropout.values())
        if has_dropout and drops and layer.lora_magnitude_vector:
            found = "DoRA with dropout"  # multiplies with the weight a second time
        if found is not None:
            raise InputError(
                f"module {name}",
                expected="an adapter that uses the weight below it once, in a call of its Linear",
                found=found,
                fix="train LoRA or DoRA without dropout, or leave these modules out of model.targets",
            )


def make_frames(
    where: object,
    layers: Mapping[str, nn.Module],
    fingerprint: Mapping[str, Any],
    cache_dir: Path | None,
    *,
    frozen: Collection[str] = (),
) -> dict[str, Frame]:
    """The frame of every layer, on the device of its weight.

    Frames of quantised layers are those of the checkpoint of the fingerprint, which is loaded for it.

    Args:
        where: the direction file, for messages.
        layers: those of `target_layers`; adapters around them are not read.
        fingerprint: of the basis of the directions.
        cache_dir: folder of the SVD cache; None computes without one.
        frozen: layers whose weight stays as it is: half of what others hold may then follow from it.

    Raises:
        InputError: weights that are not those of the fingerprint.
    """
    bases = {name: base_layer(layer) for name, layer in layers.items()}
    quantised = [name for name, base in bases.items() if isinstance(base, nn.Linear) and is_quantised(base.weight)]
    # A checkpoint in bfloat16 has the same values, and so the same hash, in float32.
    for dtype in ("float32", "bfloat16"):
        read = _unquantised(bases, quantised[0], str(fingerprint["model_id"]), dtype) if quantised else bases
        weights = {name: whole(weight_matrix(base, name)) for name, base in read.items()}
        digests = digest_all(weights)
        sha256 = combine(digests)
        if sha256 == fingerprint["weights_sha256"] or not quantised:
            break
    if sha256 != fingerprint["weights_sha256"]:
        raise InputError(
            where,
            expected=f"directions of this model's weights, weights_sha256={sha256[:16]}...",
            found=f"directions of other weights, {fingerprint['weights_sha256'][:16]}...",
            fix="load the model, and its dtype, that they were extracted from, or run probe extract on this one",
        )
    weights = {name: weight.to(_device(bases[name])) for name, weight in weights.items()}
    frames: dict[str, Frame] = {}
    if fingerprint["basis"] == "svd":
        rank, method = fingerprint["rank"], fingerprint.get("svd")
        if method != svd_method(rank, [weight.shape for weight in weights.values()]).get("svd"):
            found = f"those of {method or 'an exact'} SVD"
            raise InputError(where, expected="triplets as they are made now", found=found, fix="run probe extract")
        lean = {name for name in frozen if not quantised}
        _say_memory(weights, rank, lean)
        for name, (held, _) in factorise_all(weights, digests, cache_dir, rank=rank).items():
            if name in lean:
                frames[name] = SvdFrame(held, bases[name])
            else:
                frames[name] = SvdFrame(_with_both(held, weights[name]))
        return frames
    shapes = [(fingerprint["rank"], weight.shape[1]) for weight in weights.values()]
    drawn = orthonormal_frames(shapes, fingerprint["init_seed"])
    for (name, weight), A in zip(weights.items(), drawn, strict=True):
        dtype = torch.promote_types(weight.dtype, torch.float32)
        frames[name] = LoraFrame(A.to(weight.device, dtype), len(weight), dtype)
    return frames


def _say_memory(weights: Mapping[str, Tensor], rank: int | None, lean: Collection[str]) -> None:
    """Say what U and Vh of all modules will take, before they take it."""
    total = 0
    for name, weight in weights.items():
        small, large = sorted(weight.shape)
        sides = small if name in lean and small < large else small + large
        total += min(small, rank or small) * sides * max(weight.dtype.itemsize, 4)
    logging.getLogger(__name__).log(
        logging.WARNING if total >= MUCH else logging.INFO,
        "frames of %d modules take %.3g GiB of %s in every process; those of directions that were extracted with "
        "a model.svd_rank take less",
        len(weights),
        total / 2**30,
        next(iter(weights.values())).device,
    )


def _device(layer: nn.Module) -> torch.device:
    return next(layer.parameters()).device


def _unquantised(layers: Mapping[str, nn.Module], quantised: str, model_id: str, dtype: str) -> dict[str, nn.Module]:
    """The layers of these names in the checkpoint `model_id`; InputError, as of the `quantised` one, without it."""
    try:
        model = load_policy(model_id, dtype=dtype, device="cpu").model
    except InputError as error:
        found = f"{type(layers[quantised]).__name__} of {layers[quantised].weight.dtype}, and no model {model_id!r}"
        raise InputError(
            f"module {quantised}",
            expected="a floating-point weight, or the unquantised model that the directions were extracted from",
            found=found,
            fix=f"put that model where {model_id!r} names it ({error}), or load this one unquantised",
        ) from error
    return {name: model.get_submodule(name) for name in layers}
