"""Advantages of a step's groups, and their diagnostics: spread, bound, and how often the cap acts.

Shapes: P groups of G samples. r are the rewards of a group, m their mean, s their standard deviation (ddof = 1).

    grpo    A_i = r_i - m                           (Shao et al. 2024, arXiv 2402.03300, before scaling)
    maxrl   A_i = (r_i - m) / (m + 1e-6)            (maximum-likelihood RL; rewards >= 0)
    reinforce   A_i = r_i                           (Williams 1992, no baseline: rewards of 0 and 1 fine-tune on the 1s)

    scale "group": A / (s + eps);  "batch": A / (batch_std + eps);  "none": A (Liu et al. 2025, arXiv 2503.20783)

With strata, each part of a group counts as a group, with separate m, s and G.

A group without reward variance stays in the batch, with advantages of exactly zero unless there is no baseline. A
reward of nan is unknown (its rollout has no label): its advantage is exactly zero, and m, s and G come from the known
rewards.

To add an estimator, add its word to `Estimator` in `probe.settings.words`, its row to `ESTIMATORS` and its largest
advantage to `advantage_bound`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from probe.settings.loss import LossSettings
from probe.settings.words import Estimator

MAXRL_EPS = 1e-6


def _centred(rewards: Tensor) -> Tensor:
    return rewards - rewards.mean()


def _maxrl(rewards: Tensor) -> Tensor:
    if bool((rewards < 0).any()):
        raise ValueError(f"maxrl divides by the mean reward and needs rewards >= 0, found {float(rewards.min())}")
    return _centred(rewards) / (rewards.mean() + MAXRL_EPS)


# Rewards (G,) to advantages (G,), before scale and cap.
ESTIMATORS: dict[Estimator, Callable[[Tensor], Tensor]] = {
    "grpo": _centred,
    "maxrl": _maxrl,
    "reinforce": lambda rewards: rewards,
}


def advantages(rewards: Tensor, loss: LossSettings, *, batch_std: float = math.nan) -> Tensor:
    """Compute the advantages of one group, before the cap; all zero if s is below `min_group_std`.

    Args:
        rewards: (G,) floating-point rewards, nan if unknown.
        loss: estimator, scale and their parameters.
        batch_std: standard deviation of all rewards of the batch, for scale "batch".

    Returns:
        (G,) in the dtype of `rewards`.

    Raises:
        ValueError: a reward is infinite.
    """
    if bool(rewards.isinf().any()):
        raise ValueError(f"rewards: expected finite numbers or nan, found {rewards}")
    known = ~rewards.isnan()
    result = torch.zeros_like(rewards)
    std = group_std(rewards)
    # Rounding of the mean would leave tiny advantages here, and dividing by std + eps would magnify them.
    is_flat = std == 0.0 and loss.advantage_estimator != "reinforce"
    if is_flat or 0.0 < std < loss.min_group_std:
        return result
    values = ESTIMATORS[loss.advantage_estimator](rewards[known])
    if loss.scale_rewards != "none":
        values = values / ((std if loss.scale_rewards == "group" else batch_std) + loss.advantage_eps)
    result[known] = values
    return result


def sample_advantages(loss: LossSettings, rewards: Tensor, strata: Tensor | None = None) -> Tensor:
    """Compute A_i, (P G,), of rewards (P, G) or (G,); ones for `nll`, which has no advantages.

    With token credit they are not capped, because the cap then acts on A_it.

    Args:
        strata: the stratum number of each sample, in the shape of the rewards.
    """
    result = torch.ones_like(rewards.flatten())
    if loss.loss_type == "nll":
        return result
    batch_std = group_std(rewards.flatten())
    for part in _parts(rewards, strata):
        result[part] = advantages(rewards.flatten()[part], loss, batch_std=batch_std)
    clip = None if loss.has_credit else loss.advantage_clip
    return result if clip is None else result.clamp(-clip, clip)


def group_std(rewards: Tensor) -> float:
    """Return the standard deviation (ddof = 1) of the known rewards; exactly 0, without rounding, for equal ones."""
    rewards = rewards[~rewards.isnan()]
    if len(rewards) < 2 or bool(rewards.max() == rewards.min()):
        return 0.0
    return float(rewards.std(correction=1))


def advantage_bound(num_samples: int, reward_range: float, loss: LossSettings, *, batch_std: float = 0.0) -> float:
    """Return the largest |A| that any group can reach; a cap at or above it does nothing.

        centred         R (G - 1) / G          one sample at one end of the range, the others at the other end
        scale group     (G - 1) / sqrt(G)      Samuelson's inequality, whatever the range
        scale batch     the unscaled bound / (batch_std + eps)
        maxrl           G - 1                  r_i <= G m because the other rewards are >= 0
        reinforce       R                      the range contains 0

    Args:
        num_samples: G.
        reward_range: R, largest minus smallest reward.
        loss, batch_std: as in `advantages`.
    """
    if loss.advantage_estimator == "reinforce":
        return reward_range
    if num_samples < 2:
        return 0.0
    if loss.advantage_estimator == "maxrl":
        return float(num_samples - 1)
    if loss.scale_rewards == "group":
        return (num_samples - 1) / math.sqrt(num_samples)
    bound = (num_samples - 1) / num_samples * reward_range
    return bound / (batch_std + loss.advantage_eps) if loss.scale_rewards == "batch" else bound


def advantage_diagnostics(
    loss: LossSettings,
    rewards: Tensor,
    reward_range: float,
    *,
    token_advantages: Tensor | None = None,
    strata: Tensor | None = None,
) -> dict[str, float | bool | None]:
    """Return statistics of a step's advantages and their cap, under their wire names.

    Args:
        loss: estimator, scale, cap and their parameters.
        rewards: (G,) of one group, or (P, G) of the P groups of a step; nan if unknown.
        reward_range: R, largest minus smallest reward that the loss can see.
        token_advantages: (N,) A_it of all completion tokens before the cap, where token credit makes them differ within
            a sample. The cap acts on them; `abs_max` and the cap's statistics are of them. They have no bound, so no
            cap on them is vacuous. Mean and std stay those of the samples' A_i.
        strata: as `rewards`, the number of each sample's stratum; the groups are then the strata.

    Returns:
        `advantage/{mean,std}` of the samples' advantages; `advantage/abs_max` after the cap; `advantage/bound` (None:
        unbounded); `adv_cap_fraction` = capped / nonzero; `adv_cap_magnitude` = mean |A| before the cap of the capped
        ones (None: none capped); `adv_cap_vacuous` = the cap is not below its bound and can never bind (None: no cap);
        `frac_reward_zero_std` and `skip_rate` are shares of the groups (skipped = below `min_group_std`, zero variance
        apart).
    """
    groups = [rewards.flatten()[part] for part in _parts(rewards, strata)]
    clip, batch_std = loss.advantage_clip, group_std(rewards.flatten())
    of_samples, bound = torch.cat([advantages(group, loss, batch_std=batch_std) for group in groups]), None
    before = of_samples if token_advantages is None else token_advantages
    if token_advantages is None:
        bound = advantage_bound(max(map(len, groups)), reward_range, loss, batch_std=batch_std)
    after = before if clip is None else before.clamp(-clip, clip)
    magnitude = before.abs()
    capped = magnitude > (math.inf if clip is None else clip)
    num_nonzero = int((magnitude > 0).sum())
    stds = [group_std(group) for group in groups]
    return {
        "advantage/mean": float((after if token_advantages is None else of_samples).mean()),
        "advantage/std": group_std(after if token_advantages is None else of_samples),
        "advantage/abs_max": float(after.abs().max()),
        "advantage/bound": bound,
        "adv_cap_fraction": int(capped.sum()) / num_nonzero if num_nonzero else 0.0,
        "adv_cap_magnitude": float(magnitude[capped].mean()) if bool(capped.any()) else None,
        "adv_cap_vacuous": None if clip is None else bound is not None and clip >= bound,
        "frac_reward_zero_std": sum(std == 0.0 for std in stds) / len(stds),
        "skip_rate": sum(0.0 < std < loss.min_group_std for std in stds) / len(stds),
    }


def reward_stats(rewards: Tensor) -> dict[str, float]:
    """Return mean, deviation (ddof = 1) and spread within a group, means over the groups, under their wire names.

    Args:
        rewards: of one group (G,) or a step's groups (P, G), nan if unknown; at least one is known.
    """
    groups = rewards.reshape(-1, rewards.shape[-1])
    # Groups without a known reward do not count.
    known = [group[~group.isnan()] for group in groups if not bool(group.isnan().all())]
    return {
        "reward_mean": float(rewards[~rewards.isnan()].mean()),
        "reward_std": sum(map(group_std, known)) / len(known),
        "reward_spread": sum(float(group.max() - group.min()) for group in known) / len(known),
    }


def _parts(rewards: Tensor, strata: Tensor | None) -> list[Tensor]:
    """Return the places, in the flattened rewards, of the samples of each group or stratum."""
    places = torch.arange(rewards.numel(), device=rewards.device).reshape(-1, rewards.shape[-1])
    if strata is None:
        return [*places]
    parts = []
    for row, labels in zip(places, strata.reshape(places.shape), strict=True):
        parts += [row[labels == stratum] for stratum in labels.unique()]
    return parts
