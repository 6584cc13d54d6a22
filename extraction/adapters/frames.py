"""Frames: the coordinates in which gradients are read, module by module. The model needs no adapter.

    frames = {"svd": svd_frames(model), "lora": lora_frames(model, seed=0)}
    per_sample_gradients(model, frames, batch).gradients["svd"][module]          (G, r)

    svd    W = U diag(S) Vh       coordinates of M: diag(U^T M V), (r,)           matrix of v: U diag(v) Vh
    lora   A from a seed          coordinates of M: M A^T, (d_out rank,)          matrix of v: v A

The coordinates of dL/dW are the gradient of an adapter of that basis (`adapters.trained`) at zero on top of W, whatever
W is now. The two maps (`adapters.coordinates`) are adjoint: <matrix of v, M> = <v, coordinates of M>.

Shapes: G samples, T tokens, r coordinates of a module; M and W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in),
A (rank, d_in). All gradients are of a LOSS: a descent step moves along -g.
To add a basis: a word in `extraction.settings.Basis`, a class of `Frame`, a function that makes its frames.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from extraction.adapters.coordinates import Frame, LoraFrame, SvdFrame
from extraction.adapters.svd import Factors, both_factors, combine, digest_all, factorise_all
from extraction.adapters.targets import (
    ALL,
    adapted_share,
    find_targets,
    is_quantised,
    unite_tied,
    weight_matrix,
    whole,
)
from extraction.settings import Adapted, Basis
from replay_pools.base.errors import InputError, cut
from replay_pools.policy.load import load_policy

DEFAULT_RANK = 32  # of LoRA
SVD_CACHE = Path("out/cache/svd")  # relative to the working directory


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames(Mapping[str, Frame]):
    """{module: its frame} for a model in one basis.

    Modules are named by their dotted path in the model below any adapter (`model.layers.0.self_attn.q_proj`), in the
    order of `named_modules()`, which every dictionary of modules keeps.

    Attributes:
        frames: by module.
        layers: where each module is read.
        fingerprint: identifies the basis: basis, model_id, weights_sha256 (names and values of the modules' weights),
            targets, rank, alpha, init_seed, ... Numbers can be compared only if these agree (`check_fingerprint`).
        adapted: the share of the model that the modules are; None: not asked.
        moved: an adapter has moved the weights away from those in the fingerprint.
    """

    frames: Mapping[str, Frame]
    layers: Mapping[str, nn.Module]
    fingerprint: Mapping[str, Any]
    adapted: Adapted | None = None
    moved: bool = False

    def __getitem__(self, module: str) -> Frame:
        return self.frames[module]

    def __iter__(self) -> Iterator[str]:
        return iter(self.frames)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def basis(self) -> Basis:
        """The name of the basis."""
        return self.fingerprint["basis"]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of coordinates r of each module."""
        return {module: frame.size for module, frame in self.frames.items()}

    def to(self, device: torch.device | str) -> "Frames":
        """Copy the frames to another device."""
        return replace(self, frames={module: frame.to(device) for module, frame in self.frames.items()})


def svd_frames(
    model: PreTrainedModel,
    targets: Sequence[str] = (ALL,),
    *,
    rank: int | None = None,
    model_id: str = "",
    start_adapter: str | None = None,
    cache_dir: str | Path | None = SVD_CACHE,
) -> Frames:
    """Return the singular frames of a model without an adapter, for weights that stay frozen.

    Args:
        model: is not changed.
        targets: the Linears to read (`find_targets`).
        rank: keep this many of the largest singular triplets of each module; None keeps all.
        model_id: the name of the model in the fingerprint.
        start_adapter: checksum of an adapter that is merged into `model`, which may have changed more than the targets.
        cache_dir: folder of the SVD cache; None computes without one.

    Raises:
        InputError: a rank below 1, or no matching target.
    """
    layers = {path: model.get_submodule(path) for path in find_targets(model, targets)}
    weights, digests = _read(layers)
    factors = factorise_all(weights, digests, None if cache_dir is None else Path(cache_dir), rank=rank)
    return Frames(
        frames={name: SvdFrame(held, held.S, layers[name]) for name, held in factors.items()},
        layers=layers,
        fingerprint=_fingerprint("svd", weights, digests, rank, None, model_id, start_adapter),
        adapted=adapted_share(model, list(layers)),
    )


def lora_frames(
    model: PreTrainedModel,
    targets: Sequence[str] = (ALL,),
    seed: int = 0,
    *,
    rank: int = DEFAULT_RANK,
    model_id: str = "",
    start_adapter: str | None = None,
) -> Frames:
    """Return LoRA's frames of a model without an adapter: an A with orthonormal rows from `seed` for every module.

    Args:
        model: is not changed.
        targets, model_id, start_adapter: as `svd_frames`.
        seed: draws A.
        rank: the number of rows of A.

    Raises:
        InputError: a rank outside 1..d_in of some module, where rows could not be orthonormal, or no matching target.
    """
    layers = {path: model.get_submodule(path) for path in find_targets(model, targets)}
    weights, digests = _read(layers)
    return Frames(
        frames=_drawn(weights, rank, seed),
        layers=layers,
        fingerprint=_fingerprint("lora", weights, digests, rank, seed, model_id, start_adapter),
        adapted=adapted_share(model, list(layers)),
    )


def make_frames(
    where: object,
    layers: Mapping[str, nn.Module],
    fingerprint: Mapping[str, Any],
    cache_dir: Path | None,
    *,
    frozen: Collection[str] = (),
) -> Frames:
    """Return the frames of a direction file for the Linears below all adapters, on the devices of their weights.

    Frames of quantised layers come from the checkpoint of the fingerprint, which is loaded for this.

    Args:
        where: the direction file, for messages.
        layers: from `target_layers`; adapters around them are not read.
        fingerprint: of the directions.
        cache_dir: folder of the SVD cache; None computes without one.
        frozen: layers with a constant weight: their frames may hold one factor and use the weight.

    Raises:
        InputError: the weights differ from the fingerprint.
    """
    bases = {name: base_layer(layer) for name, layer in layers.items()}
    quantised = [name for name, base in bases.items() if isinstance(base, nn.Linear) and is_quantised(base.weight)]
    basis, rank, seed, model_id = (fingerprint[key] for key in ("basis", "rank", "init_seed", "model_id"))
    # A checkpoint in bfloat16 has the same values, and so the same hash, in float32.
    for dtype in ("float32", "bfloat16"):
        weights, digests = _read(_unquantised(bases, quantised[0], model_id, dtype) if quantised else bases)
        if combine(digests) == fingerprint["weights_sha256"] or not quantised:
            break
    expected = _fingerprint(basis, weights, digests, rank, seed, model_id, fingerprint.get("start_adapter"))
    check_fingerprint(where, expected=expected, found=fingerprint)
    weights = {name: weight.to(next(bases[name].parameters()).device) for name, weight in weights.items()}
    if basis == "lora":
        return Frames(frames=_drawn(weights, rank, seed), layers=bases, fingerprint=fingerprint)
    frames = {}
    for name, held in factorise_all(weights, digests, cache_dir, rank=rank).items():
        if name in frozen and not quantised:
            frames[name] = SvdFrame(held, held.S, bases[name])
        else:
            U, Vh = both_factors(held, weights[name])
            frames[name] = SvdFrame(Factors(U, held.S, Vh), held.S, None)
    return Frames(frames=frames, layers=bases, fingerprint=fingerprint)


def target_layers(model: nn.Module, targets: Sequence[str]) -> dict[str, nn.Module]:
    """Return the layers named `targets` in `model` below any adapter; a layer may have an adapter around it.

    Raises:
        InputError: the model has no such layer.
    """
    unite_tied(model)
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
    """Return the Linear below the adapters of a layer, or the layer itself."""
    return layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer


# Tuners of peft that use the frozen weight W in one call of the Linear below them, so that taps of this Linear give
# dL/dW. Each was compared with autograd away from its start (tests/bench/attach_setups.py).
READABLE = (
    *("adalora", "beft", "boft", "c3a", "deft", "delora", "fourierft", "gralora", "ia3", "lily", "loha", "lokr"),
    *("lora", "miss", "oft", "osf", "pvera", "randlora", "tinylora", "unilora", "vblora", "vera"),
)


def check_adapters(layers: Mapping[str, nn.Module], *, has_dropout: bool) -> None:
    """Raise InputError for an adapter below which taps of the Linear do not give dL/dW.

    Args:
        layers: from `target_layers`.
        has_dropout: the model runs in training mode, where dropout is on.
    """
    for name, layer in layers.items():
        package, _, path = type(layer).__module__.partition(".tuners.")
        if package != "peft":
            continue
        tuner = path.partition(".")[0]
        unreadable = None if tuner in READABLE else tuner
        drops = isinstance(layer, LoraLayer) and any(isinstance(one, nn.Dropout) for one in layer.lora_dropout.values())
        if has_dropout and drops and layer.lora_magnitude_vector:
            unreadable = "DoRA with dropout"  # multiplies with the weight a second time
        if unreadable is not None:
            raise InputError(
                f"module {name}",
                expected="an adapter that uses the weight below it once, in a call of its Linear",
                found=unreadable,
                fix="train LoRA or DoRA without dropout, or leave these modules out of model.targets",
            )


def check_fingerprint(where: object, *, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse directions or gradients that belong to another basis.

    Args:
        where: the file or object that carries `found`, for the message.
        expected: the fingerprint of the model at hand.
        found: the fingerprint stored with directions or gradients.

    Raises:
        InputError: the two differ; the message shows both values of each differing field.
    """
    current, stored = comparable(expected), comparable(found)
    differing = [key for key in {**current, **stored} if current.get(key) != stored.get(key)]
    if differing:
        # A long value (the targets of a big model) is cut.
        current_text, stored_text = (
            ", ".join(f"{key}={cut(str(each.get(key)), 80)}" for key in differing) for each in (expected, found)
        )
        raise InputError(
            where,
            expected=f"basis {current_text}",
            found=stored_text,
            fix="load the model, in its dtype, that they were extracted from, or run probe extract on this one",
        )


def comparable(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields by which bases are compared: all but `model_id`, since a model may have several names."""
    return {key: value for key, value in fingerprint.items() if key != "model_id"}


def _read(layers: Mapping[str, nn.Module]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the weight (d_out, d_in) of every layer, gathered if it is sharded, and their digests."""
    weights = {name: whole(weight_matrix(layer, name)) for name, layer in layers.items()}
    return weights, digest_all(weights)


def _fingerprint(
    basis: Basis,
    weights: Mapping[str, Tensor],
    digests: Mapping[str, str],
    rank: int | None,
    seed: int | None,
    model_id: str,
    start_adapter: str | None,
) -> dict[str, Any]:
    fingerprint: dict[str, Any] = {"basis": basis, "model_id": model_id}
    if start_adapter is not None:
        fingerprint["start_adapter"] = start_adapter
    fingerprint |= {"weights_sha256": combine(digests), "targets": list(digests)}
    if basis == "lora":
        assert rank is not None
        return fingerprint | {"init_seed": seed, "rank": rank, "alpha": float(rank), "train_a": False}
    # A rank that cuts no module gives the basis of all triplets.
    cuts = rank is not None and any(rank < min(weight.shape) for weight in weights.values())
    return fingerprint | {"rank": rank if cuts else None, "alpha": None, "init_seed": None}


def _drawn(weights: Mapping[str, Tensor], rank: int, seed: int) -> dict[str, Frame]:
    """Draw each module's A, orthonormal rows; one generator for all, so that an A depends on the modules before it."""
    generator = torch.Generator().manual_seed(seed)
    frames: dict[str, Frame] = {}
    for name, weight in weights.items():
        d_out, d_in = weight.shape
        if not 1 <= rank <= d_in:
            raise InputError(f"module {name}", expected=f"a LoRA rank in 1..{d_in}", found=str(rank))
        A, _ = torch.linalg.qr(torch.randn(d_in, rank, dtype=torch.float64, generator=generator))
        dtype = torch.promote_types(weight.dtype, torch.float32)
        frames[name] = LoraFrame(A.T.to(weight.device, dtype), d_out, dtype)
    return frames


def _unquantised(layers: Mapping[str, nn.Module], quantised: str, model_id: str, dtype: str) -> dict[str, nn.Module]:
    """Return the layers from the checkpoint `model_id`; InputError, about the layer `quantised`, without it."""
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
