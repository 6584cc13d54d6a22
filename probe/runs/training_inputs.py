"""The inputs of a training: problems, teacher, and the record of both. Loads no weights."""

from collections.abc import Callable
from pathlib import Path

from probe.records.run import OWN_POOLS
from probe.runs.heldout import hold_out
from probe.runs.inputs import Inputs, with_divisor
from probe.runs.sources.others import taught_problems
from probe.runs.sources.problems import Problems, choose_problems
from probe.runs.sources.rewards import check_payable
from probe.settings.loss import check_recorded
from probe.settings.run import TrainConfig
from probe.step.distributed import SOLO, World
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.registry import get_environment
from replay_pools.pool import Pool, open_pool, resolve_pool


class TrainingInputs(Inputs[TrainConfig]):
    """The problems and the teacher of a training; the divisor of dr_grpo is by default the sampler's token limit.

    Attributes:
        teacher: the pool of `rollouts.teacher`; None without one.
        problems: problems by batch: `prompts_per_step` (1 + resamples) of them. Batches with teacher rollouts draw from
            the problems in the teacher's pool.
        held_out: the problems to evaluate on.
        counts: (teacher rollouts, past-self rollouts) in a group, by batch.

    Raises:
        InputError: too few problems, or none in the teacher's pool; no such pool, a pool with the name of one of the
            run's own, one with rewards that do not compare with the policy's, or one with a sampler that changed the
            distribution (temperature, top_p, top_k) although the objective needs recorded log-probabilities.
    """

    def __init__(
        self, config: TrainConfig, out_dir: Path, say: Callable[[str], None] = lambda text: None, world: World = SOLO
    ) -> None:
        super().__init__(with_divisor(config, config.rollouts.sampler.max_new_tokens), out_dir, say, world)
        self.counts = [config.rollouts.counts(step) for step in range(0, config.steps, config.rollouts.iterations)]
        self.teacher = _open_teacher(self.config, out_dir)
        self.pools = () if self.teacher is None else (self.teacher,)
        self.problems, self.held_out = self._problems()

    def _problems(self) -> tuple[Problems, list[Problem]]:
        rollouts, seed = self.config.rollouts, self.config.seed
        environment = get_environment(rollouts.env)
        splits = environment.problems("train"), environment.problems("eval")
        left, held_out = hold_out(*splits, self.config.evaluation.num_problems)
        wanted = rollouts.num_problems or len(left)
        if wanted > len(left):
            actual = f"{len(left)} that are not held out"
            raise InputError("rollouts.num_problems", expected=f"{wanted} problems to train on", found=actual)
        trained = known = left[:wanted]
        if self.teacher is not None:
            known = taught_problems(trained, self.teacher)
        width = rollouts.prompts_per_step * (1 + rollouts.dynamic_sampling)
        is_taught = [taught > 0 for taught, _ in self.counts]
        pools, priority = {True: known, False: trained}, rollouts.prioritise
        candidates = [pools[teaches] for teaches in is_taught]
        if priority is None:
            drawn = {}
            for teaches, pool in pools.items():
                batches = is_taught.count(teaches)
                drawn[teaches] = iter(choose_problems(pool, batches=batches, prompts_per_step=width, seed=seed))
            candidates = [next(drawn[teaches]) for teaches in is_taught]
        problems = Problems(candidates, width, priority, seed, self.world)
        met = [problem.problem_id for batch in candidates for problem in batch]
        if self.config.objective.reward == "surprise" and len(set(met)) == len(met):
            # All problems would have the same expected reward.
            found = f"{len(met)} problems in {len(candidates)} batches, each once"
            fix = f"--set rollouts.num_problems={max(len(met) // 4, 1)}, or more steps"
            raise InputError("objective.reward surprise", expected="problems that come back", found=found, fix=fix)
        return problems, held_out


def _open_teacher(config: TrainConfig, out_dir: Path) -> Pool | None:
    rollouts = config.rollouts
    if rollouts.teacher is None:
        return None
    pool = open_pool(resolve_pool(rollouts.teacher.pool, out_dir))
    # Records name a rollout by its pool, so two pools must not share a name.
    if pool.name in OWN_POOLS:
        expected = f"a name other than {' and '.join(OWN_POOLS)}, those of the run's own pools"
        raise InputError(f"teacher {pool.path}", expected=expected, found=pool.name, fix="copy it under another name")
    reads_labels = config.remedy is not None and config.remedy.has_oracle
    check_payable(pool, pay=rollouts.pay, reads_labels=reads_labels)
    check_recorded([config.objective], {f"pool {pool.name}": pool.manifest["sampler"]})
    return pool
