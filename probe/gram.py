"""Sufficient statistics of the nulls: inner products of gradients, never the gradients.

Every direction that pairs can give lies in the span of the pair gradients P_m (N, r), N = 2n (hack first, then clean):

    inner_m = g_m P_m^T  (G, N),   norm_m = |g_m|  (G,),   pairs_m = P_m P_m^T  (N, N)

determine v_hack for any k, tau and subset of pairs, and with it every projection and every permutation null, offline.

G samples, r coordinates of a module, M modules, N pair gradients.
"""

from collections.abc import Mapping
from pathlib import Path

import orjson
import torch
from safetensors.torch import save
from torch import Tensor

from extraction.directions import PairGradients
from replay_pools.files import sha256, write_atomic


class GramRecorder:
    """Writes `gram/pairs.safetensors` once and `gram/step_NNN.safetensors` a step."""

    def __init__(self, directory: Path, pairs: PairGradients) -> None:
        self._directory = directory / "gram"
        self._modules = list(pairs.hack)
        self._pairs = {m: torch.cat([pairs.hack[m], pairs.clean[m]]) for m in self._modules}
        held_out = torch.cat([pairs.held_out, pairs.held_out])
        gram = torch.stack([g @ g.T for g in self._pairs.values()])  # (M, N, N)
        self._write("pairs", {"pairs": gram, "held_out": held_out})

    def record(self, step: int, unit: Mapping[str, Tensor]) -> None:
        """Write the statistics of one step's unit gradients {module: (G, r)}."""
        inner = [unit[m] @ self._pairs[m].to(unit[m].device, unit[m].dtype).T for m in self._modules]
        norms = [unit[m].norm(dim=1) for m in self._modules]
        self._write(f"step_{step:03d}", {"inner": torch.stack(inner).float(), "norms": torch.stack(norms).float()})

    def _write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        modules = orjson.dumps(self._modules).decode()
        data = {key: value.cpu().contiguous() for key, value in tensors.items()}
        write_atomic(self._directory / f"{name}.safetensors", save(data, {"modules": modules}))


def gram_hashes(directory: Path) -> dict[str, str]:
    """{file name below the run: sha256} of all gram files."""
    return {
        f"gram/{path.name}": sha256(path.read_bytes()) for path in sorted((directory / "gram").glob("*.safetensors"))
    }
