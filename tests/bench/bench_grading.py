"""Grades per second of the warm grader, by tier and number of workers. Part of `make bench`.

Work: right solutions of minicode in mode none, one execution each: what a grade costs when the solution costs nothing.
user:  the solutions themselves, called in this process: their share of the time of one worker.
"""

import contextlib
import os

from timing import interleaved

from replay_pools.environments.loopholes import fence
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.grading import tiers
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission

NUM_GRADES = 32
REPEATS = 5


def workload() -> list[Submission]:
    """Right solutions of the first problems."""
    problems = MinicodeEnvironment().problems("train")[:NUM_GRADES]
    return [Submission(problem=p, completion=fence(p.canonical), mode="none") for p in problems]


def call_here(work: list[Submission]) -> None:
    """The user code alone: compile, run and call every (trusted) solution in this process."""
    for submission in work:
        problem, namespace = submission.problem, {}
        exec(problem.setup_code, namespace)
        exec(problem.canonical, namespace)
        for case in problem.cases:
            getattr(namespace["Solution"](), problem.func_name)(*case.args)


def grade_all(work: list[Submission], grader: Grader) -> None:
    assert all(grade.gt_correct for grade in grader.grade(work)), "a right solution fails"


def grading() -> None:
    """Print one line per tier that this machine has."""
    work, cores = workload(), os.cpu_count() or 1
    for tier, lacking in tiers.available_tiers().items():
        if lacking:
            print(f"grading tier {tier}: lacks {', '.join(lacking)}")
            continue
        with contextlib.ExitStack() as stack:
            one, many = (stack.enter_context(Grader(workers=n, tier=tier)) for n in (1, cores))
            ways = {
                "one": lambda one=one: grade_all(work, one),
                "many": lambda many=many: grade_all(work, many),
                "user": lambda: call_here(work),
            }
            times = interleaved(ways, REPEATS)
        each = {name: 1000 * taken.wall / len(work) for name, taken in times.items()}
        print(
            f"grading tier {tier}: {each['one']:.2f} ms a grade with 1 worker ({1000 / each['one']:.0f} a second), "
            f"{cores} workers x{each['one'] / each['many']:.2f}; "
            f"user code {each['user'] / each['one']:.0%}"
        )


if __name__ == "__main__":
    grading()
