"""Simulated benches of known truth: many arms beside one vanilla, judged by the program.

    Bench(hack=(0.7, 0.4, 0.7), solve=(0.5, 0.5, 0.5)).holding(draws=60)

Vanilla comes first. The rate of a seed has the variance DISPERSION r (1 - r): sd 11.6 points at .7, 12.4 at .4. With
problems, it differs by problem too, and every arm reacts to problems in its own way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from probe.analysis.statistics.thresholds import MATERIAL_RATE
from probe.analysis.training_runs import TrainingOutcome
from probe.analysis.verdict.outcome import questions
from probe.analysis.verdict.trained_arms import TrainedArm, Trainings
from probe.settings.words import ALL, Answer

DISPERSION = 0.064
TRIALS = 64  # rollouts of an evaluation
BY_PROBLEM, BY_ARM = 1.0, 0.5  # sd on the logit scale


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The true rates of vanilla and of the arms beside it."""

    hack: Sequence[float]
    solve: Sequence[float]
    seeds: int = 4
    problems: int = 0  # held-out problems that are kept apart; 0: rates by seed alone

    def holding(self, draws: int, seed: int = 0) -> float:
        """The share of the draws in which no statement on any arm is wrong; of rates by seed alone."""
        rng, held = np.random.default_rng(seed), 0
        for _ in range(draws):
            trainings = self.draw(rng)
            held += all(self._holds(trainings, place) for place in range(1, len(self.hack)))
        return held / draws

    def _holds(self, trainings: Trainings, place: int) -> bool:
        fall, loss = (rates[0] - rates[place] for rates in (self.hack, self.solve))
        _, effect, price, _ = questions(trainings.treated[place - 1], trainings)
        if effect.says is Answer.FALLS:
            return fall > 0 and not (price.says is Answer.LOST and loss <= 0) and price.number.high >= loss
        return {Answer.RISES: fall < 0, Answer.NO_FALL: fall < MATERIAL_RATE}.get(effect.says, True)

    def draw(self, rng: np.random.Generator) -> Trainings:
        """Trainings with these true rates."""
        tables = {name: self._rates(rng, rates) for name, rates in (("hack", self.hack), ("solve", self.solve))}
        arms = []
        for i in range(len(self.hack)):
            runs = [_run(seed, {name: table[i][seed] for name, table in tables.items()}) for seed in range(self.seeds)]
            arms.append(TrainedArm(condition=f"arm{i}", arm="vanilla", runs=runs))
        return Trainings(baseline=arms[0], treated=arms[1:])

    def _rates(self, rng: np.random.Generator, rates: Sequence[float]) -> list[np.ndarray]:
        """Of each arm (seeds, problems), one column where rates are by seed alone."""
        common, tables, size = BY_PROBLEM * rng.normal(size=self.problems), [], 1 / DISPERSION - 1
        for rate in rates:
            if not self.problems:
                tables.append(rng.beta(rate * size, (1 - rate) * size, size=(self.seeds, 1)))
                continue
            logits = np.log(rate / (1 - rate)) + common + BY_ARM * rng.normal(size=self.problems)
            seed_sd = np.sqrt(DISPERSION / (rate * (1 - rate)))  # on the logit scale, whose slope is r (1 - r)
            logits = logits + seed_sd * rng.normal(size=(self.seeds, 1))
            tables.append((rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float))
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


def rates(*parts: tuple[int, float]) -> tuple[float, ...]:
    """`rates((1, 0.7), (16, 0.4))`: one rate of .7, sixteen of .4."""
    return tuple(rate for number, rate in parts for _ in range(number))
