"""probe.objective.kl: by hand, against autograd, and what each estimator's gradient is in the mean."""

import math

import pytest
import torch
import torch.nn.functional as F

from probe.objective.kl import KL_ESTIMATORS, entropy_weights, full_kl, kl_summary, kl_terms

TOKEN_ESTIMATORS = [name for name in KL_ESTIMATORS if name != "full"]
MASK = torch.tensor([[True, True, False], [True, False, False]])


def values_by_the_book(estimator, logp, ref):
    """k1, k2, k3 as TRL and Schulman write them, of log-probabilities."""
    return {
        "k1": logp - ref,
        "k2": 0.5 * (logp - ref) ** 2,
        "k3": torch.exp(ref - logp) - (ref - logp) - 1,
    }[estimator]


def test_by_hand():
    """d = ref - logp = log 2: k1 = -log 2, k2 = (log 2)^2 / 2, k3 = 1 - log 2; weights -1, log 2, 1."""
    logp, ref = torch.zeros(1, 1).double(), torch.full((1, 1), math.log(2), dtype=torch.float64)
    wanted = {"k1": (-math.log(2), -1), "k2": (math.log(2) ** 2 / 2, math.log(2)), "k3": (1 - math.log(2), 1)}
    for estimator, (value, weight) in wanted.items():
        found = kl_terms(logp, ref, torch.ones(1, 1, dtype=torch.bool), estimator=estimator)
        assert float(found[0]) == pytest.approx(value, abs=1e-15), estimator
        assert float(found[1]) == pytest.approx(weight, abs=1e-15), estimator


@pytest.mark.parametrize("estimator", TOKEN_ESTIMATORS)
def test_values_and_weights_against_autograd(estimator):
    """The weights are minus the derivative of the penalty by logp, and the padding has neither value nor weight."""
    torch.manual_seed(0)
    logp = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    ref = torch.randn(2, 3, dtype=torch.float64)
    penalty = values_by_the_book(estimator, logp, ref)
    (gradient,) = torch.autograd.grad(penalty[MASK].sum(), logp)
    garbage = ref.masked_fill(~MASK, 1e9)
    found = kl_terms(logp.detach(), garbage, MASK, estimator=estimator)
    torch.testing.assert_close(found[0], penalty.detach() * MASK, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[1], -gradient, rtol=1e-12, atol=1e-12)


def mean_gradient(logits, weights):
    """Mean over tokens drawn from softmax(logits) of the engine's gradient W grad(-logp), by enumeration."""
    logp = F.log_softmax(logits, dim=0)
    (gradient,) = torch.autograd.grad((-logp * (logp.exp() * weights).detach()).sum(), logits)
    return gradient


@pytest.mark.parametrize(
    ("estimator", "objective"),
    [
        ("k1", lambda p, q: (p.exp() - p.exp()).sum()),
        ("k2", lambda p, q: (p.exp() * (p - q)).sum()),
        ("k3", lambda p, q: (q.exp() * (q - p)).sum()),
    ],
    ids=["k1: nothing", "k2: KL(policy, ref)", "k3: KL(ref, policy)"],
)
def test_mean_gradient_of_each_estimator(estimator, objective):
    """In the mean k1 does not penalise at all, k2 descends KL(policy, ref), and k3 descends KL(ref, policy)."""
    torch.manual_seed(1)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    p, q = F.log_softmax(logits, dim=0), F.log_softmax(torch.randn(6, dtype=torch.float64), dim=0)
    _, weights = kl_terms(p.detach()[None], q[None], torch.ones(1, 6, dtype=torch.bool), estimator=estimator)
    (wanted,) = torch.autograd.grad(objective(p, q), logits)
    torch.testing.assert_close(mean_gradient(logits, weights[0]), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_mean_value_is_the_divergence(estimator):
    """k1 and k3 are unbiased estimates of KL(policy, ref)."""
    torch.manual_seed(2)
    p, q = (F.log_softmax(torch.randn(6, dtype=torch.float64), dim=0) for _ in range(2))
    values = kl_terms(p[None], q[None], torch.ones(1, 6, dtype=torch.bool), estimator=estimator)[0][0]
    torch.testing.assert_close((p.exp() * values).sum(), (p.exp() * (p - q)).sum(), rtol=1e-12, atol=1e-14)


def test_entropy_weights_descend_minus_the_entropy_in_the_mean():
    """E[W grad(-logp)] = grad(-H); the surprisal as a loss term instead would have mean gradient 0."""
    torch.manual_seed(3)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    p = F.log_softmax(logits, dim=0)
    (wanted,) = torch.autograd.grad((p.exp() * p).sum(), logits)
    weights = entropy_weights(p.detach()[None], torch.ones(1, 6, dtype=torch.bool))[0]
    torch.testing.assert_close(mean_gradient(logits, weights), wanted, rtol=1e-12, atol=1e-14)
    assert entropy_weights(torch.full((2, 3), -2.0), MASK).tolist() == [[2, 2, 0], [2, 0, 0]]


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_full_kl_against_dense_logits(chunk_size):
    """Values and gradients equal those of the dense expression, whatever the chunks; the reference gets no gradient."""
    torch.manual_seed(4)
    head = torch.nn.Linear(5, 11, dtype=torch.float64)
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    p, q = F.log_softmax(head(hidden), dim=1), F.log_softmax(head(reference.detach()), dim=1)
    wanted = (p.exp() * (p - q)).sum(1)
    found = full_kl(head, hidden, reference, chunk_size=chunk_size)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    (gradient,) = torch.autograd.grad(wanted.sum(), hidden, retain_graph=True)
    mine = torch.autograd.grad(found.sum(), (hidden, reference), allow_unused=True)
    torch.testing.assert_close(mine[0], gradient, rtol=1e-12, atol=1e-14)
    assert mine[1] is None, "the reference is trained"


def test_full_kl_is_the_mean_of_k1_over_the_vocabulary():
    """The token estimators and `full_kl` measure the same thing, and bfloat16 states are summed in float32."""
    torch.manual_seed(5)
    head = torch.nn.Linear(4, 9, dtype=torch.bfloat16)
    hidden, reference = torch.randn(2, 1, 4).to(torch.bfloat16)
    p, q = (F.log_softmax(head(states).float(), dim=1) for states in (hidden, reference))
    k1, _ = kl_terms(p.detach(), q.detach(), torch.ones(1, 9, dtype=torch.bool), estimator="k1")
    found = full_kl(head, hidden, reference)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, (p.exp() * k1).sum(1))


def test_summary_is_over_all_tokens():
    """Three completion tokens 1, 2, 6: mean 3, not the mean of the samples' means."""
    values = torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0]])
    assert kl_summary(values, MASK) == {"mean": 3.0, "max": 6.0}
    assert kl_summary(values, torch.zeros_like(MASK)) == {}, "tokens of others alone: nothing was measured"
