"""Divergence from a reference policy and entropy: per-token estimates, and their gradients as token weights.

Shapes: G samples, T tokens, N completion tokens of the batch, d the hidden size, v the vocabulary. Per completion
token d_it = ref_it - logp_it, with the log-probabilities of the token that was sampled (Schulman 2020,
"Approximating KL Divergence"). The engine differentiates -sum_t W_it logp_it: a term +k_it of the loss has
W_it = -dk/dlogp = dk/dd, exactly, and the caller multiplies it by beta and by the sample's normaliser.

          k_it             W_it         mean of k              mean gradient, on-policy
    k1    -d               -1           KL(policy, ref)        0: it measures and does not penalise
    k2    d^2 / 2          d            second order           grad KL(policy, ref)
    k3    exp(d) - d - 1   exp(d) - 1   KL(policy, ref)        grad KL(ref, policy); TRL's
    full  sum_v p log p/q  none         exact, per context     grad KL(policy, ref), per context

`full` depends on the whole distribution, not on the log-probability of the sampled token alone, so no token weight
expresses it: `full_kl` is a separate differentiable term (or, without gradient, a measurement). Inside the engine's
pass it adds beta w_i sum_t full_kl_it to the loss, and per-sample gradients stay exact because sample i's term depends
on sample i's tokens only.

Entropy, likewise: with W_it = -logp_it the mean gradient on-policy is that of the loss -H(context), because
E[grad logp] = 0. (-logp_it itself as a loss term has mean gradient 0.)
"On-policy": tokens sampled by the policy that is differentiated; otherwise these means hold up to the ratio.

To add an estimator of the sampled token's log-probability: its word in `KlEstimator` of `probe.settings.words`, and a
row (k, dk/dd) of `_TOKEN_ESTIMATORS`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from probe.settings.words import KlEstimator

# estimator -> (k, dk/dd), both as functions of d
_TOKEN_ESTIMATORS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "k1": (torch.neg, lambda d: -torch.ones_like(d)),
    "k2": (lambda d: d.square() / 2, lambda d: d),
    "k3": (lambda d: torch.expm1(d) - d, torch.expm1),
}
KL_ESTIMATORS = (*_TOKEN_ESTIMATORS, "full")


def kl_terms(
    token_logprobs: Tensor, reference_logprobs: Tensor, completion_mask: Tensor, *, estimator: KlEstimator
) -> tuple[Tensor, Tensor]:
    """Per-token estimates of the divergence from the reference and the engine weights of their gradients.

    Args:
        token_logprobs: (G, T) of the sampled tokens under the policy; detached, read on completions only.
        reference_logprobs: (G, T) of the same tokens under the reference.
        completion_mask: (G, T) bool.
        estimator: k1, k2 or k3; `full` is no function of these log-probabilities.

    Returns:
        (G, T) k_it in nats and W_it, both 0 off the completion.
    """
    value, derivative = _TOKEN_ESTIMATORS[estimator]
    d = torch.where(completion_mask, reference_logprobs - token_logprobs, 0.0)
    return torch.where(completion_mask, value(d), 0.0), torch.where(completion_mask, derivative(d), 0.0)


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


def full_kl(
    head: Callable[[Tensor], Tensor], hidden: Tensor, reference_hidden: Tensor, *, chunk_size: int = 512
) -> Tensor:
    """KL(policy, reference) over the vocabulary in every context, (N,) nats; differentiable in `hidden`.

    Args:
        head: hidden states to logits, (n, d) -> (n, v): one head for both, because adapters leave it alone.
        hidden: (N, d) states of the policy that predict the completion tokens.
        reference_hidden: (N, d) states of the reference in the same contexts; no gradient flows into them.
        chunk_size: contexts at a time: (chunk_size, v) is the largest tensor, forward and backward.
    """
    values = []
    for chunk in zip(hidden.split(chunk_size), reference_hidden.split(chunk_size), strict=True):
        # The backward computes the logits of a chunk again.
        values.append(checkpoint(_divergence, head, *chunk, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(values)


def _divergence(head: Callable[[Tensor], Tensor], hidden: Tensor, reference_hidden: Tensor) -> Tensor:
    with torch.no_grad():
        reference = _log_softmax(head(reference_hidden))
    policy = _log_softmax(head(hidden))
    return F.kl_div(reference, policy, reduction="none", log_target=True).sum(1)


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(logits, dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))
