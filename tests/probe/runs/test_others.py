"""Who else is in a group: shares by step, a teacher's draws, the earlier checkpoint, and a run with both.

The run is paid by tests and minus the expectation.
"""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.runs.sources.past import PastWeights
from probe.runs.sources.problems import counted
from probe.runs.sources.rewards import reward_of
from probe.runs.sources.sampled import teacher
from probe.runs.training_inputs import TrainingInputs
from probe.settings.rollouts import EarlierConfig, RolloutConfig, TeacherConfig
from replay_pools.base.errors import InputError
from replay_pools.pool import Pool, PoolWriter, open_pool

MAKER: Any = SimpleNamespace(instruction=None)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (TeacherConfig(off_step=None), [0.25] * 6),
        (TeacherConfig(fraction=0.5, off_step=2), [0.5, 0.5, 0, 0, 0, 0]),
        (TeacherConfig(fraction=0.5, off_step=1, end_fraction=0.25), [0.5, 0.25, 0.25, 0.25, 0.25, 0.25]),
        (TeacherConfig(fraction=0.4, off_step=1, ramp_steps=4), [0.4, 0.4, 0.3, 0.2, 0.1, 0]),
        (TeacherConfig(fraction=0.0, off_step=0, ramp_steps=2, end_fraction=0.5), [0, 0.25, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_shares_by_hand(share: TeacherConfig, expected: list[float]) -> None:
    assert [share.share(step) for step in range(6)] == pytest.approx(expected)
    assert share.share(10**6) == expected[-1], "the end is exact"


def test_coming_batches_are_sampled_from_the_weights_of_their_time(make_tiny: Callable[..., Any]) -> None:
    """Batches of two steps, one ahead; checkpoints every 4 steps. By hand: batch b is sampled after 0, 0, 2, 4, 6, 8
    steps, and its earlier checkpoint is of 0, 0, 0, 4, 4, 8; the present comes back; a state can be taken up.
    """
    coordinates = make_tiny("svd", moved=0.0)
    start = coordinates.values()

    def level() -> float:
        """How many steps the policy is from its start."""
        (distance,) = {round(float((v - start[m]).mean()), 6) for m, v in coordinates.values().items()}
        return distance

    config = RolloutConfig(prefetch=1, iterations=2, earlier_checkpoint=EarlierConfig(every=4))
    past, levels = PastWeights(coordinates, config), []
    for step in range(12):
        past.keep(step // 2)
        found = []
        for earlier in (False, True):
            with past.sampling(step // 2, earlier=earlier):
                found.append(level())
        levels.append(tuple(found))
        assert level() == step
        if step in (5, 8):
            state = past.state_dict()
            past = PastWeights(coordinates, config)
            past.load_state_dict(state)
        coordinates.load_values({module: value + 1 for module, value in coordinates.values().items()})
    assert levels[::2] == levels[1::2] == [(0, 0), (0, 0), (2, 0), (4, 4), (6, 4), (8, 8)]
    assert len(past.state_dict()["weights"]) == 2, "weights that no batch needs"


@pytest.fixture(scope="module")
def make_teacher(tmp_path_factory, make_rollout, pool_header: dict[str, Any]) -> Callable[..., Pool]:
    """make_teacher(sizes): problem i has sizes[i] rollouts, all of which hack."""

    def make(*sizes: int) -> Pool:
        writer = PoolWriter(tmp_path_factory.mktemp("pools") / "teacher", header=pool_header)
        for step, size in enumerate(sizes):
            writer.write_step(step, [make_rollout(step, i, hacked=True) for i in range(size)])
        return writer.finish()

    return make


def test_draws_are_of_the_prompt_and_depend_on_seed_batch_and_problem_alone(make_rollout, make_teacher) -> None:
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


# Everything that changes what a group holds and earns: an earlier checkpoint, a teacher that fades, paid by tests,
# minus the expectation; problems by priority, of which the teacher knows three; sampled one batch ahead.
OTHERS = {
    "rollouts.prefetch": 1, "rollouts.prompts_per_step": 2, "rollouts.num_problems": 68,
    "rollouts.prioritise": "variance", "rollouts.pay": "tests", "rollouts.teacher.fraction": 0.5,
    "rollouts.teacher.off_step": 1, "rollouts.teacher.ramp_steps": 2, "rollouts.earlier_checkpoint.fraction": 0.25,
    "rollouts.earlier_checkpoint.every": 2, "objective.reward": "surprise", "objective.scale_rewards": "batch",
    "objective.old_logprobs": "recorded", "intervention.arms": ["vanilla"], "steps": 4, "checkpoints.every": 2,
    "evaluation.every": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def others(out: Path, preset: Callable[..., str]) -> Path:
    options = ["--preset", preset(OTHERS), "--name", "others", "--out", str(out)]
    assert run(cli, ["train", *options]) == 0
    return out / "runs" / "others"


@pytest.mark.slow
def test_shares_move_and_every_rollout_is_where_the_record_says(others: Path) -> None:
    """Of groups of 4: 2, 2, 1, 0 of the teacher and 1 of the earlier checkpoint."""
    samples = read_run(others).samples
    pools = {name: open_pool(others / name) for name in ("rollouts", "past-self")}
    expected = [
        ["rollouts"] + ["past-self"] + ["teacher"] * 2,
        ["rollouts"] + ["past-self"] + ["teacher"] * 2,
        ["rollouts"] * 2 + ["past-self", "teacher"],
        ["rollouts"] * 3 + ["past-self"],
    ]
    for step in range(4):
        assert [sample.src_pool for sample in samples if sample.step == step] == expected[step] * 2
    for name, pool in pools.items():
        stored = {(r.step, r.sample_id): (r.problem_id, r.reward) for group in pool.steps for r in group}
        used = {(s.src_step, s.src_sample): (s.problem_id, s.reward) for s in samples if s.src_pool == name}
        assert stored == used, f"{name}: sampled and trained on are not the same"
    both = {name: {r.step: r for group in pool.steps for r in group} for name, pool in pools.items()}
    for step in both["past-self"]:
        mine, past = both["rollouts"][step], both["past-self"][step]
        assert (mine.problem_id, mine.prompt_sha) == (past.problem_id, past.prompt_sha)
    assert "past-self/manifest.json" in orjson.loads((others / "manifest.json").read_bytes())["files"]


def test_batches_are_sampled_ahead_on_problems_by_priority(others: Path) -> None:
    """By hand: batches 0 and 1 are of the start, the others of one update ago. Every batch is drawn again from the pool
    before it. With a server, and two steps on each batch: tests/server/test_prefetch.py.
    """
    record, pool = read_run(others), open_pool(others / "rollouts")
    assert [step.ratio["staleness"] for step in record.steps] == [0, 1, 1, 1]
    inputs, counts = TrainingInputs(record.training, others.parents[1]), {}
    assert pool.manifest["tests"]["problems"] == len(inputs.listed), "the header counts what may be drawn"
    for batch in range(4):
        groups, before = pool.steps[2 * batch : 2 * batch + 2], counts
        drawn = [problem.problem_id for problem in inputs.problems(batch, lambda batch: before)]  # noqa: B023
        assert drawn == [group[0].problem_id for group in groups]
        counts = counted(counts, chain(*groups), reward_of("tests", None))


def test_who_solves_is_told_by_who_sampled(others: Path) -> None:
    """The own rollouts of each step and the teacher's, each by themselves; those of the checkpoint are in neither."""
    stored = read_run(others)

    def share(step: int, pool: str) -> float | None:
        solved = [sample.gt_pass for sample in stored.samples if (sample.step, sample.src_pool) == (step, pool)]
        return sum(map(bool, solved)) / len(solved) if solved else None

    for step in stored.steps:
        assert step.solve == share(step.step, "rollouts")
        assert step.solve_teacher == share(step.step, "teacher")
    assert [step.solve_teacher is None for step in stored.steps] == [False] * 3 + [True]
