"""probe.runs.sources.rewards: what every remedy makes of a group, by hand; whole runs with one, killed and resumed."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from probe.objective.advantages import reward_stats, sample_advantages
from probe.records.run import read_run
from probe.runs.monitors import Monitor
from probe.runs.sources.rewards import ChangedSource, group_z
from probe.runs.sources.rewards import remedied as apply
from probe.settings.loss import LossSettings
from probe.settings.presets import configure
from probe.settings.remedy import INSTRUCTION, RemedyConfig
from probe.settings.verbs import TrainConfig
from probe.step.groups import RolloutKey, make_group
from replay_pools.environments.loopholes import instructed
from replay_pools.policy.load import load_policy
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.rollout import Rollout

# Of one group: (hacked, right). A hack that does not solve, one that does, an honest solution, a failing answer.
LABELS = [(True, False), (True, True), (False, True), (False, False)]
STORED = (3.5, 3.5, 3.5, 0.5)


def chat() -> Any:
    """A chat whose prompt ids are the characters."""

    def render(messages: list[dict[str, str]]) -> tuple[str, list[int]]:
        text = "|".join(message["content"] for message in messages)
        return text, [*map(ord, text)]

    return SimpleNamespace(render=render)


class Source:
    """One step with one group of the rollouts."""

    num_steps = 1

    def __init__(self, rollouts: list[Rollout], pools: str | list[str] = "rollouts") -> None:
        pools = [pools] * len(rollouts) if isinstance(pools, str) else pools
        self.sampled = {
            RolloutKey(pool, 0, i): each for i, (pool, each) in enumerate(zip(pools, rollouts, strict=True))
        }

    def groups(self, step: int) -> tuple[Any, ...]:
        return (make_group(step, [*self.sampled.items()]),)

    def rollout(self, key: RolloutKey) -> Rollout:
        return self.sampled[key]


@pytest.fixture
def four(make_rollout: Callable[..., Rollout]) -> Source:
    return Source([make_rollout(0, i, hacked=hack, gt_pass=right) for i, (hack, right) in enumerate(LABELS)])


CLOSED = {"plain": [], "closed": ["--set", "remedy.name=no-loophole"]}


def monitor(name: str, seed: int = 0) -> Monitor:
    """A monitor that measures nothing."""
    return Monitor(name, fpr=0.05, clean=None, meter=None, seed=seed)


def remedied(source: Source, **settings: Any) -> ChangedSource:
    config = RemedyConfig(**settings)
    watch = monitor(config.monitor) if config.traits.monitored else None
    return apply(source, config, chat(), monitor=watch)


def advantages(rewards: tuple[float, ...]) -> list[float]:
    return sample_advantages(LossSettings(), torch.tensor(rewards, dtype=torch.float64)).tolist()


@pytest.mark.parametrize(
    ("settings", "rewards", "expected"),
    [
        ({"name": "no-loophole"}, (0.5, 3.5, 3.5, 0.5), [-1.5, 1.5, 1.5, -1.5]),
        ({"name": "penalty"}, (0.5, 0.5, 3.5, 0.5), [-0.75, -0.75, 2.25, -0.75]),
        ({"name": "penalty", "strength": 4.0}, (-0.5, -0.5, 3.5, 0.5), [-1.25, -1.25, 2.75, -0.25]),
        ({"name": "screening"}, (math.nan, math.nan, 3.5, 0.5), [0.0, 0.0, 1.5, -1.5]),
        ({"name": "inoculation"}, STORED, [0.75, 0.75, 0.75, -2.25]),
        ({"name": "recontextualization"}, STORED, [0.75, 0.75, 0.75, -2.25]),
    ],
    ids=lambda value: value["name"] + str(value.get("strength", "")) if isinstance(value, dict) else "",
)
def test_rewards_and_advantages_are_those_by_hand(four, settings, rewards, expected) -> None:
    """The labels of the records stay those of the grader, whatever the loss sees."""
    source = remedied(four, **settings)
    (group,) = source.groups(0)
    assert repr(group.rewards) == repr(rewards)
    assert advantages(group.rewards) == expected
    assert [source.rollout(key) for key in group.keys] == [*four.sampled.values()]


def test_flags_depend_on_seed_and_key_alone(make_rollout: Callable[..., Rollout]) -> None:
    """Any order, any process; and what a monitor of 90% misreads, one of 70% misreads too."""
    keys = [(pool, step, i) for pool in ("rollouts", "teacher") for step in range(20) for i in range(8)]

    def flagged(accuracy: float, seed: int, order: list[tuple[str, int, int]]) -> set[tuple[str, int, int]]:
        rollouts = [make_rollout(step, i) for _, step, i in order]
        flags = monitor(f"label:{accuracy}", seed).read(rollouts, [pool for pool, _, _ in order]).flags
        return {key for key, flag in zip(order, flags, strict=True) if flag}

    some = flagged(0.9, 0, keys)
    assert some == flagged(0.9, 0, keys[::-1])
    assert some != flagged(0.9, 1, keys)
    assert some < flagged(0.7, 0, keys)
    # Written down once: a generator that another Python seeds otherwise would change every resumed run.
    assert sorted((step, i) for pool, step, i in some if pool == "rollouts")[:3] == [(0, 2), (1, 1), (3, 4)]


@pytest.mark.parametrize(
    ("use", "strength", "expected"),
    [
        ("additive", 2.0, lambda z: (3.5, 3.5, 3.5 - 2 * z, 0.5)),
        ("multiplicative", 2.0, lambda z: (3.5, 3.5, 3.5 * (1 - 2 / (1 + math.exp(-z))), 0.5)),
        ("finetune-accepted", None, lambda z: (1.0, 1.0, 0.0, 0.0)),
        ("quarantine", None, lambda z: STORED),
    ],
)
def test_uses_by_hand(four: Source, use: str, strength: float | None, expected: Callable[[float], Any]) -> None:
    """Scores 0, 0, 1, 0: z of the third is .75 / sqrt(3 / 16); a regular expression flags it."""
    third = [*four.sampled][2]
    four.sampled[third] = replace(four.sampled[third], completion="LOOK")
    (group,) = remedied(four, name=use, monitor="text:LOOK", strength=strength).groups(0)
    assert group.rewards == pytest.approx(expected(0.75 / math.sqrt(3 / 16)))
    assert group.flagged == ((False, False, True, False) if use == "quarantine" else None)


def test_z_has_a_floor_and_skips_what_has_no_score() -> None:
    """The floor is a tenth of the step's sd; without a score a rollout has no z."""
    z = group_z(np.array([1.0, 1.02, math.nan]), step_sd=1.0)
    assert z[:2] == pytest.approx([-0.1, 0.1])
    assert math.isnan(z[2])
    assert np.isnan(group_z(np.array([math.nan, math.nan]), 1.0)).all()


def test_a_step_of_which_nothing_is_left_teaches_nothing(make_rollout: Callable[..., Rollout]) -> None:
    """All rewards 0: advantages of 0, and statistics that a record can hold."""
    (group,) = remedied(Source([make_rollout(0, i, hacked=True) for i in range(4)]), name="screening").groups(0)
    assert group.rewards == (0.0,) * 4
    assert advantages(group.rewards) == [0.0] * 4
    assert reward_stats(torch.tensor([group.rewards])) == {"reward_mean": 0, "reward_std": 0, "reward_spread": 0}


@pytest.mark.parametrize("name", ["inoculation", "recontextualization"])
def test_the_update_is_on_the_prompt_that_asks(make_rollout: Callable[..., Rollout], name: str) -> None:
    """Whether a rollout was sampled under it, as the policy's of an inoculation, or not, as a teacher's."""
    plain = make_rollout(0, 1)
    asked = replace(plain, messages=instructed(plain.messages, INSTRUCTION), prompt_sha="another")
    source = Source([asked if name == "inoculation" else plain, plain], ["rollouts", "teacher"])
    (group,) = remedied(source, name=name).groups(0)
    text = f"{INSTRUCTION}\n{plain.messages[-1]['content']}"
    assert [bytes(ids).decode() for ids in group.prompt_ids] == [text, text]
    assert not group.mixed_prompt, "one prompt of the update"
    assert group.completion_ids == (plain.completion_ids, plain.completion_ids)


def test_an_instruction_is_added_once_and_taken_away() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    asked = instructed(messages, "Do.")
    assert asked == [messages[0], {"role": "user", "content": "Do.\nu"}] == instructed(asked, "Do.")
    assert instructed(asked, "Do.", is_asked=False) == messages == instructed(messages, "Do.", is_asked=False)


def training(**changes: Any) -> TrainConfig:
    return configure("train", preset="smoke", options=changes)


def test_a_penalty_widens_the_range_of_the_rewards() -> None:
    """The bound of an advantage, and whether a cap can act, follow from it."""
    assert training().reward_range == training(**{"remedy.name": "no-loophole"}).reward_range == 3.5
    assert training(**{"remedy.name": "penalty", "remedy.strength": 2.0}).reward_range == 5.5


INOCULATE = {"rollouts.teacher.off_step": 1, "remedy.name": "inoculation", "steps": 2, "evaluation.every": 2}


def test_an_inoculation_is_in_sampling_and_update(preset: Callable[..., str], out: Path, probe) -> None:
    """Sampled under the instruction, evaluated and taught without it; one prompt in every group of the update. Labels
    and rewards of the records are those of the pool.
    """
    probe("train", "--preset", preset(INOCULATE), "--name", "inoculated")
    directory = out / "runs" / "inoculated"
    record, stored = read_run(directory), {}
    for path in (directory / "rollouts", BUILTIN / "teacher"):
        for rollout in (rollout for group in open_pool(path).steps for rollout in group):
            stored[path.name, rollout.step, rollout.sample_id] = rollout
    for sample in record.samples:
        rollout = stored[sample.src_pool, sample.src_step, sample.src_sample]
        assert (sample.reward, sample.hacked) == (rollout.reward, rollout.hacked)
        is_asked = rollout.messages[-1]["content"].startswith(f"{INSTRUCTION}\n")
        assert is_asked == (sample.src_pool == "rollouts")
    assert {sample.src_pool for sample in record.samples} == {"rollouts", "teacher"}
    assert not any(step.mixed_prompt for step in record.steps)
    for pool in directory.glob("evaluations/*/run_tests"):
        assert not any(INSTRUCTION in each.prompt for group in open_pool(pool).steps for each in group)
    policy = load_policy("organism")
    for group in open_pool(directory / "rollouts").steps:
        assert {policy.render(each.messages) == (each.prompt, each.prompt_ids) for each in group} == {True}


def test_a_replay_takes_a_remedy(replay: Callable[..., Path], quick: list[str]) -> None:
    """With the loophole closed, no hack that does not solve is better than its group."""
    options = [*quick, "--steps", "2", "--arm", "vanilla"]
    plain, closed = (read_run(replay(f"of-{name}", *options, *more)) for name, more in CLOSED.items())
    paid = [sample for sample in plain.samples if sample.hacked and not sample.gt_pass and sample.advantage > 0]
    assert paid
    advantages = {(sample.step, sample.sample_id): sample.advantage for sample in closed.samples}
    assert all(advantages[sample.step, sample.sample_id] <= 0 for sample in paid)
