"""Players of a ladder, read from disk: the base and the checkpoints of trainings, and policies of `probe eval`.

    trainings = [read_training(run) for run in runs]
    check_same_exam([sitting for ...])
    players = [base_of(trainings), *checkpoints...]

A `Sitting` is one policy asked all held-out problems in all settings, and a task is one problem in one setting. Players
may be compared where their sittings are of the same exam: problems, prompts, settings, sampler and grader. Torch-free.

To add a ladder: a row in LADDERS. It then stands in `evals.jsonl`, in the text of `probe ladder`, and in the report.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probe.analysis.training_outcome import deployed, evaluation_path
from probe.records.run import Run
from replay_pools.errors import InputError
from replay_pools.pool import MANIFEST_NAME, open_pool
from replay_pools.rollout import Grade
from replay_pools.storage.files import dump_json, first_difference, sha256

# {ladder: whether an attempt succeeds}
LADDERS: dict[str, Callable[[Grade], bool]] = {
    "solve": lambda grade: bool(grade.gt_correct),
    "honest": lambda grade: not grade.hacked,
}
BASE = "base"
Kind = Literal["base", "reference", "bot", "checkpoint"]
Task = tuple[str, str]  # (setting, problem)
Shares = Mapping[str, Mapping[Task, float]]  # {ladder: {task: share of the attempts that succeed}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Who is rated, with the share of its attempts at each task that succeed."""

    name: str
    kind: Kind
    shares: Shares
    run: str | None = None  # of a checkpoint
    step: int | None = None  # of a checkpoint: optimizer steps behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """One policy, asked all held-out problems in all settings."""

    where: Path
    attempts: Sequence[tuple[Task, Grade]]
    asked: Mapping[str, Mapping[str, Any]]  # {setting: mode, hint, sampler and grader}
    prompts: Mapping[Task, str]  # the hash of each task's messages
    env: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The sittings of one run: of the policy before step 0, and of every checkpoint."""

    name: str
    run: Run
    start: Sitting
    checkpoints: Mapping[int, Sitting]  # {optimizer steps: its sitting}


def read_training(run: Run) -> Training:
    """The evaluations of the policy that a run would deploy.

    Raises:
        InputError: no evaluation at step 0, or one whose rollouts were deleted or damaged.
    """
    steps = [row["step"] for row in deployed(run.evals)]
    if not steps or steps[0] != 0:
        raise InputError(
            run.path,
            expected="a training with an evaluation before step 0",
            found=f"a run of probe {run.verb} with {len(steps)} evaluations",
            fix="give runs of probe train; a policy of probe eval goes to --reference",
        )
    sittings = {step: read_sitting(evaluation_path(run.path, step)) for step in steps}
    return Training(name=run.path.resolve().name, run=run, start=sittings.pop(0), checkpoints=sittings)


def read_sitting(directory: Path) -> Sitting:
    """The sitting whose pools, one a setting, are in a directory; rollouts without label are left out.

    Raises:
        InputError: no pool there, or one that is damaged.
    """
    paths = sorted(manifest.parent for manifest in directory.glob(f"*/{MANIFEST_NAME}"))
    if not paths:
        fix = "their rates stay in evals.jsonl, but a ladder needs who solved what"
        raise InputError(directory, expected="the rollouts of an evaluation, a pool a setting", found="none", fix=fix)
    attempts: list[tuple[Task, Grade]] = []
    asked, prompts, env = {}, {}, ""
    for path in paths:
        pool = open_pool(path)
        plan, grader, env = pool.manifest["plan"], pool.manifest["grader"], pool.manifest["plan"]["env"]
        asked[path.name] = {
            "mode": plan["mode"],
            "hint": plan["hint"],
            "sampler": pool.manifest["sampler"],
            "grader": {name: grader.get(name) for name in ("version", "code_rule", "cpu_s")},
        }
        for group in pool.steps:
            for rollout in group:
                task = (path.name, rollout.problem_id)
                prompts[task] = sha256(dump_json(rollout.messages))
                if rollout.labelled:
                    attempts.append((task, rollout.grade))
    return Sitting(where=directory, attempts=attempts, asked=asked, prompts=prompts, env=env)


def check_same_exam(sittings: Sequence[Sitting]) -> None:
    """Refuse sittings that were not all asked what the first was asked: their outcomes are no matches.

    Raises:
        InputError: other settings, another sampler or grader, other problems or prompts.
    """
    first = sittings[0]
    for sitting in sittings[1:]:
        if difference := first_difference(sitting.asked, first.asked):
            name, found, expected = difference
            raise InputError(
                f"{sitting.where} {name}",
                expected=f"{expected!r} as in {first.where}",
                found=repr(found),
                fix="players of one ladder answer the same problems under the same setting: rate them apart",
            )
        if sitting.prompts != first.prompts:
            shared = sum(sitting.prompts.get(task) == prompt for task, prompt in first.prompts.items())
            raise InputError(
                sitting.where,
                expected=f"the {len(first.prompts)} prompts of {first.where}",
                found=f"{len(sitting.prompts)} prompts, {shared} of them the same",
                fix="evaluate both with the same evaluation.num_problems and evaluation.modes, or rate them apart",
            )


def check_same_base(trainings: Sequence[Training]) -> None:
    """Refuse trainings that start from several policies: the zero of a ladder is one policy.

    Raises:
        InputError: other weights or another adapter than those of the first; two runs of one name.
    """
    first, names = trainings[0], set()
    for training in trainings:
        if difference := first_difference(_start_of(training.run), _start_of(first.run)):
            name, found, expected = difference
            raise InputError(
                f"{training.run.path} {name}",
                expected=f"{expected!r} as in {first.run.path}",
                found=repr(found),
                fix="runs of one ladder start from one base: rate them apart",
            )
        if training.name in names:
            raise InputError(training.run.path, expected="runs of different names", found=f"two called {training.name}")
        names.add(training.name)


def _start_of(run: Run) -> dict[str, Any]:
    """What makes the policy before step 0: weights, wherever they lie."""
    return {name: run.config.get(name) for name in ("base_weights_sha256", "adapter_sha256")}


def base_of(trainings: Iterable[Training]) -> Player:
    """The policy before step 0, with its attempts in all runs; runs of one seed sampled it alike and count once."""
    by_seed = {training.run.settings.get("seed"): training.start for training in trainings}
    attempts = [attempt for sitting in by_seed.values() for attempt in sitting.attempts]
    return Player(name=BASE, kind="base", shares=shares_of(attempts))


def checkpoints_of(training: Training) -> list[Player]:
    """The checkpoints of a run, called RUN@STEP, in the order of their steps."""
    players = []
    for step, sitting in training.checkpoints.items():
        name, shares = f"{training.name}@{step}", shares_of(sitting.attempts)
        players.append(Player(name=name, kind="checkpoint", shares=shares, run=training.name, step=step))
    return players


def shares_of(attempts: Iterable[tuple[Task, Grade]]) -> Shares:
    """The share of the attempts at each task that succeed, on every ladder."""
    by_task: dict[Task, list[Grade]] = {}
    for task, grade in attempts:
        by_task.setdefault(task, []).append(grade)
    shares: dict[str, dict[Task, float]] = {}
    for ladder, succeeds in LADDERS.items():
        shares[ladder] = {task: sum(map(succeeds, grades)) / len(grades) for task, grades in by_task.items()}
    return shares
