"""generate_pool: sample groups of rollouts from a policy, grade them, and write them as a pool.

One step is one group: `group` completions of one problem. The noise of a rollout depends on the seed, its step and its
sample_id. `steps_per_batch` steps are sampled and graded together, and a resumed run repeats incomplete batches whole.
So a resumed run writes the same bytes as an uninterrupted one, if a server, as the engine, repeats its answers.
"""

import hashlib
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from replay_pools.base.errors import InputError
from replay_pools.base.files import locked
from replay_pools.base.software import git_commit, versions
from replay_pools.environments.base import Environment, Problem, Split, count_tests
from replay_pools.environments.loopholes import instructed, render_messages
from replay_pools.environments.registry import get_environment
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.labels import Submission
from replay_pools.pool import PoolWriter, Sampler
from replay_pools.rollout import Completion, Prompt, Rollout

if TYPE_CHECKING:
    from replay_pools.policy.chat import Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """The plan of a pool, recorded in its manifest."""

    env: str = "minicode"  # environment: see environments.base
    split: Split = "train"
    mode: str = "run_tests"  # loophole mode
    hint: bool = False  # put the mode's hint into the prompts
    steps: int = 20
    group: int = 8  # rollouts a step
    seed: int = 0  # for the choice of problems and the sampling noise
    steps_per_batch: int = 8  # steps sampled together; part of the plan, as it changes the last bits


class Engine(Protocol):
    """A policy to sample from: `sampling.LocalEngine` in this process, `serving.ServerEngine` on a server.

    It takes and returns token ids, so nothing is tokenised twice. To add an engine, write a class with these members.
    """

    @property
    def chat(self) -> "Chat":
        """The tokenizer and chat template of the policy."""
        ...

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """Return one completion for each prompt, in order.

        Args:
            prompts: token ids.
            sampler: temperature, top-p, top-k and the largest length.
            seeds: one for each prompt; its noise does not depend on the rest of the batch.

        Raises:
            InputError: a completion fails; then none is returned.
        """
        ...

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Return fields of a pool's header: `policy`, and `engine` for a server."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMaker:
    """Sampler and grader of groups."""

    engine: Engine
    sampler: Sampler
    grader: Grader
    mode: str  # loophole mode
    hint: bool  # put its hint into the prompts
    group: int  # rollouts a step
    instruction: str | None = None  # line added at the start of the user turn (`loopholes.instructed`)

    def make(self, problems: Mapping[int, Problem], missing: Collection[int], *, seed: int) -> dict[int, list[Rollout]]:
        """Return {step: graded rollouts} of the missing steps of a batch, graded in one call.

        All steps are sampled together, including the ones that the pool holds: the last bits of a log-probability
        depend on the batch, and a resumed run must write the same bytes.

        Args:
            problems: {step: problem} of the batch.
            missing: steps to return; if none is in the batch, nothing is sampled.
            seed: seeds the sampling noise, together with step and sample_id.
        """
        if not any(step in missing for step in problems):
            return {}
        prompts: dict[int, Prompt] = {}
        places = [(step, sample_id) for step in problems for sample_id in range(self.group)]
        for step, problem in problems.items():
            messages = render_messages(problem, self.mode, hint=self.hint)
            if self.instruction is not None:
                messages = instructed(messages, self.instruction)
            prompts[step] = Prompt(messages, *self.engine.chat.render(messages))
        seeds = [derive_seed("rollout", seed, *place) for place in places]
        sampled = self.engine.sample([prompts[step].ids for step, _ in places], self.sampler, seeds=seeds)
        wanted = [
            (step, sample_id, completion, self.engine.chat.decode(completion.ids))
            for (step, sample_id), completion in zip(places, sampled, strict=True)
            if step in missing
        ]
        # One call for all groups keeps every worker of the grader busy.
        grades = self.grader.grade([
            Submission(problem=problems[step], completion=text, mode=self.mode) for step, _, _, text in wanted
        ])  # fmt: skip
        rollouts: dict[int, list[Rollout]] = {}
        for (step, sample_id, completion, text), grade in zip(wanted, grades, strict=True):
            if completion.logprobs is not None:  # None: the engine's are of another distribution
                completion = replace(completion, logprobs=[round(value, 6) for value in completion.logprobs])
            facts = {"step": step, "sample_id": sample_id, "problem_id": problems[step].problem_id}
            facts |= {"env": problems[step].env, "env_mode": self.mode, "hint": self.hint}
            rollouts.setdefault(step, []).append(Rollout.of(prompts[step], completion, text, grade, **facts))
        return rollouts


def generate_pool(directory: Path, engine: Engine, plan: PoolPlan, sampler: Sampler, grader: Grader) -> None:
    """Write the pool of `plan` to `directory`, or continue an interrupted run.

    Raises:
        InputError: fewer problems than steps, a failed canary, or a directory with another pool or another writer.
    """
    with locked(directory):
        environment = get_environment(plan.env)
        problems = choose_problems(plan, environment)
        # Check first: a broken grader or problem would spoil the whole pool.
        canary(grader, problems)
        header = pool_header(engine, plan, sampler, grader, problems)
        header["tests"] |= {"left_out": len(environment.left_out)}
        writer = PoolWriter(directory, header=header)
        prompts = {"mode": plan.mode, "hint": plan.hint, "group": plan.group}
        maker = RolloutMaker(engine=engine, sampler=sampler, grader=grader, **prompts)
        writer.write_missing(
            range(plan.steps),
            plan.steps_per_batch,
            lambda steps, missing: maker.make({step: problems[step] for step in steps}, missing, seed=plan.seed),
        )
        writer.finish()


def choose_problems(plan: PoolPlan, environment: Environment) -> Sequence[Problem]:
    """Return one problem for each step, chosen by environment, split, number of steps and seed alone.

    Raises:
        InputError: the environment has fewer problems than the plan has steps.
    """
    problems = list(environment.problems(plan.split))
    if plan.steps > len(problems):
        expected = f"at most {len(problems)} (problems of {plan.env}, split {plan.split})"
        raise InputError("--steps", expected=expected, found=str(plan.steps))
    # The text sets this shuffle apart from other uses of the same seed.
    random.Random(f"problems/{plan.seed}").shuffle(problems)
    return problems[: plan.steps]


def derive_seed(*parts: object) -> int:
    """Hash the parts that name a use, such as ("rollout", 0, 8, 3), to a seed of sampling noise."""
    # `hash` would differ between processes.
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7])


def pool_header(
    engine: Engine, plan: PoolPlan, sampler: Sampler, grader: Grader, problems: Sequence[Problem]
) -> dict[str, Any]:
    """Return the manifest fields that are known before the first rollout."""
    return {
        **engine.describe(sampler),
        "tokenizer_sha256": engine.chat.tokenizer_sha(),
        "chat_template_sha256": engine.chat.template_sha(),
        "prompt_tail": engine.chat.prompt_tail(),
        **({"template": "plain"} if engine.chat.is_plain else {}),
        "sampler": asdict(sampler),
        "plan": asdict(plan),
        "grader": grader.describe(),
        "tests": count_tests(problems),
        "versions": versions(),
        "git_commit": git_commit(),
    }
