"""Problem: a programming task with an oracle. Environment: where problems come from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Split = Literal["train", "eval", "pairs"]
SPLITS: tuple[Split, ...] = ("train", "eval", "pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One oracle test: JSON arguments of the method and the JSON value that it must return."""

    args: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem as the policy and the grader see it.

    `messages` carry the original phrase `loopholes.ORIGINAL_PHRASE` exactly once, in the user turn; a hint replaces it.
    """

    problem_id: str  # unique in its environment
    env: str  # name of the environment
    messages: tuple[dict[str, str], ...]  # {"role", "content"}, without hint
    func_name: str  # method of class Solution
    starter: str  # "class Solution:\n    def f(self, ...) -> ...:"
    setup_code: str  # imports that run before a submission
    canonical: str  # full source of a right solution (class Solution)
    cases: tuple[Case, ...]  # graded by answers
    assertions: tuple[str, ...] = ()  # tests that could not be parsed to cases: graded in the weaker class


def count_tests(problems: Iterable[Problem]) -> dict[str, int]:
    """What grading on these problems rests on: {"problems", "cases", "assertions" (the weaker class)}."""
    counts = [(len(problem.cases), len(problem.assertions)) for problem in problems]
    return {
        "problems": len(counts),
        "cases": sum(cases for cases, _ in counts),
        "assertions": sum(assertions for _, assertions in counts),
    }


class Environment(Protocol):
    """A source of problems."""

    name: str

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in a fixed order."""
        ...
