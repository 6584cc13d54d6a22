"""Frames: the coordinates in which gradients are read, module by module. The model needs no adapter.

    frames = {"svd": svd_frames(model), "lora": lora_frames(model, seed=0)}
    per_sample_gradients(model, frames, batch).gradients["svd"][module]          (G, r)

    svd    W = U diag(S) Vh       coordinates of M: diag(U^T M V), (r,)           matrix of v: U diag(v) Vh
    lora   A from a seed          coordinates of M: M A^T, (d_out rank,)          matrix of v: v A

The coordinates of dL/dW are the gradient that an adapter of that basis (`adapters.trained`), at zero, would have on top
of W, whatever W is now. The two maps, of `adapters.coordinates`, are adjoint: <matrix of v, M> = <v, coordinates of M>.

Shapes: G samples, T tokens, r coordinates of a module; M and W (d_out, d_in), U (d_out, r), S (r,), Vh (r, d_in),
A (rank, d_in). All gradients are of a LOSS: a descent step moves along -g.
To add a basis: a word in `extraction.words.Basis`, a subclass of `Frame`, a function that makes its frames.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from extraction.adapters import svd
from extraction.adapters.coordinates import Frame, LoraFrame, SvdFrame
from extraction.adapters.sharded import whole
from extraction.adapters.svd import Factors, combine, digest_all, factorise_all
from extraction.adapters.targets import ALL, adapted_share, find_targets, is_quantised, unite_tied, weight_matrix
from extraction.words import Adapted, Basis
from replay_pools.errors import InputError
from replay_pools.policy.load import load_policy

DEFAULT_RANK = 32  # of LoRA
SVD_CACHE = Path("out/cache/svd")  # relative to the working directory
WARN_BYTES = 2**30  # of frames whose memory is a warning


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames(Mapping[str, Frame]):
    """{module: its frame} of a model in one basis.

    Modules are named by their dotted path in the model below any adapter (`model.layers.0.self_attn.q_proj`), in the
    order of `named_modules()`; that order is the order of every dictionary that comes out of here.

    Attributes:
        frames: by module.
        layers: where each module is read.
        fingerprint: what identifies the basis: basis, model_id, weights_sha256, targets, rank, alpha, init_seed, ...
            Numbers in two bases can be compared only if these agree (`check_fingerprint`). `weights_sha256` covers
            names and values of the weights of the modules.
        adapted: how much of the model the modules are; None where that was not asked.
        left_out: {module: |W - U diag(S) Vh| / |W|} of the modules of which some triplets are left out.
        moved: the weights are not those of the fingerprint, but an adapter away from them.
    """

    frames: Mapping[str, Frame]
    layers: Mapping[str, nn.Module]
    fingerprint: Mapping[str, Any]
    adapted: Adapted | None = None
    left_out: Mapping[str, float] = field(default_factory=dict)
    moved: bool = False

    def __getitem__(self, module: str) -> Frame:
        return self.frames[module]

    def __iter__(self) -> Iterator[str]:
        return iter(self.frames)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def basis(self) -> Basis:
        """The word of the basis."""
        return self.fingerprint["basis"]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of coordinates r of each module."""
        return {module: frame.size for module, frame in self.frames.items()}

    @property
    def truncation(self) -> dict[str, Any] | None:
        """For manifests: the median and the largest `left_out`; None where every triplet is kept."""
        cuts = self.left_out.values()
        return {"modules": len(cuts), "left_out": {"median": median(cuts), "max": max(cuts)}} if cuts else None

    def to(self, device: torch.device | str) -> "Frames":
        """The same frames on another device."""
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
    """The singular frames of a model without an adapter, of weights that stay as they are.

    Args:
        model: is not changed.
        targets: which Linears (`find_targets`).
        rank: how many of the largest singular triplets of each module; None is all.
        model_id: the name of the model in the fingerprint.
        start_adapter: checksum of an adapter that is merged into `model`, which may have changed more than the targets.
        cache_dir: folder of the SVD cache; None computes without one.

    Raises:
        InputError: a rank below 1, or no matching target.
    """
    if rank is not None and rank < 1:
        raise InputError("rank of svd", expected="at least 1", found=str(rank))
    layers = {path: model.get_submodule(path) for path in find_targets(model, targets)}
    weights, digests = _read(layers)
    fingerprint = {"basis": "svd", **_named(model_id, start_adapter), **_svd_identity(weights, digests, rank)}
    factors = factorise_all(weights, digests, None if cache_dir is None else Path(cache_dir), rank=rank)
    return Frames(
        frames={name: SvdFrame(held, layers[name]) for name, held in factors.items()},
        layers=layers,
        fingerprint=fingerprint,
        adapted=adapted_share(model, list(layers)),
        left_out=_left_out(factors, weights),
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
    """LoRA's frames of a model without an adapter: an A of orthonormal rows from `seed` for every module.

    Args:
        model: is not changed.
        targets, model_id, start_adapter: as of `svd_frames`.
        seed: of A.
        rank: the rows of A.

    Raises:
        InputError: a rank outside 1..d_in of some module, where rows could not be orthonormal, or no matching target.
    """
    layers = {path: model.get_submodule(path) for path in find_targets(model, targets)}
    weights, digests = _read(layers)
    for name, weight in weights.items():
        if not 1 <= rank <= weight.shape[1]:
            raise InputError(f"module {name}", expected=f"a LoRA rank in 1..{weight.shape[1]}", found=str(rank))
    fingerprint = {"basis": "lora", **_named(model_id, start_adapter), **_lora_identity(digests, rank, seed)}
    return Frames(
        frames=_drawn(weights, rank, seed),
        layers=layers,
        fingerprint=fingerprint,
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
    named = {key: fingerprint[key] for key in ("basis", "model_id", "start_adapter") if key in fingerprint}
    rank = fingerprint["rank"]
    # A checkpoint in bfloat16 has the same values, and so the same hash, in float32.
    for dtype in ("float32", "bfloat16"):
        read = _unquantised(bases, quantised[0], str(fingerprint["model_id"]), dtype) if quantised else bases
        weights, digests = _read(read)
        if combine(digests) == fingerprint["weights_sha256"] or not quantised:
            break
    if fingerprint["basis"] == "svd":
        identity = _svd_identity(weights, digests, rank)
    else:
        identity = _lora_identity(digests, rank, fingerprint["init_seed"])
    check_fingerprint(where, expected=named | identity, found=fingerprint)
    weights = {name: weight.to(_device(bases[name])) for name, weight in weights.items()}
    if fingerprint["basis"] == "lora":
        frames = _drawn(weights, rank, fingerprint["init_seed"])
        return Frames(frames=frames, layers=bases, fingerprint=fingerprint)
    lean = {name for name in frozen if not quantised}
    _say_memory(weights, rank, lean)
    frames = {}
    for name, held in factorise_all(weights, digests, cache_dir, rank=rank).items():
        if name in lean:
            frames[name] = SvdFrame(held, bases[name])
        else:
            U, Vh = svd.both_factors(held, weights[name])
            frames[name] = SvdFrame(Factors(U, held.S, Vh))
    return Frames(frames=frames, layers=bases, fingerprint=fingerprint)


def target_layers(model: nn.Module, targets: Sequence[str]) -> dict[str, nn.Module]:
    """The layers of `model` that are named `targets` before any adapter; a layer may have an adapter around it.

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


def orthonormal_frames(shapes: Iterable[tuple[int, int]], seed: int) -> Iterator[Tensor]:
    """The A that `seed` gives each module, in order of their (rank, d_in): orthonormal rows, float64.

    All modules draw from one generator, so that the A of a module depends on the modules before it.
    """
    generator = torch.Generator().manual_seed(seed)
    for rank, d_in in shapes:
        frame, _ = torch.linalg.qr(torch.randn(d_in, rank, dtype=torch.float64, generator=generator))
        yield frame.T


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
        raise InputError(
            where,
            expected=f"basis {_describe(expected, differing)}",
            found=_describe(found, differing),
            fix="load the model, in its dtype, that they were extracted from, or run probe extract on this one",
        )


def comparable(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by which bases are compared: all but `model_id`.

    The hash of the weights says more than a name, and the same model may lie in different places.
    """
    return {key: value for key, value in fingerprint.items() if key != "model_id"}


def _describe(fingerprint: Mapping[str, Any], keys: Sequence[str]) -> str:
    """`key=value` of the named fields; a long value (the targets of a big model) is cut."""
    parts = []
    for key in keys:
        text = str(fingerprint.get(key))
        parts.append(f"{key}={text if len(text) <= 80 else text[:77] + '...'}")
    return ", ".join(parts)


def _read(layers: Mapping[str, nn.Module]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The weight (d_out, d_in) of every layer, gathered if it is sharded, and their digests."""
    weights = {name: whole(weight_matrix(layer, name)) for name, layer in layers.items()}
    return weights, digest_all(weights)


def _named(model_id: str, start_adapter: str | None) -> dict[str, str]:
    # Only where there is one: fingerprints without it are of base models.
    return {"model_id": model_id} | ({} if start_adapter is None else {"start_adapter": start_adapter})


def _svd_identity(weights: Mapping[str, Tensor], digests: Mapping[str, str], rank: int | None) -> dict[str, Any]:
    return {
        "weights_sha256": combine(digests),
        "targets": list(digests),
        # A basis with all triplets is the full one, whatever rank was asked for.
        "rank": None if rank is None or all(min(weight.shape) <= rank for weight in weights.values()) else rank,
        "alpha": None,
        "init_seed": None,
    }


def _lora_identity(digests: Mapping[str, str], rank: int, seed: int) -> dict[str, Any]:
    return {
        "weights_sha256": combine(digests),
        "targets": list(digests),
        "init_seed": seed,
        "rank": rank,
        "alpha": float(rank),
        "train_a": False,
    }


def _left_out(factors: Mapping[str, Factors], weights: Mapping[str, Tensor]) -> dict[str, float]:
    cut = [name for name, weight in weights.items() if len(factors[name].S) < min(weight.shape)]
    return {name: svd.left_out(factors[name], weights[name]) for name in cut}


def _drawn(weights: Mapping[str, Tensor], rank: int, seed: int) -> dict[str, Frame]:
    drawn = orthonormal_frames([(rank, weight.shape[1]) for weight in weights.values()], seed)
    frames: dict[str, Frame] = {}
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
        logging.WARNING if total >= WARN_BYTES else logging.INFO,
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
