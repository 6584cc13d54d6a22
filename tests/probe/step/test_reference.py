"""probe.step.reference: every reference is the policy that its name says, wherever the policy in training has gone."""

import math
from collections.abc import Callable

import pytest
import torch
from adapted import members_of, move, padded_logprobs
from torch import Tensor

from extraction.adapters.trained import Trained
from extraction.batch import Batch, make_batch
from extraction.passes import score
from probe.objective.weigh import weigh
from probe.settings.loss import LossSettings, check_recorded
from probe.step.bases import Bases
from probe.step.reference import References
from replay_pools.base.errors import InputError

PROMPTS, COMPLETIONS = [[5, 6, 7], [8, 9], [4]], [[10, 11, 12], [14, 15], [16, 17, 18, 3]]


@pytest.fixture(scope="module")
def batch() -> Batch:
    return make_batch(PROMPTS, COMPLETIONS, 0)


@pytest.fixture(params=["svd", "lora"])
def coordinates(request: pytest.FixtureRequest, make_tiny: Callable[..., Trained]) -> Trained:
    options = {"rank": 2} if request.param == "lora" else {}
    return make_tiny(request.param, moved=0.0, **options)


@torch.no_grad()
def plain(coordinates: Trained, batch: Batch) -> Tensor:
    return padded_logprobs(coordinates.model, batch)


def logprobs(references: References, coordinates: Trained, batch: Batch, name: str) -> Tensor:
    current = score(coordinates.model, batch)
    return references.scores([name], Bases(**members_of(coordinates)), batch, current, None)[name]


def test_the_ema_moves_by_its_formula_and_is_scored_where_it_is(coordinates: Trained, batch: Batch) -> None:
    """ema <- decay ema + (1 - decay) policy, by hand; its log-probabilities are those of the model
    with those coordinates loaded.
    """
    references = References(coordinates, ema_decay=0.75)
    wanted = coordinates.values()
    for step in range(1, 6):
        here = move(coordinates, step)
        references.update()
        wanted = {m: 0.75 * v + 0.25 * here[m] for m, v in wanted.items()}
        for module, value in references.state_dict()["ema"].items():
            torch.testing.assert_close(value, wanted[module], rtol=1e-12, atol=1e-14)
    found = logprobs(references, coordinates, batch, "ema")
    coordinates.load_values(wanted)
    torch.testing.assert_close(found, plain(coordinates, batch), rtol=1e-10, atol=1e-12)


def test_decay_0_is_synced_and_costs_no_forward(coordinates: Trained, batch: Batch) -> None:
    """A reference at the policy's own point is the policy: the very tensor of its scores."""
    references = References(coordinates, ema_decay=0.0)
    move(coordinates, 1)
    references.update()
    current = score(coordinates.model, batch)
    assert references.scores(["ema"], Bases(**members_of(coordinates)), batch, current, None)["ema"] is current


PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 9}


@pytest.mark.parametrize("own", [LossSettings(old_logprobs="recorded"), LossSettings(reference="recorded")])
def test_another_law_is_refused(own: LossSettings) -> None:
    """Log-probabilities after temperature, top-p or top-k are not the policy's; the pool is named. Objectives that
    compare with none do not mind.
    """
    for sampler in (*(PLAIN | change for change in ({"temperature": 0.6}, {"top_k": 20}, {"top_p": 0.9})), None):
        samplers = {"pool a": PLAIN, "pool b": sampler}
        with pytest.raises(InputError, match="pool b sampler"):
            check_recorded([LossSettings(), own], samplers)
        check_recorded([LossSettings(reference="base")], samplers)
    check_recorded([own], {"pool a": PLAIN})


def test_what_a_teacher_writes_is_penalised_and_not_measured(coordinates: Trained, batch: Batch) -> None:
    """A policy that has unlearnt the first sample, a teacher's: k3 is exp(17) there, and no KL of the policy."""
    current = score(coordinates.model, batch)
    mask, sampled = batch.completion_mask, batch.completion_mask.clone()
    sampled[0] = False
    base = current + 0.1
    base[0] += 17
    objective, rewards = LossSettings(reference="base", beta=0.1), torch.tensor([1.0, 0.0, 0.0]).double()
    refs = {"base": base}
    of_all = weigh(objective, rewards, batch, current, torch.zeros_like(mask), mask, references=refs)
    of_policy = weigh(objective, rewards, batch, current, torch.zeros_like(mask), sampled, references=refs)
    k = math.exp(0.1) - 0.1 - 1
    assert of_policy.kl == {"mean": pytest.approx(k), "max": pytest.approx(k)}
    assert of_all.kl["mean"] > 1e6
    torch.testing.assert_close(of_policy.token_weights, of_all.token_weights)
    alone = weigh(objective, rewards, batch, current, torch.zeros_like(mask), torch.zeros_like(mask), references=refs)
    assert alone.kl == {}, "a step of a teacher's rollouts alone measures no KL of the policy"
