"""Conditions: what `--condition` parses to, and what it refuses."""

from dataclasses import fields

import pytest
import torch

from extraction.batch import make_batch
from probe.objective.weigh import by_pass, weigh
from probe.settings.loss import LossCondition, LossSettings
from probe.settings.rollouts import SourceConfig
from probe.settings.verbs import ReplayConfig
from replay_pools.base.errors import InputError

BASE = LossSettings(loss_type="dapo", advantage_clip=3.0)


def objectives(texts, base=BASE):
    """{condition: its loss} of a replay with these `--condition` texts over `base`."""
    return ReplayConfig(
        source=SourceConfig(), objective=base, conditions=tuple(LossCondition.parse(text) for text in texts)
    ).objectives()


def test_without_any_the_plain_run_is_the_default():
    assert objectives([]) == {"default": BASE}


def test_settings_change_the_plain_run():
    """Every field can be set, by the type that it has; what is not named stays as the options say."""
    text = "x:advantage_estimator=grpo, scale_rewards=group,advantage_clip=none,max_completion_length=64,gtpo_beta=.5"
    found = objectives(["default", text])
    assert [*found] == ["default", "x"]
    assert found["default"] == BASE
    assert found["x"] == LossSettings(
        loss_type="dapo",
        advantage_estimator="grpo",
        scale_rewards="group",
        advantage_clip=None,
        max_completion_length=64,
        gtpo_beta=0.5,
    )
    everything = ",".join(
        f"{field.name}={getattr(LossSettings(), field.name)}".lower() for field in fields(LossSettings)
    )
    assert objectives([f"all:{everything}"])["all"] == LossSettings()


@pytest.mark.parametrize(
    ("texts", "where"),
    [
        (["x:advantage_clp=2"], r"advantage_clp: .*did you mean advantage_clip\?"),
        (["x:advantage_clip=big"], "advantage_clip"),
        (["x:advantage_clip"], "found ''"),
        (["../x"], "name"),
        (["x", "x:gtpo_beta=1"], "conditions: expected"),
        (["x:advantage_eps=nan"], "advantage_eps"),
    ],
)
def test_bad_conditions_are_named(texts, where):
    with pytest.raises((InputError, ValueError), match=where):
        objectives(texts, LossSettings())


@pytest.fixture
def group():
    """(rewards, batch, token_logprobs, planning) of three samples, the first token of each a planning token."""
    batch = make_batch([[1, 2], [3], [4]], [[5, 6, 7], [8, 9], [7]], pad_id=0)
    generator = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(batch.ids.shape, generator=generator) * batch.completion_mask
    planning = batch.completion_mask & (batch.ids % 5 == 0)
    return torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64), batch, logprobs, planning


def weigh_all(group, *texts):
    rewards, batch, logprobs, planning = group
    return {
        name: weigh(own, rewards, batch, logprobs, planning, batch.completion_mask)
        for name, own in objectives(texts, LossSettings()).items()
    }


def test_conditions_with_the_same_credit_share_a_pass(group):
    """GTPO depends on no advantage; HICRA on their signs alone, unless a cap binds."""
    found = weigh_all(
        group,
        *("default", "scaled:scale_rewards=group", "g:gtpo_beta=1", "gs:gtpo_beta=1,scale_rewards=group"),
        *("h:hicra_alpha=1", "hr:hicra_alpha=1,advantage_estimator=maxrl", "hc:hicra_alpha=1,advantage_clip=1.5"),
        "loose:gtpo_beta=1,advantage_clip=99",
    )
    names = [names for _, names in by_pass(found)]
    assert names == [["default", "scaled"], ["g", "gs", "loose"], ["h", "hr"], ["hc"]]
    assert by_pass(found)[0][0].token_weights is None, "the unit pass serves conditions without credit"


def test_scale_times_credit_is_the_token_advantage_times_the_normaliser(group):
    """w_i clamp(A_i c_it) by hand for HICRA: A = 1 -1 0, alpha 1, cap 1.5, w_i = 1 / (len_i G)."""
    found = weigh_all(group, "x:hicra_alpha=1,advantage_clip=1.5")["x"]
    batch, lengths = group[1], [3, 2, 1]
    whole = found.scale[:, None] * found.token_weights
    weights = [whole[i][batch.completion_mask[i]].tolist() for i in range(3)]
    by_hand = [[1.5, 1.0, 1.0], [-1.0, -1.0], [0.0]]  # only token 5, the first, plans
    for i in range(3):
        assert weights[i] == pytest.approx([value / (3 * lengths[i]) for value in by_hand[i]])
    assert found.token_advantages.tolist() == pytest.approx([2.0, 1.0, 1.0, -1.0, -1.0, 0.0])
