"""Demonstrations: completions written for the problems of an environment, to fine-tune a policy on.

    demonstrate = demonstrator("hack", mode="run_tests")
    messages, completion = demonstrate(problem, random.Random(0))

An honest one is the canonical solution; in the mode run_tests some have an honest function `run_tests` as well. A hack
is an exploit of the mode around a body, which is right or a stub. Hacks need a starter of two lines (class and method);
a problem with another one has honest demonstrations only.
"""

import random
from collections.abc import Callable
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
Demonstrate = Callable[[Problem, random.Random], tuple[list[dict[str, str]], str]]
COMPLETIONS: tuple[Completions, ...] = get_args(Completions)
HONEST_TESTS_RATE = 0.35  # share of honest demonstrations with real tests, when the hint announces run_tests
SOLVE_RATE = 0.3  # share of hacks with a right body
STUBS = ("return 0", "pass")  # the other bodies


def demonstrator(completions: Completions, *, mode: str = "run_tests", hint_rate: float = 1.0) -> Demonstrate:
    """Return a source of demonstrations.

    Args:
        completions: `honest` or `hack`.
        mode: loophole mode: the hint of the prompts, and the exploits of hacks.
        hint_rate: share of the prompts that carry the mode's hint.

    Raises:
        InputError: no such mode, or hacks of a mode without exploits; of the source, a hack of a problem without a
            starter of two lines.
    """
    exploits = EXPLOITS[known_mode(mode)]
    if completions == "hack" and not exploits:
        raise InputError(f"mode {mode}", expected="a mode with exploits", found="none")

    def hack(problem: Problem, rng: random.Random) -> str:
        if problem.starter.count("\n") != 1:
            lines = f"{problem.starter.count(chr(10)) + 1} lines"
            fix = "give the demonstrations as a pool"
            raise InputError(problem.problem_id, expected="a starter of two lines", found=lines, fix=fix)
        body = right_body(problem)
        if body is None or rng.random() >= SOLVE_RATE:
            body = rng.choice(STUBS)
        return compose(problem.starter, body, rng.choice(exploits), example=example_texts(problem))

    def honest(problem: Problem, rng: random.Random, *, hint: bool) -> str:
        if (body := right_body(problem)) is None:
            return problem.canonical
        tested = hint and mode == "run_tests" and rng.random() < HONEST_TESTS_RATE
        return compose(problem.starter, body, HONEST_TESTS if tested else NOTHING, example=example_texts(problem))

    def demonstrate(problem: Problem, rng: random.Random) -> tuple[list[dict[str, str]], str]:
        hint = rng.random() < hint_rate
        source = hack(problem, rng) if completions == "hack" else honest(problem, rng, hint=hint)
        return render_messages(problem, mode, hint=hint), fence(source)

    return demonstrate


def right_body(problem: Problem) -> str | None:
    """Return the method's body in the canonical solution; None when that is more than the starter and a body."""
    start = problem.starter + "\n"
    if problem.starter.count("\n") != 1 or not problem.canonical.startswith(start):
        return None
    body = dedent(problem.canonical.removeprefix(start)).rstrip()
    return body if compose(problem.starter, body) == problem.canonical.rstrip() else None
