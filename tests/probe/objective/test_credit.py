"""Token credit: every formula on numbers worked out by hand, and what holds whatever the numbers."""

import math

import pytest
import torch

from probe.objective.credit import (
    cap_credit,
    credit_diagnostics,
    gtpo,
    hicra,
    planning_tokens,
    sepa,
    surprisal,
    token_credit,
)
from probe.settings.loss import LossSettings
from probe.settings.words import PLANNING_PHRASES

# Two samples: a prompt token, then 4 and 2 completion tokens; the last two places of the second are padding.
MASK = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)
H = torch.tensor([[0, 1, 2, 3, 6], [0, 4, 0, 0, 0]], dtype=torch.float64)  # means 3 and 2
PLANNING = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)  # marks off the completion are not read
A = torch.tensor([2.0, -1.0], dtype=torch.float64)


def test_surprisal_is_capped_and_zero_off_the_completion():
    """-log 0 is infinite: uncapped, one impossible token would be the whole mean."""
    h = surprisal(torch.tensor([[-9.0, -1.5, -math.inf]]), torch.tensor([[False, True, True]]))
    assert h.tolist() == [[0.0, 1.5, 50.0]]


def test_gtpo_by_hand():
    """h / mean = 1/3, 2/3, 1, 2; with beta 1.5 the first is 1 + 1.5 (1/3 - 1) = 0, with beta 3 it would be negative.

    A certain sample has h / mean = 0 / 0: the credit stays 1.
    """
    assert gtpo(H, MASK, beta=1.5)[0].tolist() == pytest.approx([0, 0, 0.5, 1, 2.5])
    assert gtpo(H, MASK, beta=1.5)[1].tolist() == pytest.approx([0, 2.5, 0, 0, 0])
    assert gtpo(H, MASK, beta=3.0)[0].tolist() == pytest.approx([0, 0, 0, 1, 4]), "not floored at 0"
    assert gtpo(torch.zeros_like(H), MASK, beta=0.7).tolist() == MASK.double().tolist()


def test_hicra_by_hand():
    """A + alpha |A| on planning tokens: 2 -> 2.5 and -1 -> -0.75 with alpha 1/4."""
    factors = hicra(PLANNING & MASK, A, alpha=0.25)
    assert (A[:, None] * factors)[0].tolist() == pytest.approx([2, 2, 2.5, 2, 2])
    assert (A[:, None] * factors)[1].tolist() == pytest.approx([-1, -1, -0.75, -1, -1])
    assert hicra(PLANNING, torch.zeros(2), alpha=0.25).tolist() == torch.ones(2, 5).tolist()


def test_sepa_by_hand():
    """Execution tokens 1, 3, 6 have mean 10/3: halfway there with lambda 1/2; the planning token keeps its 2."""
    execution = MASK & ~PLANNING
    assert sepa(H, execution, strength=0.5)[0].tolist() == pytest.approx([0, 13 / 6, 2, 19 / 6, 28 / 6])
    pooled = sepa(H, execution, strength=1.0)
    assert pooled[execution].tolist() == pytest.approx([10 / 3] * 3 + [4.0]), "lambda 1 must pool completely"
    assert torch.equal(sepa(H, execution, strength=0.0), H)


def test_the_whole_chain_by_hand():
    """h 1 2 3 6, lambda 1: execution 10/3, so h = 10/3 2 10/3 10/3 with mean 3; beta 1: 10/9 2/3 10/9 10/9; planning
    x 1.5 -> 1."""
    credit = token_credit(-H, MASK, PLANNING, A, LossSettings(gtpo_beta=1.0, sepa_lambda=1.0, hicra_alpha=0.5))
    assert credit[0].tolist() == pytest.approx([0, 10 / 9, 1, 10 / 9, 10 / 9])
    assert credit[1].tolist() == pytest.approx([0, 2, 0, 0, 0])  # h 4 and 0 (planning): mean 2, 4/2


def test_the_cap_is_on_the_tokens_and_last():
    """A 2 and -1 with credit 0.5 1 4: A_it 1 2 8 and -0.5 -1 -4, capped at 1.5; A = 0 has nothing to cap."""
    credit = torch.tensor([[0.5, 1.0, 4.0]] * 3, dtype=torch.float64)
    advantages = torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64)
    capped = advantages[:, None] * cap_credit(credit, advantages, clip=1.5)
    assert capped.tolist() == [[1.0, 1.5, 1.5], [-0.5, -1.0, -1.5], [0.0, 0.0, 0.0]]


def test_diagnostics_by_hand():
    """Execution tokens are 1 3 6 and 4: mean 3.5, squares 6.25 .25 6.25 .25 over 3; 2 of 6 tokens plan.

    Without the second sample, a teacher's: 1 3 6 have variance 19/3, and 1 of 4 tokens plans.
    """
    assert credit_diagnostics(-H, MASK, PLANNING) == pytest.approx((2 / 6, 13 / 3))
    assert credit_diagnostics(-H, MASK, MASK) == (1.0, None), "no execution token has no variance"
    first = MASK & torch.tensor([[True], [False]])
    assert credit_diagnostics(-H, first, PLANNING) == pytest.approx((1 / 4, 19 / 3))


@pytest.mark.parametrize(
    ("pieces", "marked"),
    [
        (["Let", " me", "\n", "think", "."], "1111."),  # any case, any white space; what is between belongs to it
        (["a", "wait", " wait", "er", " wait"], "....1"),  # whole words: neither `await` nor `waiter`
        (["No", "te th", "at it", "s"], "111."),  # tokens need not end where words do
        (["let me", " not think"], ".."),
        ([], ""),
    ],
)
def test_planning_tokens(pieces, marked):
    assert "".join(".1"[mark] for mark in planning_tokens(pieces, PLANNING_PHRASES)) == marked
    assert not any(planning_tokens(pieces, ())), "an empty alternation matches everywhere"
