"""Token attribution: the cosine of a sample as a sum of shares, one for every position of its rollout.

A module's gradient is a sum over positions t of products of what the module read at t and what came back to its output
at t (extraction.adapters), so that with the unit vectors u_m of M modules

    cos_i = sum_t s_it,    s_it = sum_m <u_m, product_mt> / (sqrt(M) norm(g_i))

s_it belongs to the position at which the product arises: where token t is READ and token t + 1 predicted. It is not
the effect of the loss of one token: attention carries the losses of all later completion tokens back to t, which is why
prompt tokens have shares, and the last token, which predicts nothing, has none. Nor is it what a rollout without token
t would give. A share can be larger than the cosine itself, since shares of both signs add up to it.

G samples, T tokens, r coordinates of a module, k directions, M modules with k > 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from extraction.words import Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The directions of an arm as ONE unit vector over all modules: cos = <axis, g> / norm(g).

    Each module's unit vector is weighted so that this cosine is the global one of `probe.step.projection`.
    """

    basis: Basis
    vectors: dict[str, Tensor]  # {module: (r,)} of the modules that keep a direction


def axis(basis: Basis, directions: Mapping[str, Tensor]) -> Axis:
    """The axis of directions {module: (k, r)}: sum_i V_i / sqrt(k M) in each of the M modules with k > 0."""
    kept = {module: V for module, V in directions.items() if len(V)}
    return Axis(basis=basis, vectors={module: V.sum(0) / math.sqrt(len(V) * len(kept)) for module, V in kept.items()})


def token_shares(token_dots: Tensor, norms: Tensor) -> Tensor:
    """s_it (G, T), float64 on the CPU; NaN in the rows of samples without a gradient.

    Args:
        token_dots: (G, T) <axis, product_t>.
        norms: (G,) of the gradients that the products add up to.
    """
    norms = norms.double().cpu()
    return token_dots.cpu() / torch.where(norms > 0, norms, torch.nan)[:, None]
