"""The records of a programming task (`Problem`, `Case`) and a source of them (`Environment`).

The oracle of a problem is its list of cases: the method is right when it returns every expected value.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

# What `--env` takes; here, since settings name environments without their parsers.
NAMES = "minicode, minicode:FAMILY,FAMILY, leetcode:FILE.jsonl or leetcode:TRAIN.jsonl,eval=TEST.jsonl"
Split = Literal["train", "eval", "pairs"]
SPLITS: tuple[Split, ...] = ("train", "eval", "pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test of the oracle: JSON arguments of the method and the JSON value that it must return."""

    args: tuple[Any, ...]
    expected: Any
    is_listed: bool = False  # `list(method(*args))` must be the expected value


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A programming task: the prompt that the policy sees and the tests that the grader runs.

    The user turn in `messages` holds the phrase `loopholes.ORIGINAL_PHRASE` exactly once; a hint replaces it.
    """

    problem_id: str  # unique in its environment
    env: str  # name of the environment
    messages: tuple[dict[str, str], ...]  # {"role", "content"}, without hint
    func_name: str  # method of class Solution
    starter: str  # "class Solution:\n    def f(self, ...) -> ...:"
    setup_code: str  # imports that run before a submission
    canonical: str  # full source of a right solution (class Solution)
    cases: tuple[Case, ...]  # graded by answers: the submission never sees an expected value


def count_tests(problems: Iterable[Problem]) -> dict[str, int]:
    """Return how much evidence grading on these problems has: {"problems", "cases"}."""
    counts = [len(problem.cases) for problem in problems]
    return {"problems": len(counts), "cases": sum(counts)}


@dataclass(frozen=True, slots=True)
class Environment:
    """A source of problems.

    To add one: write a function that returns it, and a branch in `registry.get_environment`. Every problem needs a
    canonical solution that passes its tests; `grading.canary` checks that.
    """

    problems: Callable[[Split], Sequence[Problem]]  # all problems of a split, in a fixed order
    left_out: tuple[str, ...] = ()  # ids of its problems that have a test other than `method(*args) == value`

    def by_id(self) -> dict[str, Problem]:
        """Return {problem_id: problem} of all splits."""
        return {problem.problem_id: problem for split in SPLITS for problem in self.problems(split)}
