"""Token credit: the distribution of a sample's advantage over its completion tokens. Off by default.

Shapes: G samples, T tokens. A_i is the advantage of sample i and h_it its surprisal at token t. A rule gives factors
c_it, 0 off the completion, with token advantages A_it = A_i c_it. Planning tokens belong to phrases such as
"let me think" (`planning_tokens`); all others are execution tokens.

    h_it = min(-logp_it, 50)                                              nats
    SEPA     h_it <- lambda mean_exec(h_i) + (1 - lambda) h_it            on execution tokens
    GTPO     c_it  = max(0, 1 + beta (h_it / mean(h_i) - 1))              (Tan et al. 2025, arXiv 2508.04349)
    HICRA    A_it <- A_it + alpha |A_it|: c_it <- c_it (1 + alpha sign A_i)  on planning tokens (arXiv 2509.03646)

The rules apply in this order unless their parameter is neutral; the advantage cap comes last and acts on A_it.
GTPO is simplified. The paper weights tokens by the entropy of the whole distribution; here the weight is the surprisal
of the sampled token, which has that entropy as its mean and needs no [tokens, vocabulary] pass. The paper compares
samples at the same t and inverts the entropy for A_i < 0; here the mean is over the same completion, for both signs.

To add a rule, add its function here, its factor to `token_credit`, and its parameter (with a neutral default) to
`probe.settings.loss.LossSettings` and its `has_credit`.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from probe.settings.loss import LossSettings

MAX_SURPRISAL = 50.0  # nats; a token of probability 0 must not take all the credit of its sample


def surprisal(token_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """Return h (G, T) in nats, capped at MAX_SURPRISAL, 0 off the completion."""
    return torch.where(completion_mask, (-token_logprobs).clamp(max=MAX_SURPRISAL), 0.0)


def sepa(h: Tensor, execution: Tensor, *, strength: float) -> Tensor:
    """Pull h (G, T) of each sample's execution tokens to their mean by `strength` (lambda) in [0, 1]."""
    return torch.where(execution, strength * _row_means(h, execution) + (1 - strength) * h, h)


def gtpo(h: Tensor, completion_mask: Tensor, *, beta: float) -> Tensor:
    """Return factors (G, T) >= 0; before the floor at 0 they average to 1 over each completion."""
    means = _row_means(h, completion_mask)
    # The inner where() avoids 0 / 0 for a completion without surprisal.
    relative = torch.where(means > 0, h / torch.where(means > 0, means, 1.0), 1.0)
    return torch.relu(1 + beta * (relative - 1)) * completion_mask


def hicra(planning: Tensor, advantages: Tensor, *, alpha: float) -> Tensor:
    """Return factors (G, T): 1 + alpha sign(A_i) on planning tokens, 1 elsewhere; rewarded planning counts more."""
    return 1 + alpha * torch.sign(advantages)[:, None] * planning


def token_credit(
    token_logprobs: Tensor, completion_mask: Tensor, planning: Tensor, advantages: Tensor, loss: LossSettings
) -> Tensor:
    """Compute the factors c of A_it = A_i c_it by the module's equations; 1 on completions for neutral parameters.

    Args:
        token_logprobs: (G, T) log-probabilities of the completion tokens under the policy.
        completion_mask: (G, T) bool.
        planning: (G, T) bool, used on completion tokens only.
        advantages: (G,) A_i, not capped.
        loss: beta, lambda and alpha of the equations; the defaults are neutral.

    Returns:
        (G, T) in the dtype of `advantages`.
    """
    h = surprisal(token_logprobs.to(advantages.dtype), completion_mask)
    planning = planning & completion_mask
    pooled = sepa(h, completion_mask & ~planning, strength=loss.sepa_lambda)
    return gtpo(pooled, completion_mask, beta=loss.gtpo_beta) * hicra(planning, advantages, alpha=loss.hicra_alpha)


def cap_credit(credit: Tensor, advantages: Tensor, *, clip: float) -> Tensor:
    """Limit the factors (G, T) so that A_it = A_i c_it lies in [-clip, clip]; samples with A_i = 0 keep theirs."""
    limit = clip / advantages.abs()[:, None]
    return credit.clamp(-limit, limit)


def credit_diagnostics(token_logprobs: Tensor, counted: Tensor, planning: Tensor) -> tuple[float, float | None]:
    """Return (share of planning tokens, variance of h over execution tokens, ddof = 1; None below two of them).

    Compare the variance only between steps with the same share, because it is over different tokens otherwise.

    Args:
        token_logprobs, planning: (G, T).
        counted: (G, T) bool, completion tokens that the policy sampled; a teacher's tokens do not describe the policy.
    """
    planning = planning & counted
    h = surprisal(token_logprobs.double(), counted)[counted & ~planning]
    variance = float(h.var(correction=1)) if len(h) > 1 else None
    return int(planning.sum()) / max(int(counted.sum()), 1), variance


def planning_tokens(pieces: Sequence[str], phrases: Sequence[str]) -> list[bool]:
    """Mark the tokens of the given phrases: whole words, in any case, across any white space.

    Args:
        pieces: the text of every token; joined, they are the completion.
        phrases: such as `probe.settings.words.PLANNING_PHRASES`; empty = no planning tokens.
    """
    if not phrases:
        return [False] * len(pieces)
    patterns = [r"\s+".join(map(re.escape, phrase.split())) for phrase in phrases]
    matches = re.finditer(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)", "".join(pieces), re.IGNORECASE)
    spans = [match.span() for match in matches]
    is_planning, end = [], 0
    for piece in pieces:
        start, end = end, end + len(piece)
        is_planning.append(any(low < end and start < high for low, high in spans))
    return is_planning


def _row_means(values: Tensor, mask: Tensor) -> Tensor:
    """Return (G, 1) means over each row's masked tokens; 0 for a row without any."""
    return (values * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp_min(1)
