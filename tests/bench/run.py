"""The other numbers of `make bench`, on the embedded organism (the gradient engine: bench_engine.py).

1. grading: milliseconds a grade in the isolated workers, one worker and all cores
2. sampling: tokens a second
"""

import os
import time
from collections.abc import Callable

from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.grading.grade import Grader, Submission
from replay_pools.policy import Policy, load_policy
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.sampling import Sampler, sample


def seconds(function: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def grading() -> None:
    problems = {problem.problem_id: problem for problem in MinicodeEnvironment().problems("train")}
    rollouts = [rollout for group in open_pool(BUILTIN / "teacher").steps for rollout in group]
    work = [Submission(problem=problems[r.problem_id], completion=r.completion, mode=r.env_mode) for r in rollouts]
    for workers in sorted({1, os.cpu_count() or 1}):
        with Grader(workers=workers) as grader:
            grader.grade(work[:8])
            each = seconds(lambda grader=grader: grader.grade(work)) / len(work)
        print(f"grading: {1000 * each:.1f} ms a grade with {workers} worker(s)")


def sampling(policy: Policy) -> None:
    prompts = [group[0].prompt_ids for group in open_pool(BUILTIN / "base").steps for _ in range(3)]
    completions = []
    taken = seconds(lambda: completions.extend(sample(policy, prompts, Sampler(max_new_tokens=64), seed=0)))
    print(f"sampling: {sum(len(c.ids) for c in completions) / taken:.0f} tokens a second in a batch of {len(prompts)}")


if __name__ == "__main__":
    grading()
    sampling(load_policy("organism"))
