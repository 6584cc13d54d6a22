"""Grades per second of the warm grader, by tier and number of workers: python tests/bench/bench_grading.py

Work: right solutions of minicode in mode none, one execution each: what a grade costs when the solution costs nothing.
"""

import os
from functools import partial

from timing import interleaved, is_quick, show

from replay_pools.environments.loopholes import fence
from replay_pools.environments.registry import get_environment
from replay_pools.grading import tiers
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission


def grade_all(work: list[Submission], grader: Grader) -> None:
    assert all(grade.gt_correct for grade in grader.grade(work)), "a right solution fails"


def main() -> None:
    """Print a line for each tier of this machine."""
    number, repeats = (4, 1) if is_quick(__doc__) else (32, 5)
    problems, cores = get_environment("minicode").problems("train")[:number], os.cpu_count() or 1
    work = [Submission(problem=p, completion=fence(p.canonical), mode="none") for p in problems]
    print("a grade")
    for tier, lacking in tiers.available_tiers().items():
        if lacking:
            show(f"tier {tier}", lacks=", ".join(lacking))
            continue
        with Grader(workers=1, tier=tier) as one, Grader(workers=cores, tier=tier) as many:
            ways = {name: partial(grade_all, work, grader) for name, grader in (("one", one), ("many", many))}
            each = {name: 1000 * taken.wall / len(work) for name, taken in interleaved(ways, repeats).items()}
        show(
            f"tier {tier}", ms=each["one"], a_second=1000 / each["one"], workers=cores, gain=each["one"] / each["many"]
        )


if __name__ == "__main__":
    main()
