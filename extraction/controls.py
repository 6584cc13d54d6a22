"""Controls of v_hack: Haar, permuted, flipped and placebo directions.

A cosine with v_hack means something only when compared with the same cosine along controls:

- Haar: uniformly random orthonormal directions, the same number in each module.
- permuted: the same extraction after permuting the labels ACROSS the 2n pair gradients.
- flipped: the same extraction after swapping hack and clean WITHIN random pairs: the subspace stays and the sign of
  each direction is left to chance.
- placebo: the ordinary extraction from clean-versus-clean pairs (`extraction.pairs`).

To add a control: a function here that returns `Directions`, and a branch in `extraction.library.DirectionLibrary.get`.

Shapes: r coordinates of a module, k directions, n pairs.
"""

import torch
from torch import Tensor

from extraction.directions import Directions, PairGradients


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
