"""Control directions: what a cosine with v_hack must be compared with.

- Haar: uniformly random orthonormal directions, as many a module as v_hack has.
- permuted: the same extraction after permuting the labels ACROSS the 2n pair gradients. (Swapping hack and clean within
  a pair only changes signs of rows of D, which leaves its right singular subspace identical: that control is void.)

G samples, r coordinates of a module, k directions, M modules, n pairs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from extraction.directions import Directions, PairGradients, extract_directions


def haar_directions(like: Directions, *, seed: int) -> Directions:
    """Haar-random directions with the numbers and sizes of `like`: QR of a Gaussian, with R's diagonal positive."""
    generator = torch.Generator().manual_seed(seed)
    vectors = {}
    for module, v in like.vectors.items():
        k, r = v.shape
        q, upper = torch.linalg.qr(torch.randn(r, k, generator=generator, dtype=torch.float64))
        vectors[module] = (q * torch.sign(upper.diagonal())).T.float().contiguous()
    ones = {module: torch.ones(len(v)) for module, v in vectors.items()}
    votes = {module: torch.zeros(len(v), dtype=torch.long) for module, v in vectors.items()}
    metadata = {"fingerprint": like.metadata.get("fingerprint"), "control": "haar", "seed": seed}
    return Directions(vectors=vectors, singular_values=ones, votes=votes, metadata=metadata)


def permuted_differences(pairs: PairGradients, *, seed: int) -> dict[str, Tensor]:
    """{module: (n, r)}: differences of random couples among the 2n gradients of the extraction pairs."""
    rows = ~pairs.held_out
    n = int(rows.sum())
    order = torch.randperm(2 * n, generator=torch.Generator().manual_seed(seed))
    pooled = {module: torch.cat([pairs.hack[module][rows], pairs.clean[module][rows]]) for module in pairs.hack}
    return {module: both[order[:n]] - both[order[n:]] for module, both in pooled.items()}


def permuted_directions(
    pairs: PairGradients, *, k: int, tau: float, drop_bottom_frac: float, seed: int, metadata: Mapping[str, object]
) -> Directions:
    """The extraction of `extract_directions` on `permuted_differences`."""
    return extract_directions(
        permuted_differences(pairs, seed=seed),
        k=k,
        tau=tau,
        drop_bottom_frac=drop_bottom_frac,
        metadata={**metadata, "control": "permuted", "seed": seed},
    )
