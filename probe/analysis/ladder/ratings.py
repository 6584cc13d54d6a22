"""Ladders: the checkpoints of trainings rated against fixed references on held-out problems. Torch-free.

    ladder = make_ladder("solve", [base, *references, *bots, *checkpoints])
    ladder.ratings, ladder.best(), ladder.duel(one, other)

The references are fixed, so that the league does not move: the base (the policy before step 0), which is the zero,
policies that `probe eval` sampled, and the bots of `replay_pools.environments.exploits`. `players` reads who plays;
`probe.analysis.statistics.bradley_terry` has the model and its sources.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.analysis.ladder.players import BASE, LADDERS, Player, Shares, Task
from probe.analysis.statistics.bradley_terry import elo_gap, rate
from probe.analysis.statistics.intervals import Interval

ORDER = ("base", "reference", "bot", "checkpoint")


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
        interval = self.interval
        bounds = None if interval is None else [_finite(interval.low), _finite(interval.high)]
        return {
            "player": self.player.name,
            "kind": self.player.kind,
            "run": self.player.run,
            "step": self.player.step,
            "elo": self.elo,
            "interval": bounds,
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
        best = self.best()
        return {
            "ladder": self.name,
            "zero": BASE,
            "raters": [*self.raters],
            "problems": self.num_problems,
            "ratings": [rating.to_json() for rating in self.ratings],
            "best": None if best is None else best.player.name,
            "runs": [self._run_json(run) for run in self.runs],
        }

    def _run_json(self, run: str) -> dict[str, Any]:
        best, latest = self.best(run), self.checkpoints(run)[-1]
        assert best is not None
        names = {"run": run, "best": best.player.name, "gap": best.elo, "latest": latest.player.name}
        return names | {"best_against_latest": None if best is latest else self.duel(best, latest).to_json()}


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
    that nothing bounds. `gap` is the best evaluation so far above the base.

    Args:
        policy: of the policy as it is now.
        references: {name: shares}, the base among them.
        earlier: what this returned at the earlier evaluations.
    """
    values: dict[str, dict[str, float | None]] = {}
    for ladder in LADDERS:
        tasks = list(references[BASE][ladder])
        now = _row(policy[ladder], tasks)
        gaps = {name: elo_gap(_row(shares[ladder], tasks), now) for name, shares in references.items()}
        problems = [problem for _, problem in tasks]
        interval = rate([now, _row(references[BASE][ladder], tasks)], problems).intervals[1]
        ends = {f"{BASE}_low": _finite(interval.low), f"{BASE}_high": _finite(interval.high)}
        lowest = min([gaps[BASE], *(before[ladder][BASE] for before in earlier)])
        values[ladder] = {**gaps, **ends, "gap": 0.0 - lowest}  # not -lowest, which may be minus zero
    return values


def _row(shares: Mapping[Task, float], tasks: Sequence[Task]) -> list[float]:
    """The shares at the tasks; nan where a player has none."""
    return [shares.get(task, math.nan) for task in tasks]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
