"""probe.objective.advantages: hand-computed values, bounds as theorems, strata in a real replay."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.objective.advantages import (
    ESTIMATORS,
    advantage_bound,
    advantage_diagnostics,
    advantages,
    group_std,
    reward_stats,
    sample_advantages,
)
from probe.records.records import ADVANTAGE_KEYS
from probe.records.run import read_run
from probe.settings.loss import LossSettings
from probe.settings.words import Scale
from probe.step.groups import STRATA, Group, RolloutKey, strata_of

REWARDS = torch.tensor([3.5, 3.5, 0.5, 0.0], dtype=torch.float64)
groups = st.lists(st.sampled_from([0.0, 0.1, 0.5, 3.0, 3.5]) | st.floats(0, 10), min_size=2, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
settings_table = [
    pytest.param(e, s, id=f"{e}-{s}") for e in ESTIMATORS for s in get_args(Scale) if e == "grpo" or s == "none"
]


def diagnosed(rewards, reward_range=3.5, *, token_advantages=None, strata=None, **loss):
    loss = LossSettings(**loss)
    return advantage_diagnostics(loss, rewards, reward_range, token_advantages=token_advantages, strata=strata)


def test_estimators_scales_and_cap_by_hand():
    """Mean 1.875, sum of squares 10.6875, ddof = 1: a population deviation would be 13% smaller. The cap is last."""
    centred = [1.625, 1.625, -1.375, -1.875]
    assert advantages(REWARDS, LossSettings()).tolist() == pytest.approx(centred)
    maxrl = advantages(REWARDS, LossSettings(advantage_estimator="maxrl"))
    assert maxrl.tolist() == pytest.approx([c / 1.875 for c in centred], rel=1e-5)
    std = math.sqrt(10.6875 / 3)
    assert advantages(REWARDS, LossSettings(scale_rewards="group"))[0] == pytest.approx(1.625 / (std + 1e-4))
    by_batch = LossSettings(scale_rewards="batch", advantage_eps=0.0)
    assert advantages(REWARDS, by_batch, batch_std=2.0)[0] == pytest.approx(0.8125)
    capped = sample_advantages(LossSettings(scale_rewards="group", advantage_eps=0.0, advantage_clip=0.8), REWARDS)
    assert capped.tolist() == pytest.approx([0.8, 0.8, -1.375 / std, -0.8]), "capped before scaling?"
    for bad, estimator in ((math.inf, "grpo"), (-1.0, "maxrl")):  # infinite: a NaN gradient of the whole group
        with pytest.raises(ValueError, match=r"finite numbers|>= 0"):
            advantages(torch.tensor([1.0, bad]), LossSettings(advantage_estimator=estimator))


def test_the_batch_is_all_groups_of_the_step():
    rewards = torch.stack([REWARDS, REWARDS.flip(0) * 2])
    found = sample_advantages(LossSettings(scale_rewards="batch", advantage_eps=0.0), rewards)
    centred = rewards - rewards.mean(1, keepdim=True)
    torch.testing.assert_close(found, (centred / rewards.std()).flatten())
    assert sample_advantages(LossSettings(loss_type="nll"), rewards).tolist() == [1.0] * 8


def test_diagnostics_of_strata_by_hand():
    """Two sources, one of equal rewards; a stratum of one sample has nobody to be compared with."""
    rewards = torch.tensor([3.5, 3.5, 0.5, 0.0, 1.0], dtype=torch.float64)
    sources = torch.tensor([0, 0, 1, 1, 2])
    assert sample_advantages(LossSettings(), rewards, sources).tolist() == [0.0, 0.0, 0.25, -0.25, 0.0]
    found = diagnosed(rewards, strata=sources)
    assert (found["frac_reward_zero_std"], found["advantage/abs_max"]) == (2 / 3, 0.25)
    assert found["advantage/bound"] == 1.75, "of a group of two"


def _group(pools: str, prompts: str, lengths: list[int], masks: tuple[list[bool] | None, ...]) -> Group:
    return Group(
        step=0, prompt_ids=tuple([ord(prompt)] for prompt in prompts), completion_masks=masks, problem_id="one",
        completion_ids=tuple([1] * length for length in lengths), rewards=(0.0,) * len(lengths), mixed_prompt=True,
        sampling_logprobs=(None,) * len(lengths), keys=tuple(RolloutKey(pool, 0, i) for i, pool in enumerate(pools)),
    )  # fmt: skip


def test_the_strata_of_a_group() -> None:
    """By pool, by prompt, and by whether more tokens than the median were sampled; numbers are of the group alone."""
    masks = (None, None, None, [True, False, False, False, True])
    pair = [_group("aabb", "xyyx", [4, 2, 2, 5], masks), _group("bbab", "xxxx", [1, 1, 1, 1], (None,) * 4)]
    expected = {
        "source": [[0, 0, 1, 1], [0, 0, 1, 0]],
        "prompt": [[0, 1, 1, 0], [0, 0, 0, 0]],
        "length": [[0, 1, 1, 1], [0, 0, 0, 0]],
    }
    assert {word: strata_of(pair, word) for word in STRATA} == expected


def test_a_replay_with_baselines_within_the_sources(replay: Callable[..., Path], quick: list[str]) -> None:
    """Beside the plain condition: the advantages of each pool sum to 0, and nothing else of the rollouts changes."""
    conditions = ["--condition", "default", "--condition", "within:strata=source"]
    made = read_run(replay("strata", "--steps", "6", "--arm", "vanilla", *quick, *conditions))
    sums: dict[tuple[str, int, str], float] = {}
    for sample in made.samples:
        key = sample.condition, sample.step, sample.src_pool
        sums[key] = sums.get(key, 0.0) + sample.advantage
    within = [total for (condition, _, _), total in sums.items() if condition == "within"]
    assert within == pytest.approx([0.0] * len(within), abs=1e-12)
    assert max(abs(total) for (condition, _, _), total in sums.items() if condition == "default") > 0.5


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_zero_variance_is_exactly_zero(estimator):
    """Equal rewards give exact zeros: 0.1 is not a binary fraction, so r - mean(r) alone would leave dust.

    Without a baseline they stay. A group below min_group_std is zeroed and counted in skip_rate, an equal group apart.
    """
    values = advantages(torch.full((3,), 0.1), LossSettings(advantage_estimator=estimator))
    assert values.tolist() == torch.full((3,), 0.1 if estimator == "reinforce" else 0.0).tolist()
    nearly = torch.tensor([0.62, 0.68, 0.71, 0.65])
    scaled, skipping = (LossSettings(scale_rewards="group", min_group_std=floor) for floor in (0.0, 0.1))
    assert advantages(nearly, skipping).abs().max() == 0 < 1 < advantages(nearly, scaled).max()
    for rewards, expected in ((nearly, (1.0, 0.0)), (torch.ones(4), (0.0, 1.0))):
        found = diagnosed(rewards, min_group_std=0.1)
        assert (found["skip_rate"], found["frac_reward_zero_std"]) == expected


@pytest.mark.parametrize(("estimator", "scale"), settings_table)
@settings(deadline=None, max_examples=60)
@given(rewards=groups)
def test_bounds_are_theorems(estimator, scale, rewards):
    """No group of rewards >= 0 exceeds the bound, whatever its rewards; one success among failures reaches it."""
    one = torch.tensor([3.5, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    loss = LossSettings(advantage_estimator=estimator, scale_rewards=scale)
    if estimator == "reinforce":
        rewards = rewards - rewards.min()
    for group, reached in ((rewards, False), (one, True)):
        spread = float(group.max() - group.min())
        largest = float(advantages(group, loss, batch_std=0.7).abs().max())
        bound = advantage_bound(len(group), spread, loss, batch_std=0.7)
        assert largest <= bound * (1 + 1e-9) + 1e-12
        assert not reached or largest == pytest.approx(bound, rel=1e-3), "a looser bound calls real caps vacuous"


def test_diagnostics_by_hand():
    """Advantages 1.625 1.625 -1.375 -1.875 with the cap 1.5: three of four capped, mean size 1.7083 before.

    With token credit the cap is on A_it 4 -1 -2 0, mean and std are of samples, and there is no bound.
    """
    found = diagnosed(REWARDS, advantage_clip=1.5)
    assert tuple(found) == tuple(key for key in ADVANTAGE_KEYS if key != "advantage/abs_mean"), "the wire names"
    by_hand = {"adv_cap_fraction": 0.75, "adv_cap_magnitude": 5.125 / 3, "advantage/abs_max": 1.5}
    by_hand |= {"advantage/bound": 2.625, "advantage/mean": (1.5 + 1.5 - 1.375 - 1.5) / 4}
    assert {key: found[key] for key in by_hand} == pytest.approx(by_hand)
    vacuous = [diagnosed(REWARDS, advantage_clip=clip)["adv_cap_vacuous"] for clip in (1.5, 2.625, None)]
    assert vacuous == [False, True, None]
    tokens = torch.tensor([4.0, -1.0, -2.0, 0.0], dtype=torch.float64)
    found = diagnosed(REWARDS, advantage_clip=1.5, token_advantages=tokens)
    of_samples = torch.tensor([1.625, 1.625, -1.375, -1.875], dtype=torch.float64)
    by_hand = {"adv_cap_fraction": 2 / 3, "adv_cap_magnitude": 3.0, "advantage/abs_max": 1.5}
    by_hand |= {"advantage/mean": 0.0, "advantage/std": float(of_samples.std())}
    assert {key: found[key] for key in by_hand} == pytest.approx(by_hand)
    assert (found["advantage/bound"], found["adv_cap_vacuous"]) == (None, False)


def test_reward_stats():
    """Spread is the largest minus the smallest; the deviation has ddof = 1; a group of unknown rewards has none."""
    expected = {"reward_mean": 1.875, "reward_std": float(REWARDS.std()), "reward_spread": 3.5}
    assert reward_stats(REWARDS) == pytest.approx(expected)
    assert group_std(torch.tensor([3.5])) == 0.0
    rewards = torch.tensor([[3.5, 0.5], [math.nan, math.nan]])
    assert reward_stats(rewards) == reward_stats(rewards[0])
    assert advantages(rewards[1], LossSettings()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("estimator", "scale"), settings_table)
@settings(deadline=None, max_examples=40)
@given(rewards=groups, data=st.data())
def test_an_unknown_reward_counts_nowhere(estimator, scale, rewards, data):
    """A group with unknown rewards (nan) is the group of the others: exact zeros are all that is added."""
    unknown = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards))))
    unknown[0] = False
    with_nan = torch.where(unknown, torch.nan, rewards)
    loss = LossSettings(advantage_estimator=estimator, scale_rewards=scale)
    values = advantages(with_nan, loss, batch_std=2.0)
    assert values[unknown].tolist() == [0.0] * int(unknown.sum())
    assert torch.equal(values[~unknown], advantages(rewards[~unknown], loss, batch_std=2.0))
    assert reward_stats(with_nan) == reward_stats(rewards[~unknown])
    found = diagnosed(with_nan, advantage_estimator=estimator, scale_rewards=scale)
    assert all(value is None or math.isfinite(value) for value in found.values())
