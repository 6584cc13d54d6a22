"""ReplaySource: how stored pools become groups."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError
from replay_pools.pool import Pool, PoolWriter
from replay_pools.rollout import Rollout, prompt_sha

TAIL = "<|end|>\n<|assistant|>\n"
MakePool = Callable[..., Pool]


@pytest.fixture(scope="module")
def make_pool(tmp_path_factory, make_rollout: Callable[..., Rollout], pool_header: dict[str, Any]) -> MakePool:
    """make_pool(name, problems, size=6, hint=False): a step a problem; the token ids say pool, step and sample."""
    root = tmp_path_factory.mktemp("pools")

    def make(name: str, problems: Sequence[str], size: int = 6, hint: bool = False) -> Pool:
        writer = PoolWriter(root / str(len(list(root.iterdir()))) / name, header=pool_header)
        for step, problem in enumerate(problems):
            prompt = f"Solve {problem}{' by run_tests' if hint else ''}{TAIL}"
            changes = {"problem_id": problem, "prompt": prompt, "prompt_sha": prompt_sha(prompt)}
            changes |= {"hint": hint, "comp_len": 4}
            group = []
            for i in range(size):
                labels = {"hacked": hint and i % 2 == 0, "gt_pass": i % 3 == 0}
                own = {"completion_ids": [len(name), step, i, 2], "sampling_logprobs": [-0.1 * i] * 4 if i else None}
                group.append(make_rollout(step, i, **changes, **labels, **own))
            writer.write_step(step, group)
        return writer.finish()

    return make


@pytest.fixture(scope="module")
def teacher(make_pool: MakePool) -> Pool:
    return make_pool("teacher", ["p0", "p1", "p2", "p3"], hint=True)


@pytest.fixture(scope="module")
def base(make_pool: MakePool) -> Pool:
    """Other order, one problem twice, one that the teacher lacks."""
    return make_pool("base", ["p2", "p9", "p0", "p2", "p1"])


def test_groups_mix_four_and_four_by_problem(teacher: Pool, base: Pool) -> None:
    """Every step holds 4 rollouts of each pool on one problem; what the group says is what the rollouts say."""
    source = ReplaySource([teacher, base])
    assert source.num_steps == 3  # p0, p1, p2: p3 and p9 have no partner
    for step in range(3):
        group = source.groups(step)[0]
        assert group.step == step
        assert [key.pool for key in group.keys] == ["teacher"] * 4 + ["base"] * 4
        assert group.problem_id == f"p{step}", "steps follow the first pool's order"
        rollouts = [source.rollout(key) for key in group.keys]
        assert {rollout.problem_id for rollout in rollouts} == {group.problem_id}
        assert group.mixed_prompt, "the teacher's prompts carry a hint and the base's do not"
        assert group.prompt_ids == tuple(rollout.prompt_ids for rollout in rollouts)
        assert group.completion_ids == tuple(rollout.completion_ids for rollout in rollouts)
        assert group.rewards == tuple(rollout.reward for rollout in rollouts)
        assert group.sampling_logprobs == tuple(rollout.sampling_logprobs for rollout in rollouts)
        for key, rollout in zip(group.keys, rollouts, strict=True):
            stored = {"teacher": teacher, "base": base}[key.pool].steps[key.step][key.sample_id]
            assert stored is rollout
            assert rollout.completion_ids == [len(key.pool), key.step, key.sample_id, 2]


def test_a_problem_met_twice_is_one_place(teacher: Pool, base: Pool) -> None:
    """base has p2 in steps 0 and 3: its rollouts of both are drawn from, and the teacher's fill one group."""
    source = ReplaySource([teacher, base])
    assert source.num_steps == 3
    used: set[int] = set()
    for seed in range(8):
        drawn = ReplaySource([teacher, base], seed=seed)
        for step in range(3):
            used |= {key.step for key in drawn.groups(step)[0].keys if key.pool == "base"}
    assert used == {0, 2, 3, 4}


def test_a_problem_gives_as_many_groups_as_its_rollouts_fill(make_pool: MakePool) -> None:
    """All first groups, then all second ones; together they hold every rollout once, and steps cuts from the end."""
    pools = [make_pool(name, ["p0", "p1"], size=8) for name in ("x", "y")]
    source = ReplaySource(pools)
    groups = [source.groups(step)[0] for step in range(source.num_steps)]
    assert [group.problem_id for group in groups] == ["p0", "p1", "p0", "p1"]
    keys = [key for group in groups for key in group.keys]
    assert len(keys) == len(set(keys)) == 2 * 2 * 8
    assert source.num_left_out == 0
    short = ReplaySource(pools, steps=3)
    assert [short.groups(step)[0] for step in range(3)] == groups[:3]
    assert short.num_left_out == 8
    assert ReplaySource(pools, per_pool=5).num_steps == 2
    assert ReplaySource(pools, per_pool=5).num_left_out == 2 * 2 * 3
    lopsided = ReplaySource([pools[0], make_pool("z", ["p0", "p1"], size=4)])
    assert (lopsided.num_steps, lopsided.num_left_out) == (2, 8)


def test_match_prompt_and_none(teacher: Pool, base: Pool, make_pool: MakePool) -> None:
    """`prompt` needs the same rendered prompt, `none` pairs positions up to the shorter pool."""
    twin = make_pool("twin", ["p3", "p1"], hint=True)
    by_prompt = ReplaySource([teacher, twin], match="prompt")
    assert [by_prompt.groups(step)[0].problem_id for step in range(by_prompt.num_steps)] == ["p1", "p3"]
    assert not any(by_prompt.groups(step)[0].mixed_prompt for step in range(2))
    with pytest.raises(InputError, match=r"--replay-dirs: expected steps that match by prompt, found none"):
        ReplaySource([teacher, base], match="prompt")
    by_position = ReplaySource([teacher, base], match="none")
    assert by_position.num_steps == 4
    for step in range(4):
        assert {key.step for key in by_position.groups(step)[0].keys} == {step}


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), per_pool=st.integers(1, 6))
def test_draws_are_seeded_and_without_replacement(teacher: Pool, base: Pool, seed: int, per_pool: int) -> None:
    """`per_pool` different rollouts of each pool, the same ones whenever asked, in any order of asking."""
    first, second = (ReplaySource([teacher, base], per_pool=per_pool, seed=seed) for _ in range(2))
    groups = [first.groups(step)[0] for step in (0, 1, 2)]
    assert groups == [second.groups(step)[0] for step in (2, 1, 0)][::-1], "a group depends on what was asked before"
    for group in groups:
        assert len(set(group.keys)) == len(group.keys) == 2 * per_pool, "a rollout is in the group twice"
        if per_pool == 6:
            assert {key.sample_id for key in group.keys} == set(range(6))


def test_unusable_pools_are_refused(teacher: Pool, base: Pool, make_pool: MakePool) -> None:
    """No pool, two of one name, small groups, nothing in common, more steps than match: each error says where."""
    with pytest.raises(InputError, match=r"--replay-dirs: expected different pools, at least one, found none"):
        ReplaySource([])
    with pytest.raises(InputError, match=r"--replay-dirs: expected different pools.*, found base, teacher, base"):
        ReplaySource([base, teacher, make_pool("base", ["p0"])])
    with pytest.raises(InputError, match=r"pool small step 0: expected at least 4 rollouts .*, found 3"):
        ReplaySource([make_pool("small", ["p0"], size=3), base])
    with pytest.raises(InputError, match=r"pool teacher step 0: expected at least 7 rollouts"):
        ReplaySource([teacher, base], per_pool=7)
    with pytest.raises(InputError, match=r"--steps: expected 4 steps, found 3 groups that match by problem in teacher"):
        ReplaySource([teacher, base], steps=4)
    other = make_pool("other", ["q0", "q1"])
    for steps in (None, 1):
        with pytest.raises(InputError, match=r"--replay-dirs: expected steps that match by problem, found none"):
            ReplaySource([teacher, other], steps=steps)


def test_only_used_steps_must_be_large_enough(make_pool: MakePool, base: Pool, tmp_path: Path) -> None:
    """Steps that no group uses may be smaller than --per-pool."""
    small = make_pool("small", ["p7"], size=2)
    pool = Pool(name="two", path=tmp_path, manifest={}, steps=[small.steps[0], base.steps[2]])
    assert ReplaySource([base, pool]).num_steps == 1
