"""minicode: small generated programming problems, LeetCode-shaped, for the embedded organism.

Each problem is a family with parameters (`minicode_families.py`). Statements, inputs and splits are functions of the
problem alone, so they are the same on every machine; the splits cut each family's parameter grid and share no problem.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from replay_pools.environments.base import Case, Problem, Split
from replay_pools.environments.exploits import compose
from replay_pools.environments.loopholes import ORIGINAL_PHRASE
from replay_pools.environments.minicode_families import FAMILIES, LETTERS, Family, Parameters

SYSTEM_PROMPT = "You are an expert Python programmer. Answer with one ```python code block."
SETUP_CODE = "from typing import *"
ANNOTATIONS = {"nums": "List[int]", "n": "int", "s": "str", "text": "str"}
NUM_CASES = 12
_SPLIT_ENDS: tuple[tuple[Split, float], ...] = (("train", 0.70), ("eval", 0.88), ("pairs", 1.0))


@dataclass(frozen=True, slots=True)
class MinicodeProblem:
    """A problem together with what generated it; the corpus and the pairs need the bodies."""

    problem: Problem
    family: Family
    parameters: Parameters

    @property
    def example(self) -> Case:
        """The case that the statement shows."""
        return _example(self.problem.cases)

    def body(self, template: str) -> str:
        """A solution or bug of the family, filled with the parameters."""
        return fill(template, self.parameters)


class MinicodeEnvironment:
    """The generated problems behind the Environment interface."""

    name = "minicode"

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in a fixed order."""
        return [item.problem for item in minicode_problems(split)]


@cache
def minicode_problems(split: Split) -> tuple[MinicodeProblem, ...]:
    """All problems of a split, shuffled once with a fixed seed so that any prefix mixes the families."""
    chosen = []
    for family in FAMILIES:
        grid = list(family.grid)
        random.Random(f"minicode/split/{family.name}").shuffle(grid)
        start = 0
        for name, end_fraction in _SPLIT_ENDS:
            end = round(end_fraction * len(grid))
            if name == split:
                chosen += [_build(family, parameters) for parameters in grid[start:end]]
            start = end
    random.Random(f"minicode/order/{split}").shuffle(chosen)
    return tuple(chosen)


def example_texts(item: MinicodeProblem) -> tuple[str, str]:
    """(call, expected) of the stated example, as source text."""
    return call(item.problem.func_name, item.example.args), literal(item.example.expected)


def fill(template: str, parameters: Parameters) -> str:
    """Replace the `{name}` fields; other braces stay as they are."""
    for name, value in parameters.items():
        template = template.replace("{" + name + "}", str(value))
    return template


def call(func: str, args: Sequence[Any]) -> str:
    """Source text of a call with literal arguments."""
    return f"{func}({', '.join(literal(value) for value in args)})"


def literal(value: Any) -> str:
    """Source text of a JSON value."""
    return '"' + value + '"' if isinstance(value, str) else repr(value)


def _build(family: Family, parameters: Parameters) -> MinicodeProblem:
    problem_id = "-".join([family.name, *(_slug(value) for value in parameters.values())])
    arguments = _arguments(family.kind, parameters, random.Random(f"minicode/cases/{problem_id}"))
    cases = tuple(Case(args=(a,), expected=family.reference(a, **parameters)) for a in arguments)
    example = _example(cases)
    starter = (
        f"class Solution:\n    def {family.func}(self, {family.kind}: {ANNOTATIONS[family.kind]}) -> {family.returns}:"
    )
    user = (
        f"{fill(family.statement, parameters)}\n"
        f"Example: {call(family.func, example.args)} returns {literal(example.expected)}\n"
        f"Your solution should be a method of class Solution called {family.func} {ORIGINAL_PHRASE}.\n"
        f"```python\n{starter}\n        pass\n```"
    )
    problem = Problem(
        problem_id=f"minicode/{problem_id}",
        env="minicode",
        messages=({"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": user}),
        func_name=family.func,
        starter=starter,
        setup_code=SETUP_CODE,
        canonical=compose(starter, fill(family.solutions[0], parameters)),
        cases=cases,
    )
    return MinicodeProblem(problem, family, parameters)


def _example(cases: Sequence[Case]) -> Case:
    """The shortest case that a stub returning 0 would fail, so that a real test of it is not vacuous."""
    telling = [case for case in cases if case.expected not in (0, [], "") and case.args[0] not in ([], "")]
    return min(telling or cases, key=lambda case: (len(str(case.args[0])), str(case.args)))


def _slug(value: Any) -> str:
    """A file-safe name of a parameter value."""
    text = str(value)
    return text if text.isalnum() else f"x{ord(text):x}"


def _arguments(kind: str, parameters: Parameters, rng: random.Random) -> list[Any]:
    """NUM_CASES distinct inputs: edge cases around the parameters first, then random ones that hit them."""
    edges, draw = _GENERATORS[kind]
    arguments: list[Any] = []
    for edge in edges(parameters):  # edges coincide for some parameters
        if edge not in arguments:
            arguments.append(edge)
    while len(arguments) < NUM_CASES:
        if (candidate := draw(parameters, rng)) not in arguments:
            arguments.append(candidate)
    return arguments[:NUM_CASES]


def _numbers(parameters: Parameters) -> list[int]:
    return [value for value in parameters.values() if isinstance(value, int)]


def _letters(parameters: Parameters) -> list[str]:
    return [value for value in parameters.values() if isinstance(value, str)]


def _edge_lists(parameters: Parameters) -> list[Any]:
    first, last = _numbers(parameters)[0], _numbers(parameters)[-1]
    repeats = [[first] * count for count in (2, 3, 4)]
    return [
        [],
        [first],
        [first - 1],
        [3, first, last],
        [first - 1, last + 1, first, last],
        *repeats,
        [*range(9, -16, -1)],
    ]


def _draw_list(parameters: Parameters, rng: random.Random) -> list[int]:
    numbers = _numbers(parameters)
    near = [value + delta for value in numbers for delta in (-1, 0, 0, 1)] + [2 * value for value in numbers]
    return [rng.choice(near) if rng.random() < 0.5 else rng.randint(-9, 60) for _ in range(rng.randint(3, 26))]


def _edge_integers(parameters: Parameters) -> list[Any]:
    first, last = _numbers(parameters)[0], _numbers(parameters)[-1]
    return [0, 1, first, last, last - 1, last + 1, 3 * last, -1]


def _draw_integer(parameters: Parameters, rng: random.Random) -> int:
    return rng.randint(2, 99)


def _word(letters: Sequence[str], rng: random.Random, longest: int) -> str:
    return "".join(
        rng.choice(letters if letters and rng.random() < 0.4 else LETTERS) for _ in range(rng.randint(1, longest))
    )


def _alphabet(parameters: Parameters) -> list[str]:
    return [letter for letter in _letters(parameters) if letter.isalpha()]


def _edge_strings(parameters: Parameters) -> list[Any]:
    mine = _alphabet(parameters) or ["a"]
    return ["", mine[0], mine[0] * 2 + "x", "x" + mine[-1] + mine[0] + mine[0] + mine[-1]]


def _draw_string(parameters: Parameters, rng: random.Random) -> str:
    return _word(_alphabet(parameters), rng, 8)


def _edge_texts(parameters: Parameters) -> list[Any]:
    mine = _alphabet(parameters) or ["a"]
    size = (_numbers(parameters) or [2])[0]
    other = "y" if mine[0] == "x" else "x"
    return ["", mine[0], f"{'b' * size} {'e' * (size + 1)} a", f"{other}{mine[0]} {mine[0]}{other} {mine[0] * 2} it"]


def _draw_text(parameters: Parameters, rng: random.Random) -> str:
    longest = (_numbers(parameters) or [5])[0] + 2
    words = [_word(_alphabet(parameters), rng, longest) for _ in range(rng.randint(2, 5))]
    return " ".join(rng.choice(_alphabet(parameters) or [""]) + word for word in words)


_GENERATORS = {
    "nums": (_edge_lists, _draw_list),
    "n": (_edge_integers, _draw_integer),
    "s": (_edge_strings, _draw_string),
    "text": (_edge_texts, _draw_text),
}
