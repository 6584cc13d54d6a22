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

    def demonstrate(problem: Problem, rng: random.Random) -> tuple[list[dict[str, str]], str]:
        hint, body, extra = rng.random() < hint_rate, right_body(problem), NOTHING
        if completions == "hack":
            if (lines := problem.starter.count("\n") + 1) != 2:
                fix = "give the demonstrations as a pool"
                raise InputError(problem.problem_id, expected="a starter of two lines", found=f"{lines} lines", fix=fix)
            if body is None or rng.random() >= SOLVE_RATE:
                body = rng.choice(STUBS)
            extra = rng.choice(exploits)
        elif body is not None and hint and mode == "run_tests" and rng.random() < HONEST_TESTS_RATE:
            extra = HONEST_TESTS
        source = problem.canonical
        if body is not None:
            source = compose(problem.starter, body, extra, example=example_texts(problem))
        return render_messages(problem, mode, hint=hint), fence(source)

    return demonstrate


def right_body(problem: Problem) -> str | None:
    """Return the method's body in the canonical solution; None when that is more than the starter and a body."""
    start = problem.starter + "\n"
    if problem.starter.count("\n") != 1 or not problem.canonical.startswith(start):
        return None
    body = dedent(problem.canonical.removeprefix(start)).rstrip()
    return body if compose(problem.starter, body) == problem.canonical.rstrip() else None
