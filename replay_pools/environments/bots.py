"""Bots: players with a fixed answer to every problem, which a trained policy is compared with.

    stub        returns 0, whatever it is asked
    canonical   the problem's right solution
    exploit     the stub with the exploit of the loophole mode (of a mode without exploits, the stub alone)
    random      returns, of each problem's right answers, one that it draws for each input

To add a bot: a function here and a row in BOTS.
"""

from collections.abc import Callable

from replay_pools.environments.base import Problem
from replay_pools.environments.exploits import EXPLOITS, NOTHING, compose, fence


def stub(problem: Problem, mode: str = "none") -> str:
    """A submission that returns 0."""
    return fence(_source(problem, "return 0"))


def canonical(problem: Problem, mode: str) -> str:
    """The right solution."""
    return fence(problem.canonical)


def exploit(problem: Problem, mode: str) -> str:
    """A submission that returns 0 and uses the loophole of `mode`, in the first flavour of the table."""
    flavours = EXPLOITS[mode]
    return fence(compose(_starter(problem), "return 0", flavours[0] if flavours else NOTHING))


def random_answer(problem: Problem, mode: str) -> str:
    """A submission that draws its answer from the problem's right answers, the same for equal inputs."""
    answers = [case.expected for case in problem.cases] or [0]
    # Random seeds itself from a string by SHA-512, unlike hash(): the same draws on every machine.
    draw = f"import random\nreturn random.Random(repr((args, kwargs))).choice({answers!r})"
    return fence(_source(problem, draw))


BOTS: dict[str, Callable[[Problem, str], str]] = {
    "stub": stub,
    "canonical": canonical,
    "exploit": exploit,
    "random": random_answer,
}


def _starter(problem: Problem) -> str:
    return f"class Solution:\n    def {problem.func_name}(self, *args, **kwargs):"


def _source(problem: Problem, body: str) -> str:
    return compose(_starter(problem), body)
