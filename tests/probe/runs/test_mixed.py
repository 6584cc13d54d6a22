"""probe.runs.sources.others: groups with a teacher's rollouts on the very same prompt, by seed, for so many steps."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from probe.runs.sources.live import LiveSource
from probe.runs.sources.others import taught_problems, teacher
from probe.step.groups import RolloutKey, stored_reward
from replay_pools.base.errors import InputError
from replay_pools.pool import Pool, PoolWriter
from replay_pools.rollout import Rollout

G, OFF_STEP, STEPS = 4, 4, 8


class Live(LiveSource):
    """A LiveSource with rollouts made by hand: two iterations of batches of two problems."""

    def __init__(self, make_rollout: Callable[..., Rollout], **changes: Any) -> None:
        self._make, self._changes, self._sizes = make_rollout, changes, list[int]()
        self._iterations, self._reward, self.num_steps = 2, stored_reward, STEPS

    def sampled(self, batch: int, engine: Any = None) -> list[list[tuple[RolloutKey, Rollout]]]:
        groups = []
        for place, problem in enumerate((batch % 3, (batch + 1) % 3)):
            rollouts = [self._make(problem, i, **self._changes) for i in range(self._sizes[batch])]
            groups.append([(RolloutKey("rollouts", 2 * batch + place, i), own) for i, own in enumerate(rollouts)])
        return groups


@pytest.fixture(scope="module")
def make_teacher(
    tmp_path_factory: pytest.TempPathFactory, make_rollout: Callable[..., Rollout], pool_header: dict[str, Any]
) -> Callable[..., Pool]:
    """make_teacher(sizes): problem i has sizes[i] rollouts, all of which hack."""

    def make(*sizes: int) -> Pool:
        writer = PoolWriter(tmp_path_factory.mktemp("pools") / "teacher", header=pool_header)
        for step, size in enumerate(sizes):
            writer.write_step(step, [make_rollout(step, i, hacked=True) for i in range(size)])
        return writer.finish()

    return make


@pytest.fixture
def mixed(make_rollout: Callable[..., Rollout], make_teacher: Callable[..., Pool]) -> Callable[..., LiveSource]:
    def make(seed: int = 0, num_teacher: int = 2, live: Live | None = None) -> LiveSource:
        live = live or Live(make_rollout)
        counts = [num_teacher if 2 * batch < OFF_STEP else 0 for batch in range(STEPS // 2)]
        live.others, live._sizes = [teacher(make_teacher(6, 6, 6), counts, seed=seed)], [G - own for own in counts]
        return live

    return make


def test_groups_are_the_policys_first_and_the_teachers_last(mixed) -> None:
    """Before off_step G - n live rollouts and n of the teacher's, different ones, on one and the same prompt; from
    off_step on G live ones.
    """
    source = mixed()
    for step in range(STEPS):
        for group in source.groups(step):
            assert group.step == step
            last = "teacher" if step < OFF_STEP else "rollouts"
            assert [key.pool for key in group.keys] == ["rollouts", "rollouts", last, last]
            assert len(set(group.keys)) == G
            assert not group.mixed_prompt
            assert len({tuple(ids) for ids in group.prompt_ids}) == 1, "the baseline is shared by different prompts"
            rollouts = [source.rollout(key) for key in group.keys]
            assert {rollout.problem_id for rollout in rollouts} == {group.problem_id}
            assert group.rewards == tuple(rollout.reward for rollout in rollouts)
            assert [rollout.hacked for rollout in rollouts] == [key.pool == "teacher" for key in group.keys]


def test_draws_depend_on_seed_batch_and_problem_alone(mixed) -> None:
    """Steps on one batch train on the same rollouts, whatever was asked before; other seeds and batches draw others."""
    source, again = mixed(), mixed()
    keys = [[group.keys for group in source.groups(step)] for step in range(OFF_STEP)]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert [[g.keys for g in again.groups(step)] for step in (3, 1)] == [keys[3], keys[1]]
    draws = {tuple(group.keys for group in mixed(seed).groups(0)) for seed in range(8)}
    assert len(draws) > 4, "the seed does not draw"
    both = [[mixed(seed).groups(step)[1 - step // 2] for step in (0, 2)] for seed in range(8)]
    assert {group.problem_id for groups in both for group in groups} == {"fake/1"}
    alike = [[key.sample_id for key in one.keys] == [key.sample_id for key in two.keys] for one, two in both]
    assert sum(alike) < 4, "a problem that is met again is taught by the same rollouts"


def test_a_teacher_on_other_prompts_is_refused(make_rollout, mixed) -> None:
    """The same problem without its hint is another prompt: a baseline over both would compare prompts."""
    with pytest.raises(InputError, match=r"pool teacher: .*found none on the prompt of fake/0 \(run_tests, no hint\)"):
        mixed(live=Live(make_rollout, hint=False)).groups(0)


def test_a_prompt_with_too_few_rollouts_is_refused(make_teacher) -> None:
    with pytest.raises(InputError, match="pool teacher step 1: expected at least 2 rollouts of a prompt, found 1"):
        teacher(make_teacher(6, 1), [2, 0], seed=0)


def test_a_teacher_teaches_the_problems_that_it_knows(make_teacher) -> None:
    problems = [SimpleNamespace(problem_id=f"fake/{i}") for i in (3, 1, 0)]
    assert taught_problems(problems, make_teacher(2, 2, 2)) == problems[1:]  # pyright: ignore
    with pytest.raises(InputError, match="expected rollouts on problems that are trained on, found none"):
        taught_problems(problems[:1], make_teacher(2))  # pyright: ignore
