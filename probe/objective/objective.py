"""The loss of a step as one frozen row of settings: advantages, token credit, normaliser, ratio, KL, entropy.

    L = sum_i w_i sum_t ( -A_it logp_it  +  beta k_it  -  entropy_coef H_it )          A_it = A_i c_it

A_i from `probe.objective.advantages`, c_it from `probe.objective.credit` (1 without token credit), w_i from
`extraction.loss`, k_it and H_it from `probe.objective.kl`; with recorded log-probabilities the first term is the
clipped surrogate of `probe.objective.ratio`. G samples in a group, T tokens; a step of P groups has P G samples, and
baselines within each group.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from extraction.loss import loss_weights
from probe.objective.advantages import advantage_diagnostics, advantages, as_groups, group_std
from probe.objective.credit import token_credit
from probe.objective.kl import KL_ESTIMATORS
from probe.objective.ratio import surrogate
from probe.settings.loss import LossSettings
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(LossSettings):
    """The loss that the settings mean (METHOD: names and formulas are TRL's)."""

    def __post_init__(self) -> None:
        """Settings that do not fit together are refused at once; trying them is the check."""
        rewards = torch.tensor([0.0, 1.0])
        tokens = torch.ones(2, 1)
        if self.beta and self.reference is None:
            raise InputError("objective beta", expected="a reference: base, ema or recorded", found="none")
        if self.kl_estimator not in KL_ESTIMATORS:
            found = repr(self.kl_estimator)
            raise InputError("objective kl_estimator", expected=f"one of {', '.join(KL_ESTIMATORS)}", found=found)
        if self.beta < 0 or (self.loss_type == "nll" and self.has_token_terms):
            expected = "beta >= 0, and neither ratio, KL nor entropy with loss_type nll"
            raise InputError("objective", expected=expected, found=f"beta {self.beta}, {self.loss_type}")
        if self.kl_estimator == "full" and self.reference == "recorded":
            expected = "base or ema with kl_estimator full, which needs whole distributions"
            raise InputError("objective reference", expected=expected, found="recorded")
        try:
            self.advantages(rewards)
            self.credit(-tokens, tokens.bool(), tokens.bool(), rewards)
            surrogate(-tokens, -tokens, tokens.bool(), rewards, **self.ratio_options())
        except ValueError as error:
            raise InputError("objective", expected="settings that fit together", found=str(error)) from error

    def ratio_options(self) -> dict[str, Any]:
        """The keywords of `probe.objective.ratio.surrogate`."""
        return {
            "level": self.importance_sampling_level,
            "epsilon": self.epsilon,
            "epsilon_high": self.epsilon_high,
            "delta": self.delta,
        }

    def advantages(self, rewards: Tensor) -> Tensor:
        """(P G,) A_i of rewards (P, G), or (G,) of one group's; ones for `nll`, which has none.

        Not capped where there is token credit: A_it is.
        """
        if self.loss_type == "nll":
            return torch.ones_like(rewards.flatten())
        own = [
            advantages(
                group,
                estimator=self.advantage_estimator,
                scale=self.scale_rewards,
                clip=None if self.has_credit else self.advantage_clip,
                min_group_std=self.min_group_std,
                eps=self.advantage_eps,
                batch_std=group_std(rewards.flatten()),
            )
            for group in as_groups(rewards)
        ]
        return torch.cat(own)

    def credit(self, token_logprobs: Tensor, completion_mask: Tensor, planning: Tensor, A: Tensor) -> Tensor:
        """(G, T) factors c_it of the advantages A (G,), before the cap."""
        return token_credit(
            token_logprobs,
            completion_mask,
            planning,
            A,
            gtpo_beta=self.gtpo_beta,
            sepa_lambda=self.sepa_lambda,
            hicra_alpha=self.hicra_alpha,
            top_entropy_quantile=self.top_entropy_quantile,
        )

    def diagnostics(
        self, rewards: Tensor, reward_range: float, token_advantages: Tensor | None = None
    ) -> dict[str, float | bool | None]:
        """The wire diagnostics of the advantages; of `token_advantages` (N,), before the cap, where there is credit."""
        return advantage_diagnostics(
            rewards,
            estimator=self.advantage_estimator,
            scale=self.scale_rewards,
            clip=self.advantage_clip,
            min_group_std=self.min_group_std,
            eps=self.advantage_eps,
            batch_std=group_std(rewards.flatten()),
            reward_range=reward_range,
            token_advantages=token_advantages,
        )

    def weights(self, lengths: Tensor) -> Tensor:
        """(P G,) normalisers w_i: those of the mean loss over all samples (tokens) of the step."""
        return loss_weights(
            lengths,
            loss_type=self.loss_type,
            max_completion_length=self.max_completion_length,
            global_tokens=int(lengths.sum()),
        )
