"""Sufficient statistics of the nulls: inner products of gradients, not the gradients.

Every direction from pairs lies in the span of the pair gradients P_m (N, r), N = 2n (hack first, then clean), so that

    inner_m = g_m P_m^T  (G, N),   samples_m = g_m g_m^T  (G, G),   pairs_m = P_m P_m^T  (N, N)

determine v_hack for any k, tau and subset of pairs, for every weighting of the samples, and so every projection and
permutation null, offline (`probe.analysis.statistics.run_gradients` reads them). Products are summed in float64; Gram
matrices are stored in float64 too, because singular values are square roots of their eigenvalues.

Directions of control arms do not all lie in that span. For the k directions V_m of each such arm the products
themselves are stored, with zero rows if a module keeps fewer than k:

    pairs_m = V_m P_m^T  (k, N) in `arm_NAME.safetensors`,   along_m = g_m V_m^T  (G, k) in the file of the step

The file of a step also has `weights/CONDITION` (G,): w_i, the loss's factor on an advantage. G samples, r coordinates
of a module, M modules.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from extraction.directions import Directions, PairGradients
from extraction.settings import Basis
from probe.records.run import gram_dir
from replay_pools.base.files import write_tensors


class GramRecorder:
    """Writer of `pairs.safetensors` and, each step, `step_NNN.safetensors`, in `gram/` (svd) or `gram/BASIS/`.

    The settings of `v_hack` and the machine epsilon of its `pairs` are stored too, so that offline draws repeat its
    extraction. `controls` are {arm: directions {module: (k, r)}} of this basis's arms with other directions.
    """

    def __init__(
        self,
        directory: Path,
        pairs: PairGradients,
        v_hack: Directions,
        controls: Mapping[str, Mapping[str, Tensor]] | None = None,
        *,
        basis: Basis = "svd",
    ) -> None:
        self._directory = directory / gram_dir(basis)
        self._modules = list(pairs.hack)
        self._pairs = pairs
        self._write(
            "pairs",
            {"pairs": pair_products(pairs), "held_out": torch.cat([pairs.held_out, pairs.held_out])},
            sizes=[rows.shape[1] for rows in pairs.hack.values()],
            extraction=extraction_settings(pairs, v_hack),
            flavours=pairs.metadata.get("flavours", []),  # only gradients of texts have any
            texts=pairs.metadata.get("texts", []),
        )
        self._controls: dict[str, dict[str, Tensor]] = {}
        for arm, vectors in (controls or {}).items():
            most = max(map(len, vectors.values()))
            padded = {m: F.pad(vectors[m].cpu().double(), (0, 0, 0, most - len(vectors[m]))) for m in self._modules}
            self._controls[arm] = padded
            self._write(f"arm_{arm}", {"pairs": torch.stack([V @ _rows(pairs, m).T for m, V in padded.items()])})

    def record(self, step: int, unit: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Write the statistics of one step from its unit gradients {module: (G, r)} and w_i {loss variant: (G,)}."""
        rows = {m: unit[m].detach().cpu().double() for m in self._modules}
        inner = torch.stack([rows[m] @ _rows(self._pairs, m).T for m in self._modules])
        samples = torch.stack([g @ g.T for g in rows.values()])
        tensors = {"inner": inner.float(), "samples": samples}
        tensors |= {f"weights/{condition}": w.cpu().double() for condition, w in weights.items()}
        for arm, directions in self._controls.items():
            tensors[f"along/{arm}"] = torch.stack([rows[m] @ V.T for m, V in directions.items()]).float()
        self._write(f"step_{step:03d}", tensors)

    def _write(self, name: str, tensors: Mapping[str, Tensor], **header: Any) -> None:
        write_tensors(self._directory / f"{name}.safetensors", tensors, {"modules": self._modules, **header})


def _rows(pairs: PairGradients, module: str) -> Tensor:
    """Return (N, r) float64 of one module; for all modules at once this would take twice the gradients' memory."""
    return torch.cat([pairs.hack[module], pairs.clean[module]]).cpu().double()


def pair_products(pairs: PairGradients) -> Tensor:
    """Return pairs_m of every module, (M, N, N) float64."""
    return torch.stack([rows @ rows.T for rows in (_rows(pairs, module) for module in pairs.hack)])


def extraction_settings(pairs: PairGradients, v_hack: Directions) -> dict[str, Any]:
    """Return the fields of `probe.analysis.statistics.geometry.Extraction`, to repeat the extraction offline."""
    eps = torch.finfo(next(iter(pairs.hack.values())).dtype).eps
    return {name: v_hack.metadata[name] for name in ("method", "k", "tau", "drop_bottom_frac")} | {"eps": eps}
