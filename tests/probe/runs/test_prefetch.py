"""Prefetching in one process: stale rollouts are those that sampling ahead gives, also in a run that was cut off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from directories import contents
from interrupts import interrupted_at

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.runs import loop, train
from probe.runs.sources import sampled
from replay_pools.pool import PoolWriter, open_pool

RECORDED = {
    "objective.old_logprobs": "recorded",
    "objective.entropy_coef": 0.1,  # moves the policy where no reward does
    "rollouts.prompts_per_step": 1,
    "rollouts.sampler.max_new_tokens": 32,
    "evaluation.every": 9,
    "optimizer.lr": 0.03,
}
# One batch ahead, sampled under a remedy that acts on activations.
ONE = RECORDED | {
    "rollouts.prefetch": 1,
    "remedy.name": "preventative-steering",
    "remedy.passes": "update-and-sampling",
}
# One ahead, with rollouts of an earlier checkpoint.
PAST = RECORDED | {"rollouts.prefetch": 1, "rollouts.earlier_checkpoint.every": 2, "steps": 4}
# Two ahead, two steps on each: a teacher in the first, dynamic sampling, a quarantine; a checkpoint every third step.
TWO = RECORDED | {
    "rollouts.prefetch": 2,
    "rollouts.iterations": 2,
    "rollouts.dynamic_sampling": 1,
    "rollouts.teacher.off_step": 2,
    "intervention.arms": ["projected-at-deployment"],
    "steps": 8,
    "checkpoints.every": 3,
}


class Plain:
    """What stands for `PastWeights`: the newest multiple of `every` steps when a batch is sampled, nothing put back."""

    def __init__(self, trained: Any, *, prefetch: int, iterations: int, every: int | None) -> None:
        self.prefetch, self._trained, self._iterations, self._every = prefetch, trained, iterations, every

    def see(self, step: int) -> None:
        if self._every is not None and step % self._every == 0:
            self._values = {module: value.clone() for module, value in self._trained.values().items()}

    def sampling_earlier(self, batch: int) -> Any:
        return self._trained.at(self._values)

    def staleness(self, step: int) -> int:
        return step - self._iterations * max(0, step // self._iterations - self.prefetch)

    def state_dict(self) -> dict[str, Any]:
        return {}


class Eager:
    """The plain way, without any weights put back: every batch is sampled n batches before its steps."""

    def __init__(self, source: Any, past: Any, *server: None) -> None:
        self._source, self._past, self._iterations = source, past, past._iterations
        self._next, self.num_steps = 0, source.num_steps

    def groups(self, step: int) -> Any:
        self._past.see(step)
        ahead = min(step // self._iterations + self._past.prefetch, (self.num_steps - 1) // self._iterations)
        for batch in range(self._next, ahead + 1):
            self._source.groups(batch * self._iterations)
        self._next = ahead + 1
        return self._source.groups(step)

    def rollout(self, key: Any) -> Any:
        return self._source.rollout(key)

    def close(self) -> None: ...


def trained(out: Path, preset: str, name: str, code: int = 0) -> Path:
    assert run(cli, ["train", "--preset", preset, "--name", name, "--out", str(out)]) == code
    return out / "runs" / name


@pytest.fixture(scope="module")
def ahead_by_two(out: Path, preset: Callable[..., str]) -> Path:
    return trained(out, preset(TWO), "prefetch-two")


@pytest.mark.parametrize(
    ("settings", "name"),
    [pytest.param(ONE, "prefetch-one", marks=pytest.mark.slow), (PAST, "prefetch-past"), (TWO, "prefetch-two")],
)
def test_a_batch_is_sampled_from_the_policy_of_n_batches_before(
    settings: dict,
    name: str,
    out: Path,
    preset: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    ahead_by_two: Path,
) -> None:
    """Reference: today's source, asked for batch b + n before the first step on batch b. All is the same but the
    checkpoint, whose weights of former batches the reference does not need."""
    directory = ahead_by_two if settings is TWO else trained(out, preset(settings), name)
    monkeypatch.setattr(sampled, "PastSource", Eager)
    monkeypatch.setattr(train, "PastWeights", Plain)
    reference = contents(trained(out, preset(settings), f"{name}-eager"))
    whole = contents(directory)
    assert whole.keys() == reference.keys()
    different = [path for path in whole if whole[path] != reference[path]]
    assert all(path.startswith("checkpoint/") for path in different), different
    moved = max(abs(step.ratio["mean"] - 1) for step in read_run(directory).steps)
    assert moved > 1e-3, "no policy has moved since it sampled: the test shows nothing"


def test_the_records_say_how_stale_the_rollouts_are(ahead_by_two: Path, out: Path) -> None:
    """By hand: batches 0 to 2 are of the start, batch 3 is of the policy that has made the two updates of batch 0."""
    assert [step.ratio["staleness"] for step in read_run(ahead_by_two).steps] == [0, 1, 2, 3, 4, 5, 4, 5]


def test_a_batch_that_is_lost_is_sampled_again_from_the_weights_of_its_time(
    ahead_by_two: Path, out: Path, preset: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off in step 4, whose checkpoint is that of 3 steps; in the rollouts of a batch; and in a later step. Each
    time the rollouts are lost, too, from the batch on at which the run goes on."""
    options = (out, preset(TWO), "prefetch-cut")
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
    assert contents(trained(*options)) == contents(ahead_by_two)


def test_a_run_that_stops_itself_leaves_no_batch_that_nothing_trained_on(out: Path, preset: Callable[..., str]) -> None:
    stopping = {"objective.reference": "base", "control.limits.kl_mean_max": 1e-9, "control.limits.patience": 1}
    directory = trained(out, preset(RECORDED | stopping | {"rollouts.prefetch": 2, "steps": 5}), "prefetch-tripped")
    record = read_run(directory)
    assert record.manifest["stopped"].startswith("kl/mean ")
    assert 1 < len(record.steps) < 5
    assert len(open_pool(directory / "rollouts").steps) == len(record.steps)
