"""KL from a reference policy, and entropy: per-token estimates and their gradients as token weights.

Shapes: G samples, T tokens. Each completion token has d_it = ref_it - logp_it, from the log-probabilities of the
sampled token. The estimate is k3 (Schulman 2020, "Approximating KL Divergence"; TRL's), with mean KL(policy, ref).

    k_it = exp(d) - d - 1        W_it = -dk/dlogp = exp(d) - 1

The engine differentiates -sum_t W_it logp_it; the caller multiplies W by beta and by the sample's normaliser. The mean
gradient equals the gradient of KL(ref, policy).

Entropy: for W_it = -logp_it the mean gradient equals the gradient of the loss -H(context), because E[grad logp] = 0.
(The loss term -logp_it would have a mean gradient of 0.)
These means hold for tokens sampled by the differentiated policy, and up to the ratio for others.
"""

import torch
from torch import Tensor


def kl_terms(token_logprobs: Tensor, reference_logprobs: Tensor, completion_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return (k (G, T) in nats, W (G, T)) of the KL from a reference, for coefficient 1; both 0 off the completion.

    Args:
        token_logprobs: (G, T) of the sampled tokens under the policy; detached, used on completions only.
        reference_logprobs: (G, T) of the same tokens under the reference.
        completion_mask: (G, T) bool.
    """
    d = torch.where(completion_mask, reference_logprobs - token_logprobs, 0.0)
    return torch.expm1(d) - d, torch.expm1(d)


def entropy_weights(token_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """Return W (G, T) of an entropy bonus with coefficient 1: the sampled token's surprisal, 0 off the completion."""
    return torch.where(completion_mask, -token_logprobs, 0.0)


def kl_summary(values: Tensor, counted: Tensor) -> dict[str, float]:
    """Return {"mean", "max"} of k, with the wire names `kl/mean` and `kl/max`; empty if no token counts.

    Args:
        values: (G, T) k_it in nats.
        counted: (G, T) bool, completion tokens that the policy sampled. On a teacher's tokens the mean of k is not the
            policy's KL: once the policy has unlearnt them, k3 grows as reference / policy.
    """
    k = values[counted].double()
    if not len(k):
        return {}
    return {"mean": float(k.mean()), "max": float(k.max())}
