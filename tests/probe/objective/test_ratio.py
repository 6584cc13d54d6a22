"""The ratio by hand, and against autograd of the surrogate written the long way on a softmax policy in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from extraction.loss import loss_weights
from extraction.words import Normaliser
from probe.objective.ratio import surrogate
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


def test_by_hand():
    """Ratios 1.5, 0.5 for A = 2 and A = -2 with epsilon 0.2: high clips A > 0 only, low clips A < 0 only."""
    old = torch.zeros(2, 2, dtype=torch.float64)
    logp = torch.tensor([[1.5, 0.5]] * 2, dtype=torch.float64).log()
    A = torch.tensor([2.0, -2.0]).double()
    losses, weights, summary = surrogate(logp, old, torch.ones(2, 2, dtype=torch.bool), A, LossSettings())
    torch.testing.assert_close(weights, torch.tensor([[0.0, 1.0], [-3.0, 0.0]]).double())
    torch.testing.assert_close(losses, torch.tensor([[-2.4, -1.0], [3.0, 1.6]]).double())
    assert (summary["frac_clip_low"], summary["frac_clip_high"]) == (0.25, 0.25)


def test_current_log_probabilities_give_the_plain_policy_gradient():
    """old = logp: ratio 1, nothing clipped, W = A on completions: the frozen-weight pass is the special case."""
    policy = Policy(0)
    logp, A = policy.logprobs().detach(), torch.randn(G, dtype=torch.float64)
    _, weights, summary = surrogate(logp, logp, policy.mask, A, LossSettings(epsilon=0.01))
    torch.testing.assert_close(weights, A[:, None] * policy.mask, rtol=1e-12, atol=0)
    assert summary["frac_clip_low"] + summary["frac_clip_high"] == 0


def test_garbage_in_the_padding_and_overflow_stay_out():
    """exp(inf) under the mask, and an infinite ratio that is clipped, must not turn a weight into NaN."""
    mask = torch.tensor([[True, False], [True, True]])
    logp = torch.tensor([[-1.0, math.inf], [1e4, -1.0]])
    losses, weights, _ = surrogate(logp, torch.zeros(2, 2), mask, torch.tensor([1.0, 1.0]), LossSettings())
    assert torch.isfinite(weights).all()
    assert weights[1, 0] == 0
    assert losses[0, 1] == 0
