"""Evaluations of a policy while it trains: held-out problems, sampled, graded, and counted (`probe.heldout`).

Each evaluation is a pool `evaluations/step_NNNNNN/` of the run, complete before its line is in `evals.jsonl`; the
number is that of optimizer steps. The noise depends on the seed and that number, so arms of one seed start alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from extraction.adapters.coordinates import Coordinates
from probe.heldout import Evaluation, evaluate
from probe.runs import EVALS_FILE, EVALUATIONS_DIR, read_evals
from replay_pools.environments.base import Problem
from replay_pools.files import encode_jsonl, write_atomic
from replay_pools.generate import PoolPlan, RolloutMaker, derive_seed, pool_header
from replay_pools.pool import PoolWriter


class Evaluator:
    """Evaluates after 0, `every`, 2 `every`, ... and `steps` optimizer steps, each once, resumed or not.

    Args:
        directory: of the run.
        maker: samples with the hint and grades; its policy is the one that is trained.
        plan: of one evaluation's pool.
        coordinates: sampling runs in their lean forward.
        problems: held out, one step of the pool each.
        say: told of every new evaluation.
    """

    def __init__(
        self,
        directory: Path,
        maker: RolloutMaker,
        plan: PoolPlan,
        coordinates: Coordinates,
        problems: Sequence[Problem],
        *,
        every: int,
        steps: int,
        say: Callable[[str], None],
    ) -> None:
        self._directory, self._maker, self._plan = directory, maker, plan
        self._coordinates, self._problems = coordinates, problems
        self._every, self._steps, self._say = every, steps, say
        self._rows = read_evals(directory)

    def __call__(self, done: int) -> None:
        """Evaluate the policy after `done` steps, if that is due and not done yet."""
        due = done % self._every == 0 or done == self._steps
        if not due or any(row["step"] == done for row in self._rows):
            return
        evaluation = self._evaluate(done)
        self._rows.append(evaluation.to_json())
        write_atomic(self._directory / EVALS_FILE, encode_jsonl(self._rows))
        rates = evaluation.rates["all"]
        self._say(f"after {done} steps: hack {_share(rates.hack.rate)}, solve {_share(rates.solve.rate)}")

    def _evaluate(self, done: int) -> Evaluation:
        maker = replace(self._maker, group=self._plan.group, hint=True)
        header = pool_header(maker.policy, self._plan, maker.sampler, maker.grader, self._problems)
        writer = PoolWriter(self._directory / EVALUATIONS_DIR / f"step_{done:06d}", header=header)
        with self._coordinates.lean_forward():
            seed = derive_seed("evaluation", self._plan.seed, done)
            maker.write(writer, dict(enumerate(self._problems)), seed=seed)
        return evaluate([rollout for group in writer.finish().steps for rollout in group], step=done)


def _share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"
