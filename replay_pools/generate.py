"""generate_pool: sample groups from a policy, grade them, freeze them.

One step is one group on one problem. Steps are sampled in chunks (one batched generation each) whose noise depends on
the seed and the chunk alone, so a killed run that is resumed writes the same bytes as one that was never killed (with
a server as its engine, where the server gives the same answers again).
"""

import hashlib
import random
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replay_pools.consistency import prompt_sha
from replay_pools.engines import Engine
from replay_pools.environments.base import Problem, Split, count_tests
from replay_pools.environments.loopholes import render_messages
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.grading.grade import Grader, Submission, canary
from replay_pools.pool import PoolWriter
from replay_pools.progress import report
from replay_pools.rollout import Completion, Grade, Rollout, Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """What a pool holds; recorded whole in its manifest."""

    env: str = "minicode"
    split: Split = "train"
    mode: str = "run_tests"
    hint: bool = False
    steps: int = 20
    group: int = 8
    seed: int = 0
    steps_per_batch: int = 8  # sampled together; part of the plan because it shapes the noise


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A rendered problem."""

    problem: Problem
    messages: list[dict[str, str]]
    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMaker:
    """Samples groups with an engine, grades them, and writes them as steps of a pool."""

    engine: Engine
    sampler: Sampler
    grader: Grader
    mode: str
    hint: bool
    group: int

    def write(self, writer: PoolWriter, problems: Mapping[int, Problem], *, seed: int) -> None:
        """Write the steps {step: problem} that the pool does not hold yet.

        All of them are sampled together, those that are there included: the noise depends on `seed` and on the batch,
        so a step that is written late has the bytes that it would have had.
        """
        missing = [step for step in problems if writer.read_step(step) is None]
        for step, rollouts in self.make(problems, slice(None), missing, seed=seed).items():
            writer.write_step(step, rollouts)

    def make(
        self, problems: Mapping[int, Problem], share: slice, missing: Collection[int], *, seed: int
    ) -> dict[int, list[Rollout]]:
        """Sample a share of {step: problem} as part of the whole batch, and grade together what is missing of it."""
        steps = [*problems][share]
        if not any(step in missing for step in steps):
            return {}
        prompts = {step: self._render(problem) for step, problem in problems.items()}
        batch = [prompt.ids for prompt in prompts.values() for _ in range(self.group)]
        rows = [row for i in range(len(problems))[share] for row in range(i * self.group, (i + 1) * self.group)]
        completions = self.engine.sample(batch, self.sampler, seed=seed, rows=rows)
        groups = {
            step: (prompts[step], completions[i * self.group :][: self.group])
            for i, step in enumerate(steps)
            if step in missing
        }
        return _rollouts(groups, self)

    def _render(self, problem: Problem) -> _Prompt:
        messages = render_messages(problem, self.mode, hint=self.hint)
        return _Prompt(problem, messages, *self.engine.chat.render(messages))


def generate_pool(
    directory: Path,
    engine: Engine,
    plan: PoolPlan,
    sampler: Sampler,
    grader: Grader,
) -> None:
    """Write the pool of `plan` to `directory`, continuing where an earlier run stopped.

    Raises:
        InputError: fewer problems than steps, a failed canary, or a directory that holds another pool.
    """
    problems = choose_problems(plan)
    canary(grader, problems)
    writer = PoolWriter(directory, header=pool_header(engine, plan, sampler, grader, problems))
    maker = RolloutMaker(
        engine=engine, sampler=sampler, grader=grader, mode=plan.mode, hint=plan.hint, group=plan.group
    )
    for first in range(0, plan.steps, plan.steps_per_batch):
        steps = range(first, min(first + plan.steps_per_batch, plan.steps))
        maker.write(writer, {step: problems[step] for step in steps}, seed=derive_seed("chunk", plan.seed, first))
        report("steps", steps.stop, plan.steps)
    writer.finish()


def choose_problems(plan: PoolPlan) -> Sequence[Problem]:
    """The plan's problems: a function of environment, split, number of steps and seed, not of the policy."""
    problems = list(get_environment(plan.env).problems(plan.split))
    if plan.steps > len(problems):
        most = f"at most {len(problems)} (problems of {plan.env}, split {plan.split})"
        raise InputError("--steps", expected=most, found=str(plan.steps))
    random.Random(f"problems/{plan.seed}").shuffle(problems)
    return problems[: plan.steps]


def _rollouts(
    groups: Mapping[int, tuple[_Prompt, Sequence[Completion]]], maker: RolloutMaker
) -> dict[int, list[Rollout]]:
    """Grade the groups {step: (prompt, completions)} in one call and freeze them."""
    texts = {
        step: [maker.engine.chat.decode(completion.ids) for completion in completions]
        for step, (_, completions) in groups.items()
    }
    submissions = [
        Submission(problem=prompt.problem, completion=text, mode=maker.mode)
        for step, (prompt, _) in groups.items()
        for text in texts[step]
    ]
    grades = iter(maker.grader.grade(submissions))
    return {
        step: [
            _rollout(step, i, prompt, completion, text, next(grades), maker)
            for i, (completion, text) in enumerate(zip(completions, texts[step], strict=True))
        ]
        for step, (prompt, completions) in groups.items()
    }


def _rollout(
    step: int, sample_id: int, prompt: _Prompt, completion: Completion, text: str, grade: Grade, maker: RolloutMaker
) -> Rollout:
    return Rollout(
        step=step,
        sample_id=sample_id,
        problem_id=prompt.problem.problem_id,
        messages=prompt.messages,
        prompt=prompt.text,
        prompt_ids=prompt.ids,
        plen=len(prompt.ids),
        completion=text,
        completion_ids=completion.ids,
        comp_len=len(completion.ids),
        finish_reason=completion.finish_reason,
        sampling_logprobs=None if completion.logprobs is None else [round(value, 6) for value in completion.logprobs],
        reward=grade.reward,
        hacked=grade.hacked,
        gt_pass=grade.gt_correct,
        fmt_ok=grade.fmt_ok,
        env=prompt.problem.env,
        env_mode=maker.mode,
        hint=maker.hint,
        prompt_sha=prompt_sha(prompt.text),
        grade=grade,
    )


def derive_seed(*parts: object) -> int:
    """A seed of sampling noise, by a hash of what it is for."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7])


def pool_header(
    engine: Engine, plan: PoolPlan, sampler: Sampler, grader: Grader, problems: Sequence[Problem]
) -> dict[str, Any]:
    """Everything about a pool that is known before its first rollout."""
    return {
        **engine.describe(sampler),
        "tokenizer_sha256": engine.chat.tokenizer_sha(),
        "chat_template_sha256": engine.chat.template_sha(),
        "prompt_tail": engine.chat.prompt_tail(),
        "sampler": sampler.to_json(),
        "plan": asdict(plan),
        "grader": grader.describe(),
        "tests": count_tests(problems),
        "versions": {name: version(name) for name in ("gradient-probe", "torch", "transformers", "peft")},
        "git_commit": git_commit(),
    }


def git_commit() -> str | None:
    """The commit of the checkout that this package runs from; None outside one."""
    here = Path(__file__).parent
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
