"""Evaluations of a policy while it trains: held-out problems, sampled, graded, and counted (`probe.runs.rates`).

Each evaluation leaves a pool `evaluations/step_NNNNNN/SETTING/` for every setting (a loophole mode with its hint, or
without), complete before its line is in `evals.jsonl`; the number is that of optimizer steps. A policy with a
quarantine is evaluated twice, as it trains and as it would be deployed. The noise depends on the seed, that number and
the setting, so arms of one seed start alike.


`probe eval`, assembled: a policy, held-out problems, settings -> rates with intervals, and the pools behind them.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

from probe.records.run import (
    ADAPTER_DIR,
    CONFIG_FILE,
    EVALS_FILE,
    EVALUATIONS_DIR,
    STEPS_FILE,
    read_evals,
    read_steps,
    settings_of,
)
from probe.runs.frozen_batch import FrozenBatch
from probe.runs.heldout import HeldOut, hold_out, make_settings
from probe.runs.rates import Evaluation, Weights, evaluate
from probe.settings.run import RunConfig
from probe.settings.training import EvaluationConfig
from probe.step.distributed import SOLO, World
from probe.step.update import Updater
from replay_pools.engines import LocalEngine
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.files import encode_jsonl, read_json, write_atomic, write_json
from replay_pools.generate import RolloutMaker
from replay_pools.grading.grade import Grader, canary
from replay_pools.policy import load_policy
from replay_pools.progress import report


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
        self._rows.append(evaluation.to_json() | {"frozen": frozen})
        if self._world.is_main:
            write_atomic(self._directory / EVALS_FILE, encode_jsonl(self._rows))
        rates = evaluation.rates["all"]
        which = f" ({weights})" if self._updater.routes else ""
        self._say(f"after {done} steps{which}: hack {_share(rates.hack.rate)}, solve {_share(rates.solve.rate)}")

    def _evaluate(self, done: int, weights: Weights) -> tuple[Evaluation, dict[str, Any] | None]:
        name = f"step_{done:06d}" + ("-training" if weights == "training" else "")
        with self._updater.deployed() if weights == "deployed" else nullcontext():
            with self._updater.coordinates.lean_forward():
                rollouts = self._held_out.rollouts(self._directory / EVALUATIONS_DIR / name, done)
            frozen = None if self._frozen is None else self._frozen.measure().to_json()
        return evaluate(rollouts, step=done, weights=weights), self._world.broadcast(frozen)


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


EVALUATION_FILE = "evaluation.json"


def deployed_policy(directory: Path) -> tuple[RunConfig, int]:
    """The settings that evaluate the deployed policy of a training run as the run asked it, and its optimizer steps.

    Raises:
        InputError: no finished training run.
    """
    path = directory / CONFIG_FILE
    settings = settings_of(read_json(path)) if path.is_file() else {}
    if settings.get("verb") != "train" or not (directory / ADAPTER_DIR).is_dir():
        actual = "no adapter" if settings.get("verb") == "train" else str(settings.get("verb", "no run"))
        raise InputError(directory, expected="a finished run of probe train", found=actual)
    trained = RunConfig.from_json(settings, path)
    model = replace(trained.model, adapter=str(directory / ADAPTER_DIR), device="auto", shard_base=False)
    config = RunConfig(verb="eval", model=model, rollouts=trained.rollouts, evaluation=EvaluationConfig())
    return config, len(read_steps(directory / STEPS_FILE))


def evaluate_policy(
    config: RunConfig, directory: Path, *, step: int = 0, say: Callable[[str], None] = lambda text: None
) -> Evaluation:
    """`probe eval`: sample, grade and count; pools and `evaluation.json` go to `directory`, a second call continues.

    Args:
        config: of the verb `eval`.
        step: optimizer steps that made the policy; 0 = a model as it was given.

    Raises:
        InputError: anything wrong with the model, adapter or problems; `directory` holds another evaluation.
    """
    rollouts_of, evaluation, model = config.rollouts, config.evaluation, config.model
    assert rollouts_of is not None
    assert evaluation is not None
    group = evaluation.rollouts_per_problem
    environment = get_environment(rollouts_of.env)
    _, problems = hold_out(environment.problems("train"), environment.problems("eval"), evaluation.num_problems)
    policy = load_policy(str(model.name), adapter=model.adapter, dtype=model.dtype, device=model.device)
    with Grader() as grader:
        say(f"policy {model.name}, adapter {model.adapter or 'none'}; grading under isolation {grader.isolation}")
        canary(grader, problems)
        maker = RolloutMaker(
            engine=LocalEngine(policy),
            sampler=rollouts_of.sampler,
            grader=grader,
            mode=rollouts_of.mode,
            hint=True,
            group=group,
        )
        settings = make_settings(evaluation.modes, rollouts_of.mode, without_hint=evaluation.without_hint)
        held_out = HeldOut(maker, problems, settings, env=rollouts_of.env, group=group, seed=config.seed)
        rollouts = []
        for number, setting in enumerate(settings, 1):
            say(f"{setting.name}: {len(problems) * group} rollouts")
            rollouts += held_out.of(setting, directory, 0)
            report("settings", number, len(settings))
    rates = evaluate(rollouts, step=step)
    record = {"settings": asdict(config), "step": step, "evaluation": rates.to_json()}
    write_json(directory / EVALUATION_FILE, record)
    return rates
