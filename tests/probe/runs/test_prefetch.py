"""Prefetching in one process: how stale rollouts are, and a run that is cut off and has lost some.

That they are those of sampling ahead: tests/server/test_prefetch.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from directories import contents
from processes import interrupted_at

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.runs import loop
from replay_pools.pool import PoolWriter

RECORDED = {
    "objective.old_logprobs": "recorded",
    "objective.entropy_coef": 0.1,  # moves the policy where no reward does
    "rollouts.prompts_per_step": 1,
    "evaluation.every": 9,
    "optimizer.lr": 0.03,
}
# One ahead, two steps on each: a teacher in the first, dynamic sampling, a quarantine; a checkpoint every third step.
TWICE = RECORDED | {
    "rollouts.prefetch": 1,
    "rollouts.iterations": 2,
    "rollouts.dynamic_sampling": 1,
    "rollouts.teacher.off_step": 2,
    "intervention.arms": ["projected-at-deployment"],
    "steps": 6,
    "checkpoints.every": 3,
}


def trained(out: Path, preset: str, name: str, code: int = 0) -> Path:
    assert run(cli, ["train", "--preset", preset, "--name", name, "--out", str(out)]) == code
    return out / "runs" / name


@pytest.fixture(scope="module")
def ahead(out: Path, preset: Callable[..., str]) -> Path:
    return trained(out, preset(TWICE), "prefetch-twice")


def test_the_records_say_how_stale_the_rollouts_are(ahead: Path) -> None:
    """By hand: batches 0 and 1 are of the start, batch 2 is of the policy that has made the two updates of batch 0."""
    steps = read_run(ahead).steps
    assert [step.ratio["staleness"] for step in steps] == [0, 1, 2, 3, 2, 3]
    moved = max(abs(step.ratio["mean"] - 1) for step in steps)
    assert moved > 1e-3, "no policy has moved since it sampled: the test shows nothing"


def test_a_batch_that_is_lost_is_sampled_again_from_the_weights_of_its_time(
    ahead: Path, out: Path, preset: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off in step 4, whose checkpoint is that of 3 steps; in the rollouts of a batch; and in a later step. Each
    time the rollouts are lost, too, from the batch on at which the run goes on."""
    options = (out, preset(TWICE), "prefetch-cut")
    for owner, function, call in [(loop, "write_samples", 5), (PoolWriter, "write_step", 3), (loop, "write_steps", 2)]:
        monkeypatch.setattr(owner, function, interrupted_at(call, getattr(owner, function)))
        directory = trained(*options, code=130)
        monkeypatch.undo()
        assert not (directory / "manifest.json").exists(), f"{function}: it was not cut off"
        (checkpoint,) = (directory / "checkpoint").glob("step_*.pt")
        batch = int(checkpoint.stem[-6:]) // 2
        lost = [path for path in (directory / "rollouts").glob("step_*") if int(path.name[5:8]) >= 2 * batch]
        assert lost, f"{function}: nothing to lose"
        for path in lost:
            path.unlink()
    assert contents(trained(*options)) == contents(ahead)
