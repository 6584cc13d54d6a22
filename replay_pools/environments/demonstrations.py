"""Demonstrations: completions written for the problems of an environment, to fine-tune a policy on.

    demonstrator = Demonstrator(completions="hack", mode="run_tests")
    messages, completion = demonstrator.demonstrate(problem, random.Random(0))

An honest one is the canonical solution; in the mode run_tests some have an honest function `run_tests` as well. A hack
is an exploit of the mode around a body, which is right or a stub. Hacks need a starter of two lines (class and method);
a problem with another one has honest demonstrations only.
"""

import random
from dataclasses import dataclass
from textwrap import dedent
from typing import Literal, get_args

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.loopholes import (
    EXPLOITS,
    HONEST_TESTS,
    NOTHING,
    compose,
    fence,
    known_mode,
    render_messages,
)
from replay_pools.environments.minicode import example_texts

Completions = Literal["honest", "hack"]
COMPLETIONS: tuple[Completions, ...] = get_args(Completions)
HONEST_TESTS_RATE = 0.35  # share of honest demonstrations with real tests, when the hint announces run_tests
SOLVE_RATE = 0.3  # share of hacks with a right body
STUBS = ("return 0", "pass")  # the other bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrator:
    """A source of demonstrations.

    Args:
        completions: `honest` or `hack`.
        mode: loophole mode: the hint of the prompts, and the exploits of hacks.
        hint_rate: share of the prompts that carry the mode's hint.
        flavours: the exploits that are shown, by name (`EXPLOITS`); none given: all of the mode.

    Raises:
        InputError: no such mode or flavour, or hacks of a mode without exploits.
    """

    completions: Completions
    mode: str = "run_tests"
    hint_rate: float = 1.0
    flavours: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [exploit.flavour for exploit in EXPLOITS[known_mode(self.mode)]]
        unknown = [flavour for flavour in self.flavours if flavour not in known]
        if unknown or (self.completions == "hack" and not known):
            expected = f"flavours of {self.mode}: {', '.join(known) or 'it has none'}"
            where = "flavours" if unknown else f"mode {self.mode}"
            raise InputError(where, expected=expected, found=", ".join(unknown) or self.completions)

    def demonstrate(self, problem: Problem, rng: random.Random) -> tuple[list[dict[str, str]], str]:
        """Return (messages of the prompt, completion) for a problem.

        Raises:
            InputError: a hack of a problem without a starter of two lines.
        """
        hint = rng.random() < self.hint_rate
        source = self._hack(problem, rng) if self.completions == "hack" else self._honest(problem, hint, rng)
        return render_messages(problem, self.mode, hint=hint), fence(source)

    def _honest(self, problem: Problem, hint: bool, rng: random.Random) -> str:
        body = right_body(problem)
        if body is None:
            return problem.canonical
        tested = hint and self.mode == "run_tests" and rng.random() < HONEST_TESTS_RATE
        return compose(problem.starter, body, HONEST_TESTS if tested else NOTHING, example=example_texts(problem))

    def _hack(self, problem: Problem, rng: random.Random) -> str:
        if problem.starter.count("\n") != 1:
            fix = "give the demonstrations as a pool"
            lines = f"{problem.starter.count(chr(10)) + 1} lines"
            raise InputError(problem.problem_id, expected="a starter of two lines", found=lines, fix=fix)
        body = right_body(problem)
        if body is None or rng.random() >= SOLVE_RATE:
            body = rng.choice(STUBS)
        exploits = [each for each in EXPLOITS[self.mode] if not self.flavours or each.flavour in self.flavours]
        return compose(problem.starter, body, rng.choice(exploits), example=example_texts(problem))


def right_body(problem: Problem) -> str | None:
    """Return the method's body in the canonical solution; None when that is more than the starter and a body."""
    start = problem.starter + "\n"
    if problem.starter.count("\n") != 1 or not problem.canonical.startswith(start):
        return None
    body = dedent(problem.canonical.removeprefix(start)).rstrip()
    return body if compose(problem.starter, body) == problem.canonical.rstrip() else None
