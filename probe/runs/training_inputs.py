"""The inputs of a training: problems, teacher, and the record of both. Loads no weights."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from probe.records.run import OWN_POOLS
from probe.runs.inputs import Inputs, with_divisor
from probe.runs.sources.problems import Counts, choose_problems, draw, eval_settings, problems_of
from probe.runs.sources.rewards import check_payable
from probe.settings.loss import check_recorded
from probe.settings.verbs import TrainConfig
from probe.step.distributed import SOLO, World
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.pool import Pool, open_pool, resolve_pool


class TrainingInputs(Inputs[TrainConfig]):
    """The problems and the teacher of a training; the divisor of dr_grpo is by default the sampler's token limit.

    Raises:
        InputError: too few problems, or none in the teacher's pool; no such pool, a pool with the name of one of the
            run's own, one with rewards that do not compare with the policy's, or one with a sampler that changed the
            distribution (temperature, top_p, top_k) although the objective needs recorded log-probabilities.
    """

    def __init__(
        self, config: TrainConfig, out_dir: Path, say: Callable[[str], None] = lambda text: None, world: World = SOLO
    ) -> None:
        super().__init__(with_divisor(config, config.rollouts.sampler.max_new_tokens), out_dir, say, world)
        rollouts = config.rollouts
        # (teacher rollouts, past-self rollouts) in a group, by batch
        self.shares = [rollouts.counts(step) for step in range(0, config.steps, rollouts.iterations)]
        self.width = rollouts.prompts_per_step * (1 + rollouts.dynamic_sampling)  # problems of a batch
        self.teacher = None if rollouts.teacher is None else self._opened(rollouts.teacher.pool)
        self.pools = () if self.teacher is None else (self.teacher,)
        left, self.held_out = problems_of(config)
        wanted = rollouts.num_problems or len(left)
        if wanted > len(left):
            actual = f"{len(left)} that are not held out"
            raise InputError("rollouts.num_problems", expected=f"{wanted} problems to train on", found=actual)
        self.candidates = self._candidates(left[:wanted])

    def _opened(self, teacher: str) -> Pool:
        config, pool = self.config, open_pool(resolve_pool(teacher, self.out_dir))
        # Records name a rollout by its pool, so two pools must not share a name.
        if pool.name in OWN_POOLS:
            expected = f"a name other than {' and '.join(OWN_POOLS)}, those of the run's own pools"
            raise InputError(
                f"teacher {pool.path}", expected=expected, found=pool.name, fix="copy it under another name"
            )
        reads_labels = config.remedy is not None and config.remedy.has_oracle
        check_payable(pool, pay=config.rollouts.pay, reads_labels=reads_labels)
        check_recorded([config.objective], {f"pool {pool.name}": pool.manifest["sampler"]})
        return pool

    def _candidates(self, problems: Sequence[Problem]) -> list[Sequence[Problem]]:
        """Return the problems of every batch, or with a priority the problems to draw from.

        In batches with teacher rollouts all are in the teacher's pool.
        """
        config, priority = self.config, self.config.rollouts.prioritise
        is_taught = [taught > 0 for taught, _ in self.shares]
        choices = {False: problems}
        if self.teacher is not None:
            known = {rollout.problem_id for step in self.teacher.steps for rollout in step}
            choices[True] = [problem for problem in problems if problem.problem_id in known]
            if not choices[True]:
                where, expected = f"pool {self.teacher.name}", "rollouts on problems that are trained on"
                raise InputError(where, expected=expected, found="none")
        if priority is not None:
            candidates: list[Sequence[Problem]] = [choices[teaches] for teaches in is_taught]
            if (fewest := min(map(len, candidates))) <= self.width:
                expected = (
                    f"more problems than the {self.width} of a batch, which would take all whatever their weights"
                )
                fix = "train on more problems, or on fewer prompts a step"
                raise InputError("rollouts.prioritise", expected=expected, found=str(fewest), fix=fix)
        else:
            size = {"prompts_per_step": self.width, "seed": config.seed}
            batches = {
                teaches: iter(choose_problems(choice, batches=is_taught.count(teaches), **size))
                for teaches, choice in choices.items()
            }
            candidates = [next(batches[teaches]) for teaches in is_taught]
        met = [problem.problem_id for batch in candidates for problem in batch]
        if config.objective.reward == "surprise" and len(set(met)) == len(met):
            # All problems would have the same expected reward.
            found = f"{len(met)} problems in {len(candidates)} batches, each once"
            fix = f"--set rollouts.num_problems={max(len(met) // 4, 1)}, or more steps"
            raise InputError("objective.reward surprise", expected="problems that come back", found=found, fix=fix)
        return candidates

    def work(self) -> dict[str, int]:
        """As in `Inputs`, of one process."""
        steps, rollouts, evaluation = self.config.steps, self.config.rollouts, self.config.evaluation
        asked = len(self.held_out) * len(eval_settings(self.config))
        return {
            "steps": steps,
            "rollouts in training": len(self.candidates) * rollouts.prompts_per_step * rollouts.group,
            "evaluations": len({*range(0, steps, evaluation.every), steps}),  # before steps, and after the last one
            "rollouts in an evaluation": asked * evaluation.rollouts_per_problem,
        }

    @property
    def listed(self) -> Sequence[Problem]:
        """Problems for the pool's header: all of the batches, or all candidates of draws."""
        listed = [problem for batch in self.candidates for problem in batch]
        by_id = {problem.problem_id: problem for problem in listed}
        return listed if self.config.rollouts.prioritise is None else [*by_id.values()]

    def problems(self, batch: int, counts: Callable[[int], Mapping[str, Counts]]) -> Sequence[Problem]:
        """Return the problems of a batch; rank 0 draws them, by the seed, the batch and the counts before it."""
        candidates, priority = self.candidates[batch], self.config.rollouts.prioritise
        if priority is None:
            return candidates
        generator = random.Random(f"prioritise/{self.config.seed}/{batch}")
        return self.world.on_main(lambda: draw(candidates, counts(batch), priority, self.width, generator))
