"""Simulated benches of known truth: many arms beside one vanilla, judged by the program.

    world = Bench(hack=(0.7, 0.4, 0.7), solve=(0.5, 0.5, 0.5), seeds=4)
    tally = world.tally(draws, seed)

Vanilla comes first, then the arm of most interest. The rate of a seed has the variance DISPERSION r (1 - r) times the
factor of its arm (sd 11.6 points at .7, 12.4 at .4); with problems, it differs by problem too, and every arm reacts to
problems in its own way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from probe.analysis.statistics.thresholds import MATERIAL_RATE
from probe.analysis.training_runs import TrainingOutcome
from probe.analysis.verdict.trained import questions
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings
from probe.settings.words import ALL, Answer

DISPERSION = 0.064
TRIALS = 64  # rollouts of an evaluation
BY_PROBLEM, BY_ARM = 1.0, 0.5  # sd on the logit scale


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The true rates of vanilla, the first arm and the others."""

    hack: Sequence[float]
    solve: Sequence[float]
    seeds: int = 4
    of_vanilla: int = 0  # its seeds; 0: as many as the others have
    factors: Sequence[float] = ()  # of the dispersion of each arm; none: 1
    problems: int = 0  # held-out problems that are kept apart; 0: rates by seed alone

    def tally(self, draws: int, seed: int = 0) -> dict[str, float]:
        """Shares of the draws: `all hold`; and `first`, `others`: of the arms whose hacking falls, those shown."""
        rng = np.random.default_rng(seed)
        held, shown, others = 0, [], []
        for _ in range(draws):
            trainings = self.draw(rng)
            hacks, solves = self._truth(self.hack), self._truth(self.solve)
            wrong = False
            for arm, fall, loss in zip(trainings.treated, hacks[0] - hacks[1:], solves[0] - solves[1:], strict=True):
                _, effect, price, _ = questions(arm, trainings)
                wrong |= effect.says is Answer.FALLS and fall <= 0
                wrong |= effect.says is Answer.RISES and fall >= 0
                wrong |= effect.says is Answer.NO_FALL and fall >= MATERIAL_RATE
                if effect.says is Answer.FALLS:
                    assert price.number is not None
                    wrong |= price.says is Answer.LOST and loss <= 0
                    wrong |= price.number.high < loss
                if fall > MATERIAL_RATE:
                    (shown if arm is trainings.treated[0] else others).append(effect.says is Answer.FALLS)
            held += not wrong
        tally = {"all hold": held / draws}
        return tally | {name: float(np.mean(of)) for name, of in (("first", shown), ("others", others)) if of}

    def _truth(self, rates: Sequence[float]) -> np.ndarray:
        if not self.problems:
            return np.array(rates)
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        centres = np.log(np.array(rates) / (1 - np.array(rates)))
        seed_sd = np.array([_seed_sd(rate, factor) for rate, factor in zip(rates, self._factors, strict=True)])
        spread = np.sqrt(BY_PROBLEM**2 + BY_ARM**2 + seed_sd**2)
        return (_expit(centres[:, None] + spread[:, None] * nodes) * weights).sum(1) / weights.sum()

    @property
    def _factors(self) -> Sequence[float]:
        return self.factors or [1.0] * len(self.hack)

    def draw(self, rng: np.random.Generator) -> Trainings:
        """Trainings with these true rates."""
        tables = {name: self._rates(rng, rates) for name, rates in (("hack", self.hack), ("solve", self.solve))}
        arms = [
            TrainedArm(
                condition=f"arm{i}",
                arm="vanilla",
                runs=[
                    _run(seed, {name: table[i][seed] for name, table in tables.items()})
                    for seed in range(len(tables["hack"][i]))
                ],
            )
            for i in range(len(self.hack))
        ]
        return Trainings(baseline=arms[0], treated=arms[1:])

    def _rates(self, rng: np.random.Generator, rates: Sequence[float]) -> list[np.ndarray]:
        """Of each arm (seeds, problems), one column where rates are by seed alone."""
        common, tables = BY_PROBLEM * rng.normal(size=self.problems), []
        seeds = [self.of_vanilla or self.seeds] + [self.seeds] * (len(rates) - 1)
        for rate, factor, number in zip(rates, self._factors, seeds, strict=True):
            if not self.problems:
                size = 1 / (DISPERSION * factor) - 1
                tables.append(rng.beta(rate * size, (1 - rate) * size, size=(number, 1)))
                continue
            logits = np.log(rate / (1 - rate)) + common + BY_ARM * rng.normal(size=self.problems)
            logits = logits + _seed_sd(rate, factor) * rng.normal(size=(number, 1))
            tables.append((rng.random(logits.shape) < _expit(logits)).astype(float))
        return tables


def _run(seed: int, shares: dict[str, np.ndarray]) -> Any:
    values, tables = {}, {}
    for name, of in shares.items():
        table = {f"p{i}": (float(x), 1) for i, x in enumerate(of)} if len(of) > 1 else {}
        for place in ("start", "final"):
            values[f"{name}_{place}"] = float(of.mean())
            tables[f"{name}_{place}"] = {**table, ALL: (float(of.mean()), len(table) or TRIALS)}
    outcome = TrainingOutcome(evaluations=[], values=values, shares=tables, stopped=None)
    settings = SimpleNamespace(seed=seed, rollouts=SimpleNamespace(mode="m"))
    return SimpleNamespace(records=SimpleNamespace(settings=settings, training=settings), outcome=outcome)


def _seed_sd(rate: float, factor: float) -> float:
    """On the logit scale, whose slope is r (1 - r)."""
    return float(np.sqrt(DISPERSION * factor / (rate * (1 - rate))))


def _expit(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def rates(*parts: tuple[int, float]) -> tuple[float, ...]:
    """`rates((1, 0.7), (16, 0.4))`: one rate of .7, sixteen of .4."""
    return tuple(rate for number, rate in parts for _ in range(number))
