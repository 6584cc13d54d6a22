"""Divergence from a reference policy and entropy: per-token estimates, and their gradients as token weights.

Shapes: G samples, T tokens. Per completion token d_it = ref_it - logp_it, with the log-probabilities of the token that
was sampled. The estimate is k3 (Schulman 2020, "Approximating KL Divergence"; TRL's): its mean is KL(policy, ref).

    k_it = exp(d) - d - 1        W_it = -dk/dlogp = exp(d) - 1

The engine differentiates -sum_t W_it logp_it; the caller multiplies W by beta and by the sample's normaliser. The mean
gradient is that of KL(ref, policy).

Entropy, likewise: with W_it = -logp_it the mean gradient is that of the loss -H(context), because E[grad logp] = 0.
(-logp_it itself as a loss term has mean gradient 0.)
These means are over tokens sampled by the policy that is differentiated; otherwise they hold up to the ratio.
"""

import torch
from torch import Tensor


def kl_terms(token_logprobs: Tensor, reference_logprobs: Tensor, completion_mask: Tensor) -> tuple[Tensor, Tensor]:
    """(k (G, T) in nats, W (G, T)) of the divergence from a reference, for coefficient 1; both 0 off the completion.

    Args:
        token_logprobs: (G, T) of the sampled tokens under the policy; detached, read on completions only.
        reference_logprobs: (G, T) of the same tokens under the reference.
        completion_mask: (G, T) bool.
    """
    d = torch.where(completion_mask, reference_logprobs - token_logprobs, 0.0)
    return torch.expm1(d) - d, torch.expm1(d)


def entropy_weights(token_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """W (G, T) of an entropy bonus with coefficient 1: the surprisal of the sampled token, 0 off the completion."""
    return torch.where(completion_mask, -token_logprobs, 0.0)


def kl_summary(values: Tensor, counted: Tensor) -> dict[str, float]:
    """{"mean", "max"} of k (G, T): wire names `kl/mean`, `kl/max`. Empty where no token counts.

    Args:
        values: (G, T) k_it in nats.
        counted: (G, T) bool, the completion tokens that the policy sampled. On those of a teacher the mean of k is no
            KL of the policy: where a policy has unlearnt what the teacher writes, k3 grows as (reference / policy).
    """
    k = values[counted].double()
    if not len(k):
        return {}
    return {"mean": float(k.mean()), "max": float(k.max())}
