"""run_steps with a policy that trains, on a tiny model: killed anywhere it ends in the same bytes; it stops itself.

Nothing here samples or grades: the groups of a step are hand-made rollouts, so a run takes a fraction of a second.
"""

import os
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from adapted import members_of
from directories import contents

from extraction.adapters.trained import Trained
from probe.records.records import StepRecord
from probe.records.run import read_records, read_run
from probe.records.timings import Timings
from probe.runs import control
from probe.runs.control import TrainingState
from probe.runs.loop import Setup, run_steps
from probe.runs.resume import open_run
from probe.settings.arms import get_arm
from probe.settings.loss import LossSettings
from probe.settings.presets import configure
from probe.settings.training import CheckpointConfig, ControlConfig, OptimizerConfig
from probe.step.bases import Bases
from probe.step.distributed import SOLO
from probe.step.groups import Group, RolloutKey, make_group
from probe.step.reference import References
from probe.step.step import Measure
from probe.step.update import Updater
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.rollout import Rollout

OBJECTIVE = LossSettings(old_logprobs="recorded", reference="ema", beta=0.2, entropy_coef=0.01, gtpo_beta=0.5)
CONTROL = ControlConfig(beta_warmup_steps=2, target_kl=1e-4, ema_decay=0.5)
STEPS = 5
CONFIG = configure("train", preset="smoke", options={"steps": STEPS})


@dataclass(frozen=True)
class Case:
    """What one run is told."""

    arm: str = "projected-at-deployment"
    objective: LossSettings = OBJECTIVE
    control: ControlConfig = CONTROL
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    wild_step: int | None = None  # in which a sampled token was all but impossible under the recorded law


class HandMade:
    """One group of four rollouts a step."""

    num_steps = STEPS

    def __init__(self, make_rollout: Callable[..., Rollout], wild_step: int | None) -> None:
        self._make, self._wild_step = make_rollout, wild_step

    def rollout(self, key: RolloutKey) -> Rollout:
        recorded = [-800.0 if key.step == self._wild_step else -3.0] * 5
        hacked, gt_pass = key.sample_id == 0, (key.sample_id + key.step) % 3 == 0
        return self._make(key.step, key.sample_id, hacked=hacked, gt_pass=gt_pass, sampling_logprobs=recorded)

    def groups(self, step: int) -> tuple[Group, ...]:
        keys = [RolloutKey("rollouts", step, i) for i in range(4)]
        return (make_group(step, [(key, self.rollout(key)) for key in keys]),)


def directions(coordinates: Trained) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    draws = {m: torch.randn(r, 2, generator=generator, dtype=torch.float64) for m, r in coordinates.sizes.items()}
    return {m: torch.linalg.qr(draw).Q.T.contiguous() for m, draw in draws.items()}


@pytest.fixture
def make_run(make_tiny: Callable[..., Trained], make_rollout: Callable[..., Rollout]) -> Callable[..., TrainingState]:
    """make_run(directory, case) runs, or resumes, and returns what was trained."""

    def make(directory: Path, case: Case, before_step=lambda done, last: None, say=lambda text: None) -> TrainingState:
        coordinates = make_tiny(moved=0.0)
        arm, vectors = get_arm(case.arm), directions(coordinates)
        updater = Updater(coordinates, arm, OptimizerConfig(lr=0.05, warmup_steps=1), STEPS)
        references = References(coordinates, ema_decay=case.control.ema_decay)
        training = TrainingState(updater, references, case.objective, case.control)
        setup = Setup(
            bases=Bases(**members_of(coordinates)),
            conditions={"default": case.objective},
            measures=lambda step: [Measure(condition="default", arm=arm, vectors=vectors, side=arm.side, age=step)],
            planning=lambda ids: [False] * len(ids),
            pad_id=0,
            training=training,
        )
        told = SimpleNamespace(
            config=replace(CONFIG, checkpoints=case.checkpoints), world=SOLO, timings=Timings(), say=say
        )
        done = open_run(directory, {"settings": asdict(CONFIG), "case": repr(case)})
        run_steps(told, directory, HandMade(make_rollout, case.wild_step), setup, done, before_step)  # pyright: ignore
        return training

    return make


class Killed(BaseException):
    """The process is gone: nobody catches this."""


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """die_at(n): the process dies at the n-th sync from here on, one inside and one after the rename of every write.

    Returns a list that grows by one with every sync.
    """
    real = os.fsync

    def arm(n: int) -> list[int]:
        calls: list[int] = []

        def sync(descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) == n:
                raise Killed
            real(descriptor)

        monkeypatch.setattr(os, "fsync", sync)
        return calls

    return arm


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
def test_a_run_killed_anywhere_several_times_ends_in_the_same_bytes(every, make_run, die_at, tmp_path) -> None:
    """Deaths at random syncs, temporary files left behind, until the run gets through: records, adapters, checkpoints
    and manifest are those of the run that was never killed; no death costs more than `every` steps.
    """
    case = Case(checkpoints=CheckpointConfig(every=every))
    syncs = die_at(10**6)
    make_run(tmp_path / "whole", case)
    num_syncs, draw = len(syncs), random.Random(f"{every}")
    checkpoints = sorted(path.name for path in (tmp_path / "whole" / "checkpoint").iterdir())
    due = [done for done in range(1, STEPS + 1) if done % every == 0 or done == STEPS]
    assert checkpoints == [f"step_{done:06d}.pt" for done in due[-2:]]
    directory, deaths = tmp_path / "killed", 0
    while not (directory / "manifest.json").exists():
        before = len(read_records(StepRecord, directory / "steps.jsonl")) if (directory / "steps.jsonl").exists() else 0
        first: list[int] = []
        die_at(draw.randint(1, num_syncs // 2) if deaths < 6 else 10**6)
        try:
            make_run(directory, case, before_step=lambda done, last: first.append(done))  # noqa: B023
        except Killed:
            deaths += 1
            if not (directory / "manifest.json").exists():  # the last write of all leaves nothing behind
                (directory / f".steps.jsonl.{deaths}.tmp").write_text("what a kill inside a write leaves")
        assert not first or before - first[0] <= every, f"{before} steps were done, and it began again at {first[0]}"
    assert deaths >= 2, "the example kills too little"
    assert contents(directory) == contents(tmp_path / "whole")


def test_a_folder_of_something_else_is_left_alone(make_run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="expected a run or an empty directory"):
        make_run(tmp_path, Case())
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_warning_is_said_and_counted_and_the_run_goes_on(make_run, tmp_path: Path, monkeypatch) -> None:
    """A bound between the largest and the second largest norm: one step passes it. The KL of a token is above 0 from
    the step on in which the policy has moved.
    """
    plain = Case(objective=replace(OBJECTIVE, reference="base"))
    make_run(tmp_path / "plain", plain)
    steps = read_run(tmp_path / "plain").steps
    norms = sorted((step.grad_norm, step.step) for step in steps)
    bound = (norms[-1][0] + norms[-2][0]) / 2
    monkeypatch.setattr(control, "WARNINGS", {"kl/max": 1e-12, "grad_norm": bound})
    said: list[str] = []
    training = make_run(tmp_path / "run", plain, say=said.append)
    run = read_run(tmp_path / "run")
    assert training.stopped is None
    assert [step.to_json() for step in run.steps] == [step.to_json() for step in steps]
    largest, at = max((step.kl["max"], step.step) for step in steps)
    moved = sum(step.kl["max"] > 1e-12 for step in steps)
    assert 0 < moved < STEPS
    assert run.manifest["warnings"] == [
        f"kl/max above 1e-12 in {moved} of {STEPS} steps, largest {largest:.4g} in step {at}",
        f"grad_norm above {bound:g} in 1 of {STEPS} steps, largest {norms[-1][0]:.4g} in step {norms[-1][1]}",
    ]
    assert len(said) == moved + 1
    assert read_run(tmp_path / "plain").manifest["warnings"] == []


def test_a_tripwire_ends_the_run(make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KL is above a tiny limit in steps 2 and 3 (step 0 has the rate 0): the run ends there with its reason, a
    checkpoint and an adapter; run again, with or without its manifest, it does not go on.
    """
    monkeypatch.setattr(control, "PATIENCE", 2)
    wired = Case(objective=replace(OBJECTIVE, reference="base"), control=replace(CONTROL, kl_mean_max=1e-12))
    seen: list[tuple[int, bool]] = []
    training = make_run(tmp_path / "run", wired, before_step=lambda done, last: seen.append((done, last)))
    run = read_run(tmp_path / "run")
    kl = run.steps[-1].kl["mean"]
    assert run.manifest["stopped"] == training.stopped == f"kl/mean {kl:.4g} above 1e-12 for 2 steps"
    assert [step.step for step in run.steps] == [0, 1, 2, 3]
    assert seen == [*((step, False) for step in range(4)), (4, True)], "the policy as it ended was not evaluated"
    assert (tmp_path / "run" / "checkpoint" / "step_000004.pt").exists()
    before = contents(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    again = make_run(tmp_path / "run", wired)
    assert again.stopped == training.stopped
    assert contents(tmp_path / "run") == before, "a run that stopped itself went on"


@pytest.mark.parametrize("wild_step", [0, 2])
def test_a_step_that_is_not_finite_is_not_taken(wild_step: int, make_run, tmp_path: Path) -> None:
    """An infinite ratio in one step: the policy, the records and the checkpoint are those of the steps before it."""
    case = Case(objective=replace(OBJECTIVE, epsilon=None), wild_step=wild_step)
    training = make_run(tmp_path / "run", case)
    manifest = read_json(tmp_path / "run" / "manifest.json")
    assert manifest["stopped"] == f"ratio/mean is inf in step {wild_step}"
    assert [step.step for step in read_records(StepRecord, tmp_path / "run" / "steps.jsonl")] == [*range(wild_step)]
    assert (tmp_path / "run" / "checkpoint" / f"step_{wild_step:06d}.pt").exists()
    values = training.updater.trained.values()
    assert all(value.isfinite().all() for value in values.values())
    assert any(value.any() for value in values.values()) == (wild_step > 1)  # step 0 has the rate 0
    before = contents(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    make_run(tmp_path / "run", case)
    assert contents(tmp_path / "run") == before
