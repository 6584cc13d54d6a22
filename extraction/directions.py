"""v_hack: the directions of the hack in module coordinates, extracted from contrast pairs.

    D[p] = w_hack grad NLL(hack_p) - w_clean grad NLL(clean_p)      (n, r) a module, uncentred
    D = U diag(S) V^T,   v_hack = the first k rows of V^T, each oriented hack-ward

D[p] is the gradient of the GRPO loss of a pair with advantages (+1, -1), so a positive cosine with v_hack means that
a descent step makes the hack more likely. A direction is oriented by majority vote over the pairs' projections
D[p] . v, where a pair orthogonal to v up to rounding abstains; a tie is dropped, never signed by chance. `tau` drops
directions with S_i / S_0 < tau; then `drop_bottom_frac` drops those below that quantile of S over all modules.

G samples, r coordinates of a module, k directions, M modules, n pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from scipy.stats import binomtest
from torch import Tensor

from replay_pools.errors import InputError
from replay_pools.files import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGradients:
    """Weighted per-sample gradients of the pairs' completions: what every direction and every null is made from."""

    hack: dict[str, Tensor]  # {module: (n, r)}
    clean: dict[str, Tensor]  # {module: (n, r)}
    held_out: Tensor  # (n,) bool
    metadata: dict[str, Any]

    def differences(self, *, held_out: bool = False) -> dict[str, Tensor]:
        """{module: (n', r)}: D of the extraction pairs, or of the held-out ones."""
        rows = self.held_out if held_out else ~self.held_out
        return {module: self.hack[module][rows] - self.clean[module][rows] for module in self.hack}


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """Oriented orthonormal directions of every module; a module may keep none."""

    vectors: dict[str, Tensor]  # {module: (k, r)}, orthonormal rows
    singular_values: dict[str, Tensor]  # {module: (k,)}
    votes: dict[str, Tensor]  # {module: (k,)}: pairs for minus pairs against, after orientation
    metadata: dict[str, Any]

    def num_directions(self) -> int:
        """Directions kept over all modules."""
        return sum(len(v) for v in self.vectors.values())

    def to(self, device: torch.device) -> "Directions":
        """The same directions with their vectors on `device`."""
        vectors = {module: v.to(device) for module, v in self.vectors.items()}
        return Directions(
            vectors=vectors, singular_values=self.singular_values, votes=self.votes, metadata=self.metadata
        )


def extract_directions(
    differences: Mapping[str, Tensor],
    *,
    k: int,
    tau: float = 0.0,
    drop_bottom_frac: float = 0.0,
    metadata: Mapping[str, Any] | None = None,
) -> Directions:
    """Directions of `differences` {module: (n, r)}; the arguments are those of the module docstring.

    Raises:
        InputError: a non-finite gradient (the module is named), or k above the number of pairs or coordinates.
    """
    vectors, singular_values, votes = {}, {}, {}
    for module, rows in differences.items():
        if not torch.isfinite(rows).all():
            raise InputError(f"pair gradients of {module}", expected="finite numbers", found="NaN or infinity")
        if not 1 <= k <= min(rows.shape):
            most = f"1 to {min(rows.shape)} ({rows.shape[0]} pairs, {rows.shape[1]} coordinates in {module})"
            raise InputError("--k", expected=most, found=str(k))
        vectors[module], singular_values[module], votes[module] = _module_directions(rows, k, tau)
    floor = _noise_floor(singular_values, drop_bottom_frac)
    keep = {module: s >= floor for module, s in singular_values.items()}
    votes = {module: v[keep[module]] for module, v in votes.items()}
    num_pairs = len(next(iter(differences.values())))
    return Directions(
        vectors={module: v[keep[module]].float().contiguous() for module, v in vectors.items()},
        singular_values={module: s[keep[module]].float() for module, s in singular_values.items()},
        votes=votes,
        metadata={
            **(metadata or {}),
            "k": k,
            "tau": tau,
            "drop_bottom_frac": drop_bottom_frac,
            "noise_floor": floor,
            "num_pairs": num_pairs,
            "vote_p": {module: [vote_p_value(int(m), num_pairs) for m in margins] for module, margins in votes.items()},
        },
    )


def _module_directions(rows: Tensor, k: int, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """Top-k right singular vectors of (n, r) rows in float64, oriented; dead axes and tied votes are dropped.

    Entries of D are known to a relative eps, the machine epsilon of their dtype. That moves a singular value by at most
    eps |D|_F <= eps sqrt(min(n, r)) S_0 (Weyl) and a projection of D[p] by at most eps |D[p]| (Cauchy-Schwarz):
    what is not above these bounds is rounding, neither an axis nor a vote.
    """
    eps = torch.finfo(rows.dtype).eps
    rows = rows.double()
    _, s, vh = torch.linalg.svd(rows, full_matrices=False)
    dead = eps * min(rows.shape) ** 0.5 * s[0]
    s, vh = s[:k], vh[:k]
    projections = rows @ vh.T  # (n, k)
    telling = projections.abs() > eps * rows.norm(dim=1, keepdim=True)
    margins = (torch.sign(projections) * telling).sum(0)  # (k,): pairs for minus pairs against
    alive = (s > dead) & (s >= tau * s[0]) & (margins != 0)
    return (vh * torch.sign(margins)[:, None])[alive], s[alive], margins.abs()[alive].long()


def _noise_floor(singular_values: Mapping[str, Tensor], fraction: float) -> float:
    """The `fraction` quantile of the singular values of all modules."""
    everything = torch.cat(list(singular_values.values()))
    if fraction <= 0 or len(everything) == 0:
        return 0.0
    return float(torch.quantile(everything, fraction))


def pair_scores(differences: Mapping[str, Tensor], directions: Directions) -> Tensor:
    """(n,) global signed cosines of pairs: sum_m <u_m, D_m> / (sqrt(M) |D|), u = sum_i V_i / sqrt(k)."""
    used = [module for module, v in directions.vectors.items() if len(v)]
    squared = torch.stack([rows.double().square().sum(1) for rows in differences.values()]).sum(0)
    inner = [differences[m].double() @ _mean_axis(directions.vectors[m]) for m in used]
    if not inner:
        return torch.full_like(squared, torch.nan)
    return torch.stack(inner).sum(0) / (len(used) * squared).sqrt()


def _mean_axis(vectors: Tensor) -> Tensor:
    return vectors.double().sum(0) / len(vectors) ** 0.5


def sign_accuracy(pairs: PairGradients, directions: Directions) -> dict[str, Any]:
    """Does the sign transfer to held-out pairs? Share right, its exact binomial 95% interval, and the mean cosine.

    `num_pairs` counts the held-out pairs that have a cosine: none where no direction was kept or the difference is 0.
    """
    scores = pair_scores(pairs.differences(held_out=True), directions)
    scores = scores[~torch.isnan(scores)]
    right, count = int((scores > 0).sum()), len(scores)
    if count == 0:
        return {"num_pairs": 0, "accuracy": None, "ci95": None, "mean_cos": None, "p": None}
    test = binomtest(right, count, 0.5, alternative="greater")
    interval = binomtest(right, count).proportion_ci(0.95)
    return {
        "num_pairs": count,
        "accuracy": right / count,
        "ci95": [float(interval.low), float(interval.high)],
        "mean_cos": float(scores.mean()),
        "p": float(test.pvalue),
    }


def vote_p_value(margin: int, num_pairs: int) -> float:
    """Two-sided binomial p of a vote margin among `num_pairs` pairs."""
    return float(binomtest((num_pairs + margin) // 2, num_pairs, 0.5).pvalue)


def save_directions(path: Path, directions: Directions) -> None:
    """`V/<module>`, `S/<module>`, `votes/<module>` and the metadata as one JSON string."""
    groups = {"V": directions.vectors, "S": directions.singular_values, "votes": directions.votes}
    _save(path, groups, directions.metadata)


def load_directions(path: Path) -> Directions:
    """Read a direction file; InputError when it is missing, damaged or something else."""
    groups, metadata = _load(path, ("V", "S", "votes"))
    return Directions(vectors=groups["V"], singular_values=groups["S"], votes=groups["votes"], metadata=metadata)


def save_pair_gradients(path: Path, pairs: PairGradients) -> None:
    """`hack/<module>`, `clean/<module>`, and the metadata with `held_out` as a list."""
    metadata = {**pairs.metadata, "held_out": pairs.held_out.tolist()}
    _save(path, {"hack": pairs.hack, "clean": pairs.clean}, metadata)


def load_pair_gradients(path: Path) -> PairGradients:
    """Read a file of pair gradients; InputError when it is missing, damaged or something else."""
    groups, metadata = _load(path, ("hack", "clean"))
    if "held_out" not in metadata:
        raise InputError(path, expected="pair gradients", found="no list of held-out pairs in the metadata")
    held_out = torch.tensor(metadata.pop("held_out"), dtype=torch.bool)
    return PairGradients(hack=groups["hack"], clean=groups["clean"], held_out=held_out, metadata=metadata)


def _save(path: Path, groups: Mapping[str, Mapping[str, Tensor]], metadata: Mapping[str, Any]) -> None:
    """{prefix: {module: tensor}}, the order of the modules (seeded controls and sums follow it), and the metadata."""
    tensors = {f"{prefix}/{module}": t.contiguous() for prefix, group in groups.items() for module, t in group.items()}
    header = {"metadata": dict(metadata), "modules": list(next(iter(groups.values())))}
    # One string under one key: safetensors writes several keys in no fixed order.
    text = orjson.dumps(header, option=orjson.OPT_SORT_KEYS).decode()
    write_atomic(path, save(tensors, {"header": text}))


def _load(path: Path, prefixes: tuple[str, ...]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors by prefix and module, and the metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            header = orjson.loads((file.metadata() or {})["header"])
            metadata, modules = header["metadata"], header["modules"]
            # A mapped tensor starts where the file's header ends; a copy is aligned as a computed tensor is, so that
            # matrix products of the two agree to the last bit.
            groups = {prefix: {m: file.get_tensor(f"{prefix}/{m}").clone() for m in modules} for prefix in prefixes}
    except FileNotFoundError as error:
        raise InputError(path, expected="a safetensors file", found="no such file", fix="run probe extract") from error
    except (SafetensorError, OSError, KeyError, orjson.JSONDecodeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise InputError(path, expected=f"tensors {'/, '.join(prefixes)}/", found=found) from error
    return groups, metadata
