"""probe.objective.terms and extraction.loss_weights: by hand, against autograd of the long way, and means; float64."""

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from extraction.loss_weights import loss_weights
from extraction.settings import LossType, Normaliser
from probe.objective.terms import entropy_weights, kl_summary, kl_terms, surrogate
from probe.settings.loss import LossSettings

G, T, V, D = 5, 7, 6, 4
LENGTHS = (7, 4, 5, 1, 3)
CLIPS = [
    pytest.param({"epsilon": 0.2}, id="ppo"),
    pytest.param({"epsilon": 0.2, "epsilon_high": 0.4}, id="clip-higher"),
    pytest.param({"epsilon": None}, id="unclipped"),
]


class Policy:
    """log softmax(X theta) of tokens that were drawn once: logp (G, T) as a function of theta (D, V)."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.theta = torch.randn(D, V, dtype=torch.float64, requires_grad=True)
        self.states = torch.randn(G, T, D, dtype=torch.float64)
        self.tokens = torch.randint(V, (G, T))
        self.mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]

    def logprobs(self):
        every = F.log_softmax(self.states @ self.theta, dim=-1)
        return every.gather(2, self.tokens[..., None]).squeeze(2)

    def gradient(self, loss):
        return torch.autograd.grad(loss, self.theta)[0]

    def engine(self, weights):
        """What per_sample_gradients does with token weights, added over samples."""
        return self.gradient(-(weights.detach() * self.logprobs())[self.mask].sum())


def long_way(policy, old, A, normalisers, epsilon=0.2, epsilon_high=None):
    """The loss of TRL's documentation: ratios and clamps as they stand there, one differentiable expression."""
    mask = policy.mask.double()
    log_ratio = policy.logprobs() - old
    ratio = log_ratio.exp()
    first = ratio * A
    if epsilon is not None:
        high = epsilon if epsilon_high is None else epsilon_high
        first = torch.min(first, torch.clamp(ratio, 1 - epsilon, 1 + high) * A)
    return ((-first * mask).sum(1) * normalisers).sum()


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("credit", [False, True])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_gradient_equals_autograd_of_the_long_way(clip, credit, loss_type):
    """grad of -sum w_i W_it logp_it = grad of the loss, far off-policy, for A_i and for A_it of both signs."""
    fired = {"low": 0.0, "high": 0.0}
    for seed in range(4):
        policy = Policy(seed)
        old = policy.logprobs().detach() + 0.3 * torch.randn(G, T, dtype=torch.float64)
        A = torch.randn(G, T if credit else 1, dtype=torch.float64)
        normaliser = Normaliser(loss_type=loss_type, max_completion_length=9)
        w = loss_weights(torch.tensor(LENGTHS).double(), normaliser)
        loss = LossSettings(**clip)
        losses, weights, summary = surrogate(
            policy.logprobs().detach(), old, policy.mask, A if credit else A[:, 0], loss
        )
        wanted = long_way(policy, old, A, w, **clip)
        torch.testing.assert_close((losses.sum(1) * w).sum(), wanted.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(policy.engine(weights * w[:, None]), policy.gradient(wanted), rtol=1e-10, atol=1e-10)
        for name in fired:
            fired[name] += summary[f"frac_clip_{name}"]
    expected = {"low": clip["epsilon"] is not None, "high": clip["epsilon"] is not None}
    assert {name: total > 0 for name, total in fired.items()} == expected, "a clip was not exercised, or fired unasked"


def test_ratios_by_hand():
    """Ratios 1.5, 0.5 for A = 2 and A = -2 with epsilon 0.2: high clips A > 0 only, low clips A < 0 only."""
    old = torch.zeros(2, 2, dtype=torch.float64)
    logp = torch.tensor([[1.5, 0.5]] * 2, dtype=torch.float64).log()
    A = torch.tensor([2.0, -2.0]).double()
    losses, weights, summary = surrogate(logp, old, torch.ones(2, 2, dtype=torch.bool), A, LossSettings())
    torch.testing.assert_close(weights, torch.tensor([[0.0, 1.0], [-3.0, 0.0]]).double())
    torch.testing.assert_close(losses, torch.tensor([[-2.4, -1.0], [3.0, 1.6]]).double())
    assert (summary["frac_clip_low"], summary["frac_clip_high"]) == (0.25, 0.25)


def test_garbage_in_the_padding_and_overflow_stay_out():
    """exp(inf) under the mask, and an infinite ratio that is clipped, must not turn a weight into NaN."""
    mask = torch.tensor([[True, False], [True, True]])
    logp = torch.tensor([[-1.0, math.inf], [1e4, -1.0]])
    losses, weights, _ = surrogate(logp, torch.zeros(2, 2), mask, torch.tensor([1.0, 1.0]), LossSettings())
    assert torch.isfinite(weights).all()
    assert weights[1, 0] == 0
    assert losses[0, 1] == 0


MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_kl_by_hand():
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


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", [1 / 6, 1 / 9, 1 / 15]),
        ("dr_grpo", [1 / 24] * 3),
        ("dapo", [1 / 10] * 3),
        ("nll", [1 / 2, 1 / 3, 1 / 5]),
    ],
)
def test_normalisers_by_hand(loss_type, expected):
    """G = 3, limit 8, 10 tokens."""
    weights = loss_weights(torch.tensor([2, 3, 5]), Normaliser(loss_type=loss_type, max_completion_length=8))
    assert weights.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss_type", get_args(LossType))
def test_an_empty_completion_weighs_nothing(loss_type):
    weights = loss_weights(torch.tensor([0, 4]), Normaliser(loss_type=loss_type, max_completion_length=8))
    assert weights[0] == 0
    assert 0 < weights[1] <= 1
    assert torch.equal(loss_weights(torch.tensor([0]), Normaliser(loss_type="nll")), torch.zeros(1))
