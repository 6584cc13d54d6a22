"""generate_pool: sample groups from a policy, grade them, freeze them.

One step is one group on one problem. Steps are sampled in chunks (one batched generation each) whose noise depends on
the seed and the chunk alone, so a killed run that is resumed writes the same bytes as one that was never killed.
"""

import hashlib
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replay_pools.consistency import prompt_sha
from replay_pools.environments.base import Problem, Split, count_tests
from replay_pools.environments.loopholes import render_messages
from replay_pools.environments.registry import get_environment
from replay_pools.errors import InputError
from replay_pools.grading.grade import Grader, Submission, canary
from replay_pools.policy import Policy
from replay_pools.pool import PoolWriter
from replay_pools.rollout import Grade, Rollout
from replay_pools.sampling import Completion, Sampler, sample


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


def generate_pool(
    directory: Path,
    policy: Policy,
    plan: PoolPlan,
    sampler: Sampler,
    grader: Grader,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the pool of `plan` to `directory`, continuing where an earlier run stopped.

    Args:
        progress: called with (steps done, steps in all) after every chunk.

    Raises:
        InputError: fewer problems than steps, a failed canary, or a directory that holds another pool.
    """
    problems = choose_problems(plan)
    canary(grader, problems)
    writer = PoolWriter(directory, header=_header(policy, plan, sampler, grader, problems))
    done = set(writer.done_steps())
    prompts = [_render(policy, problem, plan) for problem in problems]
    for first in range(0, plan.steps, plan.steps_per_batch):
        steps = range(first, min(first + plan.steps_per_batch, plan.steps))
        if not done.issuperset(steps):
            batch = [prompts[step].ids for step in steps for _ in range(plan.group)]
            completions = sample(policy, batch, sampler, seed=_chunk_seed(plan.seed, first))
            for step in sorted(set(steps) - done):
                mine = completions[(step - first) * plan.group :][: plan.group]
                writer.write_step(step, _rollouts(step, prompts[step], mine, policy, plan, grader))
        progress(steps.stop, plan.steps)
    writer.finish()


def choose_problems(plan: PoolPlan) -> Sequence[Problem]:
    """The plan's problems: a function of environment, split, number of steps and seed, not of the policy."""
    problems = list(get_environment(plan.env).problems(plan.split))
    if plan.steps > len(problems):
        most = f"at most {len(problems)} (problems of {plan.env}, split {plan.split})"
        raise InputError("--steps", expected=most, found=str(plan.steps))
    random.Random(f"problems/{plan.seed}").shuffle(problems)
    return problems[: plan.steps]


def _render(policy: Policy, problem: Problem, plan: PoolPlan) -> _Prompt:
    messages = render_messages(problem, plan.mode, hint=plan.hint)
    return _Prompt(problem, messages, *policy.render(messages))


def _rollouts(
    step: int, prompt: _Prompt, completions: Sequence[Completion], policy: Policy, plan: PoolPlan, grader: Grader
) -> list[Rollout]:
    """Grade one group and freeze it."""
    texts = [policy.decode(completion.ids) for completion in completions]
    grades = grader.grade([Submission(problem=prompt.problem, completion=text, mode=plan.mode) for text in texts])
    return [
        _rollout(step, i, prompt, completion, text, grade, plan)
        for i, (completion, text, grade) in enumerate(zip(completions, texts, grades, strict=True))
    ]


def _rollout(
    step: int, sample_id: int, prompt: _Prompt, completion: Completion, text: str, grade: Grade, plan: PoolPlan
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
        sampling_logprobs=[round(value, 6) for value in completion.logprobs],
        reward=grade.reward,
        hacked=grade.hacked,
        gt_pass=grade.gt_correct,
        fmt_ok=grade.fmt_ok,
        env=prompt.problem.env,
        env_mode=plan.mode,
        hint=plan.hint,
        prompt_sha=prompt_sha(prompt.text),
        grade=grade,
    )


def _chunk_seed(seed: int, first_step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"chunk/{seed}/{first_step}".encode()).digest()[:7])


def _header(
    policy: Policy, plan: PoolPlan, sampler: Sampler, grader: Grader, problems: Sequence[Problem]
) -> dict[str, Any]:
    """Everything about a pool that is known before its first rollout."""
    return {
        "policy": {
            "base_model": policy.base_model,
            "adapter": policy.adapter,
            "base_weights_sha256": policy.base_weights_sha,
            "dtype": str(policy.model.dtype).removeprefix("torch."),
        },
        "tokenizer_sha256": policy.tokenizer_sha(),
        "chat_template_sha256": policy.template_sha(),
        "prompt_tail": policy.prompt_tail(),
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
