"""The largest advantage that any group can reach: a cap at or above it is vacuous. No torch: plans ask before a run."""

import math

from probe.settings.words import ADVANTAGE_EPS, Estimator, Scale


def advantage_bound(
    num_samples: int,
    reward_range: float,
    *,
    estimator: Estimator = "grpo",
    scale: Scale = "none",
    eps: float = ADVANTAGE_EPS,
    batch_std: float | None = None,
) -> float:
    """The largest |A| that any group can reach; a cap at or above it does nothing.

        centred         R (G - 1) / G          one sample at one end of the range, the others at the other end
        rloo            R                      the centred bound times G / (G - 1)
        scale group     (G - 1) / sqrt(G)      Samuelson's inequality, whatever the range; rloo: sqrt(G)
        scale batch     the unscaled bound / (batch_std + eps)
        maxrl           G - 1                  r_i <= G m because the other rewards are >= 0

    Args:
        num_samples: G.
        reward_range: R, largest minus smallest reward.
        estimator, scale, eps, batch_std: as `probe.objective.advantages.advantages`.
    """
    if num_samples < 2:
        return 0.0
    if estimator == "maxrl":
        return float(num_samples - 1)
    bound = (num_samples - 1) / (math.sqrt(num_samples) if scale == "group" else num_samples)
    if estimator == "rloo":
        bound *= num_samples / (num_samples - 1)
    if scale == "group":
        return bound
    divisor = 1.0
    if scale == "batch":
        divisor = (batch_std or 0.0) + eps
    return bound * reward_range / divisor
