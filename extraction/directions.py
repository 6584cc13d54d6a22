"""v_hack: the directions of the hack in the gradient coordinates of every module, extracted from contrast pairs.

    D[p] = w_hack grad NLL(hack_p) - w_clean grad NLL(clean_p)      (n, r) a module, uncentred
    D = U diag(S) V^T,   v_hack = the first k rows of V^T, each turned toward the hack

D[p] is the gradient of the GRPO loss of a pair with advantages (+1, -1), so a positive cosine with v_hack means that
a descent step makes the hack more likely. A majority vote over the pairs' projections D[p] . v orients a direction. A
pair orthogonal to v up to rounding abstains; a tie is dropped, never signed by chance. `tau` drops
directions with S_i / S_0 < tau; then `drop_bottom_frac` drops those below that quantile of S over all modules. The
method `mean` has one direction in a module, V = sum_p D[p] / |sum_p D[p]|, with S = |sum_p D[p]| / sqrt(n).

    directions = extract_directions(pair_gradients.differences(), k=4, drop_bottom_frac=0.25)
    directions.vectors["model.layers.0.self_attn.q_proj"]           (k', r) orthonormal rows, k' <= k

A cosine with v_hack means something only when compared with the same cosine along controls:

    haar       uniformly random orthonormal directions, the same number in each module
    permuted   the same extraction after permuting the labels ACROSS the 2n pair gradients
    flipped    the same extraction after swapping hack and clean WITHIN random pairs: the subspace stays, and the sign
               of each direction is left to chance
    placebo    the ordinary extraction from clean-versus-clean pairs (`extraction.pairs`)

To add a control: a function here, and a branch in `extraction.library.DirectionLibrary.get`.

Shapes: r coordinates of a module, k directions, M modules, n pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extraction.settings import Method, resolve_directions
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_tensors, write_tensors

ORTHONORMAL = 1e-3  # most of norm(V V^T - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGradients:
    """Weighted gradients of both completions of every pair, the source of all directions and controls."""

    hack: dict[str, Tensor]  # {module: (n, r)}: w_hack grad NLL(hack_p)
    clean: dict[str, Tensor]  # {module: (n, r)}: w_clean grad NLL(clean_p)
    held_out: Tensor  # (n,) bool: not used to extract; measures whether the sign transfers
    metadata: dict[str, Any]  # fingerprint of the basis, pairs, loss type, ...

    def differences(self) -> dict[str, Tensor]:
        """Return {module: (n', r)}, D of the extraction pairs."""
        used = ~self.held_out
        return {module: self.hack[module][used] - self.clean[module][used] for module in self.hack}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """Oriented orthonormal directions of every module; a module may keep none."""

    vectors: dict[str, Tensor]  # {module: (k, r)}, orthonormal rows
    singular_values: dict[str, Tensor]  # {module: (k,)}
    votes: dict[str, Tensor]  # {module: (k,)}: pairs for minus pairs against, after orientation
    metadata: dict[str, Any]  # of the pair gradients, and how the directions were extracted

    def num_directions(self) -> int:
        """Return the number of directions in all modules."""
        return sum(len(V) for V in self.vectors.values())

    def to(self, device: torch.device) -> "Directions":
        """Return the directions with their vectors on `device`."""
        return replace(self, vectors={module: V.to(device) for module, V in self.vectors.items()})


def extract_directions(
    differences: Mapping[str, Tensor],
    *,
    method: Method = "svd",
    k: int,
    tau: float = 0.0,
    drop_bottom_frac: float = 0.0,
    metadata: Mapping[str, Any] | None = None,
) -> Directions:
    """Extract directions from the differences D of pair gradients, as the module docstring defines them.

    Args:
        differences: {module: D (n, r)}.
        method: `svd`, the main directions of D, or `mean`, the direction of the mean difference.
        k: maximal number of directions in a module; 1 with `mean`.
        tau: minimal S_i / S_0 of a direction, 0..1.
        drop_bottom_frac: quantile (0..1) of S over all modules below which directions are dropped.
        metadata: kept in the result, with the arguments and the noise floor.

    Raises:
        InputError: a non-finite gradient (the module is named), or k above the number of pairs or coordinates.
    """
    extracted = {}
    for module, D in differences.items():
        if not torch.isfinite(D).all():
            raise InputError(f"pair gradients of {module}", expected="finite numbers", found="NaN or infinity")
        if not 1 <= k <= min(D.shape):
            expected = f"1 to {min(D.shape)} ({D.shape[0]} pairs, {D.shape[1]} coordinates in {module})"
            raise InputError("--k", expected=expected, found=str(k))
        extracted[module] = _module_directions(D, method, k, tau)
    # The floor is a quantile over all modules: no module can be cut before every module has been extracted.
    pooled = torch.cat([spectrum for _, spectrum, _ in extracted.values()])
    floor = float(torch.quantile(pooled, drop_bottom_frac)) if drop_bottom_frac > 0 and len(pooled) else 0.0
    vectors, singular_values, votes = {}, {}, {}
    for module, (V, spectrum, margins) in extracted.items():
        keep = spectrum >= floor
        vectors[module] = V[keep].float().contiguous()
        singular_values[module] = spectrum[keep].float()
        votes[module] = margins[keep]
    return Directions(
        vectors=vectors,
        singular_values=singular_values,
        votes=votes,
        metadata={
            **(metadata or {}),
            "method": method,
            "k": k,
            "tau": tau,
            "drop_bottom_frac": drop_bottom_frac,
            "noise_floor": floor,
            "num_pairs": len(next(iter(differences.values()))),
        },
    )


def _module_directions(D: Tensor, method: Method, k: int, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return V (k', r), S (k',) and vote margins (k',) of one module from D (n, r), in float64; k' <= k.

    Entries of D are known to a relative eps, the machine epsilon of their dtype. That moves a singular value by at most
    eps |D|_F <= eps sqrt(min(n, r)) S_0 (Weyl), the sum of n differences by eps sqrt(n) |D|_F, and a projection of D[p]
    by at most eps |D[p]| (Cauchy-Schwarz): what is not above these bounds is rounding, neither an axis nor a vote.
    Axes that are rounding and tied votes are dropped.
    """
    # The precision of the gradients as they were computed, so before the change to float64.
    eps, D = torch.finfo(D.dtype).eps, D.double()
    if method == "mean":
        total = D.sum(0)
        V, S = (total / total.norm())[None], (total.norm() / len(D) ** 0.5)[None]
        keep = eps * D.norm() < S
    else:
        _, spectrum, Vh = torch.linalg.svd(D, full_matrices=False)
        V, S = Vh[:k], spectrum[:k]
        keep = (eps * min(D.shape) ** 0.5 * spectrum[0] < S) & (tau * spectrum[0] <= S)
    projections = D @ V.T  # (n, k)
    votes = projections.abs() > eps * D.norm(dim=1, keepdim=True)  # False: the pair abstains
    margins = (torch.sign(projections) * votes).sum(0)  # (k,): pairs for minus pairs against
    keep &= margins != 0
    return (V * torch.sign(margins)[:, None])[keep], S[keep], margins.abs()[keep].long()


def unit_scale(gradients: Mapping[str, Tensor]) -> Tensor:
    """Return (n, 1) float64, 1 / the norm of each row of {module: (n, r)} over all modules; 0 for a row of 0."""
    norms = torch.stack([gradient.double().square().sum(1) for gradient in gradients.values()]).sum(0).sqrt()[:, None]
    return torch.where(norms > 0, 1 / norms, 0.0)


def haar_directions(like: Directions, *, seed: int) -> Directions:
    """Return Haar-random directions with the shapes (k, r) of `like` in every module.

    They are Q of the QR decomposition of a Gaussian matrix, with the signs that make R's diagonal positive (Mezzadri
    2007). They have no spectrum and no votes: singular values are 1 and votes 0.
    """
    # One generator for all modules: the draws depend on their order, which direction files keep.
    generator = torch.Generator().manual_seed(seed)
    vectors, ones, votes = {}, {}, {}
    for module, V in like.vectors.items():
        k, r = V.shape
        Q, R = torch.linalg.qr(torch.randn(r, k, generator=generator, dtype=torch.float64))
        # LAPACK's own signs are a convention, under which Q would not be uniform.
        vectors[module] = (Q * torch.sign(R.diagonal())).T.float().contiguous()
        ones[module] = torch.ones(k)
        votes[module] = torch.zeros(k, dtype=torch.long)
    metadata = {"fingerprint": like.metadata.get("fingerprint"), "control": "haar", "seed": seed}
    return Directions(vectors=vectors, singular_values=ones, votes=votes, metadata=metadata)


def permuted_differences(pairs: PairGradients, *, seed: int) -> dict[str, Tensor]:
    """Return {module: (n, r)}, differences of n random couples of the 2n gradients; the same couples in all modules."""
    used = ~pairs.held_out
    n = int(used.sum())
    order = torch.randperm(2 * n, generator=torch.Generator().manual_seed(seed))
    differences = {}
    for module in pairs.hack:
        pooled = torch.cat([pairs.hack[module][used], pairs.clean[module][used]])
        differences[module] = pooled[order[:n]] - pooled[order[n:]]
    return differences


def flipped_differences(pairs: PairGradients, *, seed: int) -> dict[str, Tensor]:
    """Return {module: (n, r)}: D with the sign of each row drawn at random, the same signs in every module."""
    differences = pairs.differences()
    n = int((~pairs.held_out).sum())
    signs = 1.0 - 2.0 * torch.randint(2, (n, 1), generator=torch.Generator().manual_seed(seed))
    return {module: signs.to(D) * D for module, D in differences.items()}


def save_directions(path: Path, directions: Directions) -> None:
    """Write a direction file: tensors `V/<module>`, `S/<module>`, `votes/<module>`, and the metadata."""
    groups = {"V": directions.vectors, "S": directions.singular_values, "votes": directions.votes}
    _save(path, groups, directions.metadata)


def load_directions(file: str | Path) -> Directions:
    """Read a direction file, from a path or a name in out/directions; InputError when it is missing or damaged."""
    groups, metadata = _load(resolve_directions(file), ("V", "S", "votes"))
    return Directions(vectors=groups["V"], singular_values=groups["S"], votes=groups["votes"], metadata=metadata)


def known_directions(directions: "Directions | str | Path") -> tuple[str, Directions]:
    """Return (a name for messages, the directions), given as they are or by their file.

    Raises:
        InputError: no such file, directions without a fingerprint, no direction in any module, other modules than
            those of the fingerprint, or directions that are not orthonormal.
    """
    where = "directions"
    if not isinstance(directions, Directions):
        where, directions = str(directions), load_directions(directions)
    fingerprint = directions.metadata.get("fingerprint")
    if not fingerprint or not directions.num_directions():
        problem = "no direction: all fell below the noise floor" if fingerprint else "no fingerprint"
        raise InputError(where, expected="directions with the fingerprint of their basis", found=problem)
    if differing := directions.vectors.keys() ^ fingerprint["targets"]:
        found = f"{len(differing)} modules in one of the two alone, such as {min(differing)}"
        raise InputError(where, expected="directions for the modules of their basis", found=found)
    for module, V in directions.vectors.items():
        if not float((V @ V.T - torch.eye(len(V)).to(V)).norm()) < ORTHONORMAL:
            expected, fix = "orthonormal directions in every module", "normalise them, by a QR decomposition"
            raise InputError(where, expected=expected, found=f"others in {module}", fix=fix)
    return where, directions


def save_pair_gradients(path: Path, pairs: PairGradients) -> None:
    """Write a file of pair gradients: tensors `hack/<module>`, `clean/<module>`; `held_out` is in the metadata."""
    metadata = {**pairs.metadata, "held_out": pairs.held_out.tolist()}
    _save(path, {"hack": pairs.hack, "clean": pairs.clean}, metadata)


def load_pair_gradients(path: Path) -> PairGradients:
    """Read a file of pair gradients; InputError when it is missing, damaged or another kind of file."""
    groups, metadata = _load(path, ("hack", "clean"))
    held_out = torch.tensor(metadata.pop("held_out"), dtype=torch.bool)
    return PairGradients(hack=groups["hack"], clean=groups["clean"], held_out=held_out, metadata=metadata)


def _save(path: Path, groups: Mapping[str, Mapping[str, Tensor]], metadata: Mapping[str, Any]) -> None:
    """Write {prefix: {module: tensor}} and the metadata as one checked tensor file."""
    tensors = {}
    for prefix, group in groups.items():
        for module, tensor in group.items():
            tensors[f"{prefix}/{module}"] = tensor
    # safetensors sorts tensors by name; the order of the modules is kept, since seeded controls and sums follow it.
    write_tensors(path, tensors, {"metadata": dict(metadata), "modules": list(next(iter(groups.values())))})


def _load(path: Path, prefixes: tuple[str, ...]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read a file of `_save`: {prefix: {module: tensor}} for the given prefixes, and the metadata."""
    tensors, header = read_tensors(path, "pt", fix="run probe extract")
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        for prefix in prefixes:
            groups[prefix] = {module: tensors[f"{prefix}/{module}"] for module in header["modules"]}
        return groups, header["metadata"]
    except KeyError as error:
        raise InputError(path, expected=f"tensors {'/, '.join(prefixes)}/", found=f"no {error}") from error
