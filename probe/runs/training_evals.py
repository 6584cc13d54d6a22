"""Evaluator: evaluations of a policy while `probe train` trains it, on held-out problems.

Each evaluation leaves a pool `evaluations/step_NNNNNN/SETTING/` for every setting (a loophole mode with its hint, or
without), complete before its line is in `evals.jsonl`; the number is that of optimizer steps. A policy with a
quarantine is evaluated twice, as it trains and as it would be deployed. The noise depends on the seed, that number and
the setting, so arms of one seed start alike. Every evaluation of the deployed policy is compared with the one before
step 0 and with the bots (`elo` of its line; `probe.analysis.ladder`).

`probe.runs.heldout` samples, `probe.runs.rates` counts; `probe.runs.evaluate` is the verb `probe eval`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, final

from probe.analysis.ladder import BASE, Shares, elo_values, read_sitting, shares_of
from probe.analysis.training_outcome import deployed, evaluation_path
from probe.records.run import EVALS_FILE, read_evals
from probe.runs.frozen_batch import FrozenBatch
from probe.runs.heldout import HeldOut
from probe.runs.rates import Evaluation, Weights, evaluate
from probe.step.distributed import SOLO, World
from probe.step.update import Updater
from replay_pools.storage.files import encode_jsonl, write_atomic


@final
class Evaluator:
    """Evaluates after 0, `every`, 2 `every`, ... and the last optimizer step, each once, resumed or not.

    Args:
        directory: of the run.
        held_out: samples from the policy that is trained.
        updater: of that policy.
        frozen: the frozen probe batch; None where no pair is held out.
        every: steps.
        say: told of every new evaluation.
        world: the ranks, which all take part; what rank 0 measured counts.
    """

    def __init__(
        self,
        directory: Path,
        held_out: HeldOut,
        updater: Updater,
        frozen: FrozenBatch | None,
        *,
        every: int,
        say: Callable[[str], None],
        world: World = SOLO,
    ) -> None:
        self._directory, self._held_out, self._updater, self._frozen = directory, held_out, updater, frozen
        self._every, self._say, self._world = every, say, world
        self._rows = world.on_main(lambda: read_evals(directory))

    def __call__(self, done: int, last: bool) -> float | None:
        """Evaluate the policy after `done` steps, if that is due and not done yet.

        Returns:
            The mean log-probability per token of the frozen clean completions; None where it was not measured.
        """
        if done % self._every and not last:
            return None
        kinds: tuple[Weights, ...] = ("training", "deployed") if self._updater.routes else ("deployed",)
        for weights in kinds:
            if self._row(done, weights) is None:
                self._add(done, weights)
        row = self._row(done, "deployed")
        return row["frozen"]["logprob_clean"] if row and row["frozen"] else None

    def _row(self, done: int, weights: Weights) -> dict[str, Any] | None:
        return next((row for row in self._rows if (row["step"], row["weights"]) == (done, weights)), None)

    def _add(self, done: int, weights: Weights) -> None:
        evaluation, frozen = self._evaluate(done, weights)
        elo = self._world.on_main(lambda: self._elo(done)) if weights == "deployed" else None
        self._rows.append(evaluation.to_json() | {"frozen": frozen, "elo": elo})
        if self._world.is_main:
            write_atomic(self._directory / EVALS_FILE, encode_jsonl(self._rows))
        rates = evaluation.rates["all"]
        which = f" ({weights})" if self._updater.routes else ""
        self._say(f"after {done} steps{which}: hack {_share(rates.hack.rate)}, solve {_share(rates.solve.rate)}")

    def _evaluate(self, done: int, weights: Weights) -> tuple[Evaluation, dict[str, Any] | None]:
        directory = evaluation_path(self._directory, done)
        if weights == "training":
            directory = directory.with_name(f"{directory.name}-training")
        with self._updater.deployed() if weights == "deployed" else nullcontext():
            with self._updater.coordinates.lean_forward():
                rollouts = self._held_out.rollouts(directory, done)
            frozen = None if self._frozen is None else self._frozen.measure().to_json()
        return evaluate(rollouts, step=done, weights=weights), self._world.broadcast(frozen)

    def _elo(self, done: int) -> dict[str, dict[str, float | None]]:
        """The base and the bots, on every ladder, as the policy after `done` steps sees them."""
        references = {BASE: self._shares(0), **self._bots}
        return elo_values(self._shares(done), references, [row["elo"] for row in deployed(self._rows)])

    def _shares(self, done: int) -> Shares:
        """What the policy after `done` steps solved, from the pools of its evaluation."""
        return shares_of(read_sitting(evaluation_path(self._directory, done)).attempts)

    @cached_property
    def _bots(self) -> dict[str, Shares]:
        return {bot.name: bot.shares for bot in self._held_out.bots()}


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"
