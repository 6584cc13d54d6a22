"""Ladders: the checkpoints of trainings rated against fixed references on held-out problems. Torch-free.

    trainings = [read_training(run) for run in runs]
    ladder = make_ladder("solve", [base_of(trainings), *references, *bots, *checkpoints_of(training)])
    ladder.ratings, ladder.best(), ladder.duel(one, other)

The references are fixed, so that the league does not move: the base (the policy before step 0), which is the zero,
policies that `probe policy eval` sampled, and the bots of `replay_pools.environments.loopholes`. A `Sitting` is one
policy asked all held-out problems in all settings, and a task is one problem in one setting. Players may be compared
where their sittings are of the same exam. `probe.analysis.statistics.bradley_terry` has the model and its sources.

To add a ladder: a row in LADDERS. It then stands in `evals.jsonl`, on the screen and in the report.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probe.analysis.statistics.bradley_terry import elo_gap, rate
from probe.analysis.statistics.intervals import Interval
from probe.analysis.training_runs import deployed, evaluation_path
from probe.records.run import Run
from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, sha256
from replay_pools.base.tables import first_difference
from replay_pools.pool import MANIFEST_NAME, open_pool
from replay_pools.rollout import Grade

# {ladder: whether an attempt succeeds}
LADDERS: dict[str, Callable[[Grade], bool]] = {
    "solve": lambda grade: bool(grade.gt_correct),
    "honest": lambda grade: not grade.hacked,
}
BASE = "base"
Kind = Literal["base", "reference", "bot", "checkpoint"]
ORDER: tuple[Kind, ...] = ("base", "reference", "bot", "checkpoint")
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
    """One policy, asked all held-out problems in all settings; rollouts without a label are left out."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A player on a ladder."""

    player: Player
    elo: float  # above the zero
    interval: Interval | None  # 95%; an end that nothing bounds is infinite; None for the zero itself
    wins: float  # matches against the references that rate
    losses: float

    @property
    def told_apart(self) -> bool:
        """Whether the interval leaves out the zero."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite end is null."""
        player, interval = self.player, self.interval
        return {
            "player": player.name,
            "kind": player.kind,
            "run": player.run,
            "step": player.step,
            "elo": self.elo,
            "interval": None if interval is None else [_finite(interval.low), _finite(interval.high)],
            "wins": self.wins,
            "losses": self.losses,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The ratings of all players in one respect."""

    name: str
    ratings: Sequence[Rating]  # base, references, bots, checkpoints
    raters: Sequence[str]  # the references that rate others, the base first
    num_problems: int
    num_draws: int  # of the bootstrap
    seed: int

    @property
    def runs(self) -> list[str]:
        """The names of the runs that have checkpoints, in their order."""
        return list(dict.fromkeys(str(rating.player.run) for rating in self.checkpoints()))

    def checkpoints(self, run: str | None = None) -> list[Rating]:
        """The ratings of all checkpoints, or of those of a run, in the order of their steps."""
        rated = [rating for rating in self.ratings if rating.player.kind == "checkpoint"]
        return rated if run is None else [rating for rating in rated if rating.player.run == run]

    def best(self, run: str | None = None) -> Rating | None:
        """The checkpoint with the highest rating, of all or of a run; the first of equals, None without one."""
        return max(self.checkpoints(run), key=lambda rating: rating.elo, default=None)

    def duel(self, rating: Rating, other: Rating) -> Rating:
        """The first player rated against the second alone, from the matches of the two: `elo` is above the second."""
        return _rated(self.name, [other.player, rating.player], 1, self.num_draws, self.seed)[0][1]

    def to_json(self) -> dict[str, Any]:
        """Ratings, the best checkpoint, and of every run its best and latest checkpoint with the gaps."""
        runs = []
        for run in self.runs:
            best, latest = self.best(run), self.checkpoints(run)[-1]
            assert best is not None
            names = {"run": run, "best": best.player.name, "gap": best.elo, "latest": latest.player.name}
            duel = None if best is latest else self.duel(best, latest).to_json()
            runs.append({**names, "best_against_latest": duel})
        best = self.best()
        return {
            "ladder": self.name,
            "zero": BASE,
            "raters": [*self.raters],
            "problems": self.num_problems,
            "ratings": [rating.to_json() for rating in self.ratings],
            "best": None if best is None else best.player.name,
            "runs": runs,
        }


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
            fix="give runs of probe train; a policy of policy eval goes to --reference",
        )
    sittings = {step: read_sitting(evaluation_path(run.path, step)) for step in steps}
    return Training(name=run.path.resolve().name, run=run, start=sittings.pop(0), checkpoints=sittings)


def read_sitting(directory: Path) -> Sitting:
    """The sitting whose pools, one a setting, are in a directory; InputError: no pool there, or a damaged one."""
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
        for rollout in (rollout for group in pool.steps for rollout in group):
            task = (path.name, rollout.problem_id)
            prompts[task] = sha256(dump_json(rollout.messages))
            attempts.append((task, rollout.grade))
    return Sitting(where=directory, attempts=attempts, asked=asked, prompts=prompts, env=env)


def check_same_exam(sittings: Sequence[Sitting]) -> None:
    """Refuse sittings that were not all asked what the first was asked: their outcomes are no matches.

    Raises:
        InputError: other settings, another sampler or grader, other problems or prompts.
    """
    first = sittings[0]
    for sitting in sittings[1:]:
        fix = "players of one ladder answer the same problems under the same setting: rate them apart"
        _check_equal(sitting.where, sitting.asked, first.where, first.asked, fix)
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
        InputError: other weights or another adapter than those of the first, wherever they lie; two runs of one name.
    """
    names: set[str] = set()
    starts = [
        {name: run.run.config.get(name) for name in ("base_weights_sha256", "adapter_sha256")} for run in trainings
    ]
    for training, start in zip(trainings, starts, strict=True):
        fix = "runs of one ladder start from one base: rate them apart"
        _check_equal(training.run.path, start, trainings[0].run.path, starts[0], fix)
        if training.name in names:
            raise InputError(training.run.path, expected="runs of different names", found=f"two called {training.name}")
        names.add(training.name)


def _check_equal(where: Path, values: Mapping[str, Any], other: Path, others: Mapping[str, Any], fix: str) -> None:
    if difference := first_difference(values, others):
        name, found, expected = difference
        raise InputError(f"{where} {name}", expected=f"{expected!r} as in {other}", found=repr(found), fix=fix)


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


def make_ladder(name: str, players: Iterable[Player], *, num_draws: int = 999, seed: int = 0) -> Ladder:
    """Rate all players in one respect.

    Args:
        name: of LADDERS.
        players: one base, and any others; asked the same tasks.
        num_draws: of the bootstrap over problems.
        seed: of the bootstrap.
    """
    ordered = sorted(players, key=lambda player: ORDER.index(player.kind))
    references = [player for player in ordered if player.kind != "checkpoint"]
    ratings, rates = _rated(name, ordered, len(references), num_draws, seed)
    return Ladder(
        name=name,
        ratings=ratings,
        raters=[player.name for player, flag in zip(references, rates, strict=True) if flag],
        num_problems=len({problem for _, problem in ordered[0].shares[name]}),
        num_draws=num_draws,
        seed=seed,
    )


def _rated(
    ladder: str, players: Sequence[Player], num_references: int, num_draws: int, seed: int
) -> tuple[list[Rating], tuple[bool, ...]]:
    """The ratings of the players, and which of the references rate others."""
    tasks = list(players[0].shares[ladder])
    table = [_row(player.shares[ladder], tasks) for player in players]
    problems = [problem for _, problem in tasks]
    scale = rate(table, problems, num_references=num_references, num_draws=num_draws, seed=seed)
    ratings = []
    for i, player in enumerate(players):
        elo, wins, losses = (float(values[i]) for values in (scale.ratings, scale.wins, scale.losses))
        interval = scale.intervals[i] if i else None
        ratings.append(Rating(player=player, elo=elo, interval=interval, wins=wins, losses=losses))
    return ratings, scale.rates


def elo_values(
    policy: Shares, references: Mapping[str, Shares], earlier: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, float | None]]:
    """{ladder: {name: Elo}} of one evaluation in the course of a training, for its line of evals.jsonl.

    A reference's value is its Elo where the policy as it is now is the zero, from their matches alone: it falls while
    the policy comes to beat it. `base_low` and `base_high` are the ends of the 95% interval of `base`, None for an end
    that nothing bounds. `gap` is the best evaluation of a trained policy so far above the base, negative if all are
    below it; None at the first evaluation, which is the base's own.

    Args:
        policy: of the policy as it is now.
        references: {name: shares}, the base among them.
        earlier: what this returned at the earlier evaluations, the base's own first.
    """
    values: dict[str, dict[str, float | None]] = {}
    for ladder in LADDERS:
        tasks = list(references[BASE][ladder])
        now = _row(policy[ladder], tasks)
        gaps = {name: elo_gap(_row(shares[ladder], tasks), now) for name, shares in references.items()}
        interval = rate([now, _row(references[BASE][ladder], tasks)], [problem for _, problem in tasks]).intervals[1]
        ends = {f"{BASE}_low": _finite(interval.low), f"{BASE}_high": _finite(interval.high)}
        trained = [gaps[BASE], *(before[ladder][BASE] for before in earlier[1:])]
        # 0.0 - x and not -x, which may be minus zero.
        values[ladder] = {**gaps, **ends, "gap": 0.0 - min(trained) if earlier else None}
    return values


def _row(shares: Mapping[Task, float], tasks: Sequence[Task]) -> list[float]:
    """The shares at the tasks; nan where a player has none."""
    return [shares.get(task, math.nan) for task in tasks]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
