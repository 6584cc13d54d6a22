"""StackedCoordinates: one pass gives what a pass of each part alone gives."""

import pytest
import torch

from extraction.adapters.coordinates import attach
from extraction.adapters.interface import StackedCoordinates
from extraction.batch import make_batch
from extraction.gradients import per_sample_gradients


@pytest.fixture
def parts(build_model, architecture):
    """delta_S, LoRA and LoRA with frozen A, each on a copy of the same model."""
    options = [{"basis": "svd", "cache_dir": None}, {"basis": "lora", "rank": 3}, {"basis": "lora", "rank": 2}]
    return [attach(build_model(architecture, torch.float64), model_id="tiny", **own) for own in options]


def test_one_pass_equals_the_passes_of_the_parts(parts, rollouts):
    """In any order, since the model of the first part runs for all; packed in one pass and split over several."""
    batch = make_batch(*rollouts, pad_id=2)
    for order in (parts, parts[::-1]):
        for tokens in (None, 9):
            stacked = StackedCoordinates(order)
            found = per_sample_gradients(stacked, batch, tokens_per_batch=tokens)
            for own, part in zip(order, stacked.split(found.gradients), strict=True):
                alone = per_sample_gradients(own, batch)
                torch.testing.assert_close(found.token_logprobs, alone.token_logprobs)
                assert list(part) == list(alone.gradients)
                for module, expected in alone.gradients.items():
                    hint = f"{own.basis} {module}: coordinates of another part, or another order"
                    torch.testing.assert_close(part[module], expected, rtol=1e-8, atol=1e-12, msg=hint)


def test_other_modules_are_refused(build_model):
    """Parts are read at the same places of the one model that runs."""
    shared = {"basis": "lora", "model_id": "x", "rank": 2}
    parts = [attach(build_model("qwen3"), targets=own, **shared) for own in (["q_proj"], ["q_proj", "k_proj"])]
    with pytest.raises(ValueError, match="same modules"):
        StackedCoordinates(parts)
