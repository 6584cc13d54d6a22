"""Output subspaces of the arms `trusted` (TDGA, arXiv 2605.25189): where a few supervised steps move a LoRA.

    clean     supervised steps on the pairs' clean completions
    hacks     the same number of steps on their hacks: a control
    haar      uniform subspaces with the weights of clean: a control

The update of a module is B A = U S V^T; the steps are undone. A gradient G (d_out, rank) of B becomes
U_K diag(a) U_K^T G, with a_i = s_i / (s_1 + ... + s_K).
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from extraction.adapters.delta_s import DeltaSLayer
from extraction.adapters.frames import Frames
from extraction.adapters.trained import Trained, lora_factors
from extraction.gradients import per_sample_gradients
from extraction.library import pair_batch
from extraction.pairs import Pair
from replay_pools.policy.load import Policy

# Of the supervised steps: their number, rate, cap on the gradient norm, and completions a step.
STEPS, LR, MAX_NORM, BATCH = 20, 1e-3, 1.0, 8


def subspaces(
    kind: Literal["clean", "hacks"], policy: Policy, frames: Frames, pairs: Sequence[Pair], rank: int
) -> dict[str, Tensor]:
    """Return W = diag(sqrt a) U_K^T of every module, {module: (K, d_out)}; zeros for a module that did not move.

    Args:
        kind: the sides of the pairs to learn from.
        policy: without an adapter that is trained; its weights are the same afterwards.
        frames: its LoRA frames.
        rank: K.
    """
    batch, first = pair_batch(policy, pairs), 0 if kind == "hacks" else len(pairs)
    trained = Trained(policy.model, frames)
    try:
        optimizer = torch.optim.AdamW(trained.parameters(), lr=LR, weight_decay=0.0)
        for step in range(STEPS):
            start = step * BATCH % len(pairs)
            rows = batch.rows(first + start, first + min(start + BATCH, len(pairs)))
            gradients = per_sample_gradients(trained.model, {"lora": trained.frames()}, rows).gradients["lora"]
            tokens = rows.completion_mask.sum()
            trained.set_gradients({module: gradients[module].sum(0) / tokens for module in gradients})
            torch.nn.utils.clip_grad_norm_(trained.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {module: _leading(*lora_factors(layer), rank) for module, layer in trained.layers.items()}
    finally:
        trained.remove()


def uniform(subspaces: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Replace every subspace {module: (K, d_out)} by a uniform one with the same weights."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(W: Tensor) -> Tensor:
        Q, _ = torch.linalg.qr(torch.randn(W.shape[1], len(W), generator=generator, dtype=torch.float64))
        return W.norm(dim=1, keepdim=True) * Q.T.to(W)

    return {module: drawn(W) for module, W in subspaces.items()}


@torch.no_grad()
def moved_directions(trained: Trained, k: int) -> dict[str, Tensor]:
    """Return the leading k output directions in which each module's weight has moved, {module: (k, d_out)}.

    Left singular vectors of the change of W, float32 on the CPU; zeros for a module that has not moved.
    """
    directions = {}
    for module, layer in trained.layers.items():
        if isinstance(layer, DeltaSLayer):
            delta = trained.trainable(module)
            largest = delta.abs().topk(min(k, len(delta))).indices
            rows = layer.frames()[0][:, largest].T * (delta.any() > 0)
        else:
            W = _leading(*lora_factors(layer), k)
            norms = W.norm(dim=1, keepdim=True)
            rows = torch.where(norms > 0, W / norms, 0.0)
        directions[module] = rows.float().cpu().contiguous()
    return directions


def mean_cca(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float | None:
    """Return the mean canonical correlation of orthonormal rows {module: (k, d_out)}; None if nothing moved."""
    means = [torch.linalg.svdvals(x @ b[module].T).mean() for module, x in a.items() if x.any() and b[module].any()]
    return float(torch.stack(means).mean()) if means else None


@torch.no_grad()
def _leading(A: Tensor, B: Tensor, k: int) -> Tensor:
    """Return diag(sqrt a) U_K^T (K, d_out) of B A, through the triangular factor of A."""
    factor = torch.linalg.qr(A.double().T)[1].T  # A = factor Q, Q with orthonormal rows
    U, S, _ = torch.linalg.svd(B.double() @ factor, full_matrices=False)
    kept = S[: min(k, len(S))]
    share = kept / kept.sum() if kept.sum() > 0 else torch.zeros_like(kept)
    return (share.sqrt()[:, None] * U[:, : len(kept)].T).to(B.dtype)
