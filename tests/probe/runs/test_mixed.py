"""probe.runs.sources.sampled: a teacher's rollouts on the very same prompt, by seed, batch and problem.

In the groups of a run: test_train.py and test_others.py.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from probe.runs.sources.sampled import teacher
from replay_pools.base.errors import InputError
from replay_pools.pool import Pool, PoolWriter
from replay_pools.rollout import Rollout

MAKER: Any = SimpleNamespace(instruction=None)


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


def test_draws_are_of_the_prompt_and_depend_on_seed_batch_and_problem_alone(
    make_rollout: Callable[..., Rollout], make_teacher: Callable[..., Pool]
) -> None:
    """Two different rollouts for each group in batches 0 and 1, none in batch 2, whatever was asked before."""
    pool, live = make_teacher(6, 6, 6), [make_rollout(problem) for problem in (1, 2)]
    draws = [teacher(pool, [2, 2, 0], MAKER, seed=seed) for seed in range(8)]
    for group, rollout in zip(draws[0](0, live), live, strict=True):
        assert len({key.sample_id for key, _ in group}) == 2
        assert {key.pool for key, _ in group} == {"teacher"}
        assert {own.prompt_sha for _, own in group} == {rollout.prompt_sha}
        assert all(own.hacked for _, own in group)
    assert draws[0](2, live) == [[], []]
    assert draws[0](1, live[1:]) == teacher(pool, [2, 2, 0], MAKER, seed=0)(1, live)[1:]
    chosen = {
        (seed, batch): str([key for key, _ in draws[seed](batch, live)[0]]) for seed in range(8) for batch in (0, 1)
    }
    assert len({chosen[seed, 0] for seed in range(8)}) > 4, "the seed does not draw"
    alike = sum(chosen[seed, 0] == chosen[seed, 1] for seed in range(8))
    assert alike < 4, "a problem that is met again is taught by the same rollouts"


def test_a_teacher_without_the_rollouts_is_refused(make_rollout, make_teacher) -> None:
    """The same problem without its hint is another prompt: a baseline over both would compare prompts."""
    with pytest.raises(InputError, match=r"pool teacher: .*found none on the prompt of fake/0 \(run_tests, no hint\)"):
        teacher(make_teacher(6), [2], MAKER, seed=0)(0, [make_rollout(0, hint=False)])
    with pytest.raises(InputError, match="pool teacher step 1: expected at least 2 rollouts of a prompt, found 1"):
        teacher(make_teacher(6, 1), [2, 0], MAKER, seed=0)
