"""One live step: live equals replay, the mean comes before the gate, and the step is AdamW's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from adapted import configured, members_of, random_directions

from probe.runs.sources.live import LiveSource
from probe.runs.sources.problems import choose_problems
from probe.runs.training_inputs import TrainingInputs
from probe.settings.arms import get_arm
from probe.settings.loss import LossSettings
from probe.settings.presets import configure
from probe.settings.training import ModelConfig
from probe.step.bases import Bases, weighted_sums
from probe.step.groups import ReplaySource
from probe.step.projection import project_modules
from probe.step.reference import References
from probe.step.step import Measure, StepResult, train_step
from replay_pools.environments.registry import get_environment
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader
from replay_pools.policy.load import load_policy
from replay_pools.pool import Sampler, open_pool
from replay_pools.sampling import LocalEngine


def measure(coordinates):
    """Fixed random directions: what is tested here does not depend on what they mean."""
    vectors = random_directions(coordinates).vectors
    return Measure(condition="default", arm=get_arm("projected"), vectors=vectors, side="one_sided")


def one_step(coordinates, groups) -> StepResult:
    return train_step(
        Bases(**members_of(coordinates)),
        groups,
        [measure(coordinates)],
        conditions={"default": LossSettings()},
        planning=[[False] * len(ids) for group in groups for ids in group.completion_ids],
        pad_id=0,
        references=References(coordinates),
    )


@pytest.fixture(scope="module")
def live(out: Path):
    """(adapted policy, finished LiveSource of two steps with two prompts, its pool)."""
    policy = load_policy("organism")
    coordinates = configured(policy, "svd", ModelConfig(), out / "cache")
    settings = {"rollouts.prompts_per_step": 2, "rollouts.group": 4, "steps": 2, "seed": 4}
    inputs = TrainingInputs(configure("train", options=settings), out)
    with Grader() as grader:
        rules = {"mode": "run_tests", "hint": True, "group": 4}
        maker = RolloutMaker(engine=LocalEngine(policy), sampler=Sampler(max_new_tokens=48), grader=grader, **rules)
        folder = out / "live" / "rollouts"
        source = LiveSource(folder, inputs, maker, sizes=[4, 4], seed=4, sampling=lambda batch: coordinates.folded())
        for step in range(2):
            source.groups(step)
        source.finish(2)
        yield coordinates, source, open_pool(folder)


@pytest.mark.slow
def test_live_groups_are_what_a_replay_of_their_pool_gives(live) -> None:
    """Every live group equals the replayed group of the same pool step, and both give bit-equal step results."""
    coordinates, source, pool = live
    replayed = ReplaySource([pool], per_pool=4)
    groups = [group for step in range(2) for group in source.groups(step)]
    again = [replace(replayed.groups(i)[0], step=group.step) for i, group in enumerate(groups)]
    assert groups == again
    results = [one_step(coordinates, [own]) for own in (groups[0], again[0])]
    arms = [result.arms[0] for result in results]
    for name in ("cos_nll", "contribution_norms", "sample_haar_sd"):
        assert torch.equal(*(getattr(arm, name) for arm in arms)), f"{name} differs between live and replay"
    assert arms[0].projection.before.norm.equal(arms[1].projection.before.norm)
    assert all(torch.equal(g, results[1].unit["svd"][m]) for m, g in results[0].unit["svd"].items())


def test_the_mean_over_groups_comes_before_the_gate(live) -> None:
    """Slow reference: each group by itself, then the mean of their gradients, then the gate."""
    coordinates, source, _ = live
    groups = source.groups(0)
    parts = []
    for group in groups:
        alone = one_step(coordinates, [group])
        parts.append(weighted_sums(alone.weightings["default"].scale, alone.unit)["svd"])
    mean = {m: sum(part[m] for part in parts) / len(parts) for m in parts[0]}
    expected = project_modules(mean, measure(coordinates).vectors, side="one_sided")
    found = one_step(coordinates, groups).arms[0].projection
    assert float(expected.before.norm) > 0, "no group has reward variance: the test shows nothing"
    for name, value in expected.measures().items():
        torch.testing.assert_close(found.measures()[name], value, rtol=1e-4, atol=1e-6)


def test_every_problem_is_met_before_any_is_met_again() -> None:
    problems = get_environment("minicode").problems("train")[:5]
    chosen = choose_problems(problems, batches=4, prompts_per_step=3, seed=1)
    flat = [problem.problem_id for step in chosen for problem in step]
    assert [len(step) for step in chosen] == [3] * 4
    assert len({*flat[:5]}) == len({*flat[5:10]}) == 5
    assert choose_problems(problems, batches=2, prompts_per_step=3, seed=1) == chosen[:2], "a longer one differs"
    assert choose_problems(problems, batches=4, prompts_per_step=3, seed=2) != chosen
