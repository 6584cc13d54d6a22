"""extraction.loss: one row of the table at a time, and what each row means."""

from typing import get_args

import pytest
import torch

from extraction.loss import loss_weights
from extraction.words import LossType, Normaliser

LENGTHS = torch.tensor([2, 3, 5])


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", [1 / 6, 1 / 9, 1 / 15]),
        ("dr_grpo", [1 / 24] * 3),
        ("dapo", [1 / 10] * 3),
        ("nll", [1 / 2, 1 / 3, 1 / 5]),
    ],
)
def test_weights_by_hand(loss_type, expected):
    """G = 3, limit 8, 10 tokens."""
    weights = loss_weights(LENGTHS, Normaliser(loss_type=loss_type, max_completion_length=8))
    assert weights.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("loss_type", get_args(LossType))
def test_an_empty_completion_weighs_nothing(loss_type):
    weights = loss_weights(torch.tensor([0, 4]), Normaliser(loss_type=loss_type, max_completion_length=8))
    assert weights[0] == 0
    assert 0 < weights[1] <= 1
    assert torch.equal(loss_weights(torch.tensor([0]), Normaliser(loss_type="nll")), torch.zeros(1))
