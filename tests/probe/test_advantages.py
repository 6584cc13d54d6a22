"""probe.objective.advantages: hand-computed values, and the bounds as theorems."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.objective.advantages import ESTIMATORS, advantage_diagnostics, advantages, group_std, reward_stats
from probe.objective.bound import advantage_bound
from probe.records.records import ADVANTAGE_KEYS
from probe.settings.words import SCALES

REWARDS = torch.tensor([3.5, 3.5, 0.5, 0.0], dtype=torch.float64)
groups = st.lists(st.sampled_from([0.0, 0.1, 0.5, 3.0, 3.5]) | st.floats(0, 10), min_size=2, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
settings_table = [pytest.param(e, s, id=f"{e}-{s}") for e in ESTIMATORS for s in SCALES if e != "maxrl" or s == "none"]


def test_estimators_by_hand():
    """Mean 1.875: centred, divided by the mean, and against the mean of the other three."""
    centred = [1.625, 1.625, -1.375, -1.875]
    assert advantages(REWARDS).tolist() == pytest.approx(centred)
    assert advantages(REWARDS, estimator="maxrl").tolist() == pytest.approx([c / 1.875 for c in centred], rel=1e-5)
    leave_one_out = [3.5 - 4 / 3, 3.5 - 4 / 3, 0.5 - 7 / 3, 0 - 7.5 / 3]
    assert advantages(REWARDS, estimator="rloo").tolist() == pytest.approx(leave_one_out)


def test_scales_divide_by_the_sample_standard_deviation():
    """ddof = 1: the sum of squares 10.1875 over 3; a population deviation would be 13% smaller."""
    std = math.sqrt((2 * 1.625**2 + 1.375**2 + 1.875**2) / 3)
    assert advantages(REWARDS, scale="group")[0] == pytest.approx(1.625 / (std + 1e-4))
    assert advantages(REWARDS, scale="batch", batch_std=2.0, eps=0.0)[0] == pytest.approx(0.8125)


def test_strata_are_groups_by_themselves():
    """By hand: two sources, one of equal rewards; a stratum of one sample has nobody to be compared with."""
    rewards = torch.tensor([3.5, 3.5, 0.5, 0.0, 1.0], dtype=torch.float64)
    sources = torch.tensor([0, 0, 1, 1, 2])
    assert advantages(rewards, strata=sources).tolist() == [0.0, 0.0, 0.25, -0.25, 0.0]
    found = advantage_diagnostics(rewards, strata=sources, reward_range=3.5)
    assert (found["frac_reward_zero_std"], found["advantage/abs_max"]) == (2 / 3, 0.25)
    assert found["advantage/bound"] == 1.75, "of a group of two"


@given(groups, groups, st.sampled_from(sorted(ESTIMATORS)), st.randoms(use_true_random=False))
def test_strata_in_any_order_equal_their_groups(first, second, estimator, random):
    """A group of two shuffled strata has the advantages that each has alone."""
    rewards, labels = torch.cat([first, second]), torch.tensor([0] * len(first) + [1] * len(second))
    order = list(range(len(rewards)))
    random.shuffle(order)
    alone = torch.cat([advantages(part, estimator=estimator) for part in (first, second)])
    torch.testing.assert_close(advantages(rewards[order], estimator=estimator, strata=labels[order]), alone[order])


def test_clip_is_last():
    """The cap applies to the scaled advantage: capping before scaling would leave values below the cap."""
    capped = advantages(REWARDS, scale="batch", batch_std=0.5, eps=0.0, clip=3.0)
    assert capped.tolist() == pytest.approx([3.0, 3.0, -2.75, -3.0]), "capped before scaling?"


@pytest.mark.parametrize(("estimator", "scale"), settings_table)
def test_zero_variance_is_exactly_zero(estimator, scale):
    """Equal rewards give exact zeros: 0.1 is not a binary fraction, so r - mean(r) alone would leave dust."""
    rewards = torch.full((3,), 0.1)
    values = advantages(rewards, estimator=estimator, scale=scale, batch_std=1.0)
    assert values.tolist() == [0.0, 0.0, 0.0]


def test_min_group_std_skips_and_is_counted_apart_from_zero_variance():
    """A group below min_group_std is zeroed and counted in skip_rate, an equal group in frac_reward_zero_std."""
    nearly = torch.tensor([0.62, 0.68, 0.71, 0.65])
    assert advantages(nearly, scale="group", min_group_std=0.1).abs().max() == 0
    assert advantages(nearly, scale="group").abs().max() > 1
    skipped = advantage_diagnostics(nearly, min_group_std=0.1)
    equal = advantage_diagnostics(torch.ones(4), min_group_std=0.1)
    assert (skipped["skip_rate"], skipped["frac_reward_zero_std"]) == (1.0, 0.0)
    assert (equal["skip_rate"], equal["frac_reward_zero_std"]) == (0.0, 1.0)


@pytest.mark.parametrize(("estimator", "scale"), settings_table)
@settings(deadline=None, max_examples=60)
@given(rewards=groups)
def test_bounds_are_theorems(estimator, scale, rewards):
    """No group of rewards >= 0 exceeds the printed bound, whatever its rewards."""
    spread = float(rewards.max() - rewards.min())
    values = advantages(rewards, estimator=estimator, scale=scale, batch_std=0.7)
    bound = advantage_bound(len(rewards), spread, estimator=estimator, scale=scale, batch_std=0.7)
    assert values.abs().max() <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("estimator", "scale"), settings_table)
def test_bounds_are_reached(estimator, scale):
    """One success among G - 1 failures reaches every bound (up to eps): a looser bound would call real caps vacuous."""
    rewards = torch.tensor([3.5, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    reached = advantages(rewards, estimator=estimator, scale=scale, batch_std=0.7).abs().max()
    bound = advantage_bound(5, 3.5, estimator=estimator, scale=scale, batch_std=0.7)
    assert float(reached) == pytest.approx(bound, rel=1e-3)


@settings(deadline=None, max_examples=60)
@given(rewards=groups, clip=st.floats(0.05, 20))
def test_a_vacuous_cap_never_binds(rewards, clip):
    """adv_cap_vacuous means exactly that: nothing is capped."""
    found = advantage_diagnostics(rewards, clip=clip)
    if found["adv_cap_vacuous"]:
        assert found["adv_cap_fraction"] == 0.0, f"a cap at {clip} called vacuous capped something"
        assert found["adv_cap_magnitude"] is None


def test_diagnostics_by_hand():
    """Advantages 1.625 1.625 -1.375 -1.875 with the cap 1.5: three of four capped, mean size 1.7083 before."""
    found = advantage_diagnostics(REWARDS, clip=1.5, reward_range=3.5)
    assert found["adv_cap_fraction"] == 0.75
    assert found["adv_cap_magnitude"] == pytest.approx((1.625 + 1.625 + 1.875) / 3)
    assert found["advantage/abs_max"] == 1.5
    assert found["advantage/bound"] == pytest.approx(2.625)
    assert found["advantage/mean"] == pytest.approx((1.5 + 1.5 - 1.375 - 1.5) / 4)
    assert found["adv_cap_vacuous"] is False
    assert advantage_diagnostics(REWARDS, clip=2.625, reward_range=3.5)["adv_cap_vacuous"] is True
    assert advantage_diagnostics(REWARDS)["adv_cap_vacuous"] is None


def test_token_advantages_are_described_instead_of_samples():
    """A_it 4 -1 -2 0 with the cap 1.5: two of three nonzero capped, mean size 3 before; credit has no bound."""
    tokens = torch.tensor([4.0, -1.0, -2.0, 0.0], dtype=torch.float64)
    found = advantage_diagnostics(REWARDS, clip=1.5, reward_range=3.5, token_advantages=tokens)
    assert found["adv_cap_fraction"] == pytest.approx(2 / 3)
    assert found["adv_cap_magnitude"] == pytest.approx(3.0)
    assert found["advantage/mean"] == pytest.approx((1.5 - 1.0 - 1.5) / 4)
    assert (found["advantage/bound"], found["adv_cap_vacuous"]) == (None, False)
    loose = advantage_diagnostics(REWARDS, clip=99.0, token_advantages=tokens)
    assert loose["adv_cap_vacuous"] is False, "a cap on tokens is never vacuous: credit has no bound"


def test_diagnostic_names_are_the_wire_names():
    """The records store exactly these keys, in this order, and one that needs the lengths of the completions."""
    assert tuple(advantage_diagnostics(REWARDS)) == tuple(key for key in ADVANTAGE_KEYS if key != "advantage/abs_mean")


def test_reward_stats():
    """Spread is the largest minus the smallest; the deviation has ddof = 1; one sample has none."""
    found = reward_stats(REWARDS)
    assert found == pytest.approx({"reward_mean": 1.875, "reward_std": float(REWARDS.std()), "reward_spread": 3.5})
    assert group_std(torch.tensor([3.5])) == 0.0


def test_a_scale_of_the_batch_needs_its_deviation():
    with pytest.raises(ValueError, match="batch_std"):
        advantages(REWARDS, scale="batch")


def test_bad_rewards_are_refused():
    """An infinite reward would silently become a NaN gradient of the whole group; maxrl is undefined below zero."""
    with pytest.raises(ValueError, match="finite numbers"):
        advantages(torch.tensor([1.0, math.inf]))
    with pytest.raises(ValueError, match=">= 0"):
        advantages(torch.tensor([1.0, -1.0]), estimator="maxrl")


@given(rewards=groups, data=st.data())
@pytest.mark.parametrize(("estimator", "scale"), settings_table)
def test_an_unknown_reward_counts_nowhere(estimator, scale, rewards, data):
    """A group with unknown rewards (nan) is the group of the others: exact zeros are all that is added."""
    unknown = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards))))
    unknown[0] = False
    with_nan = torch.where(unknown, torch.nan, rewards)
    options = {"estimator": estimator, "scale": scale, "batch_std": 2.0}
    values = advantages(with_nan, **options)
    assert values[unknown].tolist() == [0.0] * int(unknown.sum())
    assert torch.equal(values[~unknown], advantages(rewards[~unknown], **options))
    assert group_std(with_nan) == group_std(rewards[~unknown])
    assert reward_stats(with_nan) == reward_stats(rewards[~unknown])
    diagnostics = advantage_diagnostics(with_nan, **options)
    assert all(value is None or math.isfinite(value) for value in diagnostics.values())


def test_a_group_without_a_known_reward_leaves_the_statistics_of_the_others():
    rewards = torch.tensor([[3.5, 0.5], [math.nan, math.nan]])
    assert reward_stats(rewards) == reward_stats(rewards[0])
    assert advantages(rewards[1]).tolist() == [0.0, 0.0]
