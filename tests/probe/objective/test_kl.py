"""probe.objective.kl: by hand, against autograd, and what the gradient of its estimate is in the mean."""

import math

import pytest
import torch
import torch.nn.functional as F

from probe.objective.kl import entropy_weights, kl_summary, kl_terms

MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_by_hand():
    """d = ref - logp = log 2: k = 1 - log 2, weight 1."""
    logp, ref = torch.zeros(1, 1).double(), torch.full((1, 1), math.log(2), dtype=torch.float64)
    values, weights = kl_terms(logp, ref, torch.ones(1, 1, dtype=torch.bool))
    assert float(values) == pytest.approx(1 - math.log(2), abs=1e-15)
    assert float(weights) == pytest.approx(1, abs=1e-15)


def test_values_and_weights_against_autograd():
    """The weights are minus the derivative of the penalty by logp, and the padding has neither value nor weight."""
    torch.manual_seed(0)
    logp = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    ref = torch.randn(2, 3, dtype=torch.float64)
    penalty = torch.exp(ref - logp) - (ref - logp) - 1
    (gradient,) = torch.autograd.grad(penalty[MASK].sum(), logp)
    values, weights = kl_terms(logp.detach(), ref.masked_fill(~MASK, 1e9), MASK)
    torch.testing.assert_close(values, penalty.detach() * MASK, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights, -gradient, rtol=1e-12, atol=1e-12)


def mean_gradient(logits, weights):
    """Mean over tokens drawn from softmax(logits) of the engine's gradient W grad(-logp), by enumeration."""
    logp = F.log_softmax(logits, dim=0)
    (gradient,) = torch.autograd.grad((-logp * (logp.exp() * weights).detach()).sum(), logits)
    return gradient


def test_means_of_value_and_gradient():
    """The mean value is KL(policy, ref), the mean gradient that of KL(ref, policy)."""
    torch.manual_seed(1)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    p, q = F.log_softmax(logits, dim=0), F.log_softmax(torch.randn(6, dtype=torch.float64), dim=0)
    values, weights = kl_terms(p.detach()[None], q[None], torch.ones(1, 6, dtype=torch.bool))
    torch.testing.assert_close((p.exp() * values[0]).sum(), (p.exp() * (p - q)).sum(), rtol=1e-12, atol=1e-14)
    (wanted,) = torch.autograd.grad((q.exp() * (q - p)).sum(), logits)
    torch.testing.assert_close(mean_gradient(logits, weights[0]), wanted, rtol=1e-12, atol=1e-14)


def test_entropy_weights_descend_minus_the_entropy_in_the_mean():
    """E[W grad(-logp)] = grad(-H); the surprisal as a loss term instead would have mean gradient 0."""
    torch.manual_seed(3)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    p = F.log_softmax(logits, dim=0)
    (wanted,) = torch.autograd.grad((p.exp() * p).sum(), logits)
    weights = entropy_weights(p.detach()[None], torch.ones(1, 6, dtype=torch.bool))[0]
    torch.testing.assert_close(mean_gradient(logits, weights), wanted, rtol=1e-12, atol=1e-14)
    assert entropy_weights(torch.full((2, 3), -2.0), MASK).tolist() == [[2, 2, 0], [2, 0, 0]]


def test_summary_is_over_all_tokens():
    """Three completion tokens 1, 2, 6: mean 3, not the mean of the samples' means."""
    values = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0]])
    assert kl_summary(values, MASK) == {"mean": 3.0, "max": 6.0}
    assert kl_summary(values, torch.zeros_like(MASK)) == {}, "tokens of others alone: nothing was measured"
