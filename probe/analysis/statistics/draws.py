"""Which pair gradients count as hack and which as clean, draw by draw: the label nulls as pairs of index arrays.

Rows 0 .. n-1 of the pair gradients are the hack completions, n .. 2n-1 the clean ones of the same pairs. Every
function returns (first, second), each (B, p): the differences of draw b are P[first[b]] - P[second[b]]. Held-out pairs
take part in none.
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]


def true_labels(held_out: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """The labels as they are: one draw."""
    hack = np.flatnonzero(~held_out)[None, :]
    return hack, hack + len(held_out)


def label_permutations(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N2: labels permuted across the 2n gradients, hack and clean and pairs alike.

    Exact where the gradients are exchangeable. Where the completions of a pair share their prompt, the differences of
    a permuted draw contain prompts as well, a noise that the true differences have not: `pair_swaps` is exact there.
    """
    hack, clean = true_labels(held_out)
    both = np.concatenate([hack[0], clean[0]])
    shuffled = rng.permuted(np.tile(both, (num_draws, 1)), axis=1)
    return shuffled[:, : hack.shape[1]], shuffled[:, hack.shape[1] :]


def pair_swaps(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Hack and clean swapped within random pairs: exact for the direction of the MEAN difference.

    (The singular vectors of D do not change when rows of D change sign, so that this null is void for them.)
    """
    hack, clean = true_labels(held_out)
    swap = rng.random((num_draws, hack.shape[1])) < 0.5
    return np.where(swap, clean, hack), np.where(swap, hack, clean)


def placebo_couples(held_out: NDArray[np.bool_], num_draws: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """N3: clean against clean of different pairs, in random couples; every gradient is used at most once."""
    _, clean = true_labels(held_out)
    couples = clean.shape[1] // 2
    shuffled = rng.permuted(np.tile(clean[0], (num_draws, 1)), axis=1)
    return shuffled[:, :couples], shuffled[:, couples : 2 * couples]
