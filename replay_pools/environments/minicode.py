"""minicode: small generated programming problems in the shape of LeetCode, for the small model shipped with probe.

A problem is a family of `minicode.toml`, whose head describes the fields, with values for its parameters, such as
"count the numbers greater than {k}" with k = 7. Its statement and its test inputs depend on the problem alone, so that
they are the same on every machine. The splits divide each family's grid of parameters and share no problem.
"""

import __future__

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Case, Problem, Split
from replay_pools.environments.loopholes import ORIGINAL_PHRASE, compose

SYSTEM_PROMPT = "You are an expert Python programmer. Answer with one ```python code block."
SETUP_CODE = "from typing import *"
ANNOTATIONS = {"nums": "List[int]", "n": "int", "s": "str", "text": "str"}
NUM_CASES = 12
# Each split with the fraction of a family's shuffled grid at which it ends.
_SPLIT_ENDS: tuple[tuple[Split, float], ...] = (("train", 0.70), ("eval", 0.88), ("pairs", 1.0))


Parameters = dict[str, Any]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# The grids that no product of ranges gives.
GRIDS: dict[str, list[Parameters]] = {
    # Each a in 2 ... 31, with three lengths.
    "intervals": [{"a": a, "b": a + length} for a in range(2, 32) for length in (4, 7, 13)],
    # Each letter with the ones 3, 8 and 15 places further on.
    "letter pairs": [{"c": c, "d": LETTERS[(i + step) % 26]} for i, c in enumerate(LETTERS) for step in (3, 8, 15)],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A problem statement with parameters, and right and wrong bodies of its method."""

    name: str
    kind: str  # name and kind of the only argument: "nums" | "n" | "s" | "text"
    returns: str  # annotation of the returned value
    statement: str
    solutions: tuple[str, ...]  # right method bodies; the first one is canonical
    bugs: tuple[str, ...]  # wrong method bodies
    grid: tuple[Parameters, ...]  # one problem each
    bug_rate: float  # share of wrong bodies in the training text of the small model

    @property
    def func(self) -> str:
        """The name of the method: `countAbove` of the family `count_above`."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))


def _family(name: str, row: dict[str, Any]) -> Family:
    kind, returns = row.pop("signature").split(" -> ")
    grid = row.pop("grid")
    if isinstance(grid, dict):
        ranges = [values if isinstance(values, str) else range(*values) for values in grid.values()]
        grid = [dict(zip(grid, values, strict=True)) for values in product(*ranges)]
    else:
        grid = GRIDS[grid]
    lists = {field: tuple(row.pop(field)) for field in ("solutions", "bugs")}
    return Family(name=name, kind=kind, returns=returns, grid=tuple(grid), **lists, **row)


_ROWS = tomllib.loads(Path(__file__).with_name("minicode.toml").read_text())
FAMILIES: tuple[Family, ...] = tuple(_family(name, row) for name, row in _ROWS.items())


@dataclass(frozen=True, slots=True)
class MinicodeProblem:
    """A problem with the family and the parameters that it was generated from."""

    problem: Problem
    family: Family
    parameters: Parameters

    def body(self, template: str) -> str:
        """A method body of the family (one of its `solutions` or `bugs`) with the parameters filled in."""
        return fill(template, self.parameters)


class MinicodeEnvironment:
    """The generated problems as an `Environment`.

    Args:
        families: names of the families that they are of; () = all.

    Raises:
        InputError: there is no family of such a name.
    """

    name = "minicode"
    left_out = ()

    def __init__(self, families: Sequence[str] = ()) -> None:
        known = [family.name for family in FAMILIES]
        if unknown := [name for name in families if name not in known]:
            raise InputError("--env minicode", expected=f"families among {', '.join(known)}", found=", ".join(unknown))
        self._families = frozenset(families or known)

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in a fixed order."""
        return [item.problem for item in minicode_problems(split) if item.family.name in self._families]


@cache
def minicode_problems(split: Split) -> tuple[MinicodeProblem, ...]:
    """All problems of a split, shuffled with a fixed seed so that any prefix mixes the families."""
    chosen = []
    for family in FAMILIES:
        # Random seeds itself from a string by SHA-512, unlike hash(): the same shuffle on every machine.
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


def example_texts(problem: Problem) -> tuple[str, str]:
    """The example that a statement shows, as source text: (call, expected value), such as ("double(3)", "6")."""
    case = stated_example(problem.cases)
    return call(problem.func_name, case.args), literal(case.expected)


def fill(template: str, parameters: Parameters) -> str:
    """Replace the `{name}` fields of `template`; braces around anything else stay as they are."""
    # No str.format: other braces in these templates are sets and dictionaries.
    for name, value in parameters.items():
        template = template.replace("{" + name + "}", str(value))
    return template


def call(func: str, args: Sequence[Any]) -> str:
    """Source text of a call with literal arguments."""
    return f"{func}({', '.join(literal(value) for value in args)})"


def literal(value: Any) -> str:
    """Source text of a JSON value: strings in double quotes (they must hold no quote), the rest as `repr` has it."""
    return '"' + value + '"' if isinstance(value, str) else repr(value)


def _build(family: Family, parameters: Parameters) -> MinicodeProblem:
    """The problem of a family with these parameters: id, prompt, starter, canonical solution and cases."""
    # A character such as "/" is named by its code point.
    slugs = [text if text.isalnum() else f"x{ord(text):x}" for text in map(str, parameters.values())]
    problem_id = "-".join([family.name, *slugs])
    arguments = _arguments(family.kind, parameters, random.Random(f"minicode/cases/{problem_id}"))
    starter = (
        f"class Solution:\n    def {family.func}(self, {family.kind}: {ANNOTATIONS[family.kind]}) -> {family.returns}:"
    )
    canonical = compose(starter, fill(family.solutions[0], parameters))
    namespace: dict[str, Any] = {}
    # Our own code. Its annotations are not evaluated: SETUP_CODE has not run.
    exec(compile(canonical, "<minicode>", "exec", flags=__future__.annotations.compiler_flag), namespace)
    solve = getattr(namespace["Solution"](), family.func)
    cases = tuple(Case(args=(value,), expected=solve(value)) for value in arguments)
    example = stated_example(cases)
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
        canonical=canonical,
        cases=cases,
    )
    return MinicodeProblem(problem, family, parameters)


def stated_example(cases: Sequence[Case]) -> Case:
    """The shortest case that a stub returning 0 would fail, so that a test made of it is not vacuous."""
    telling = [case for case in cases if case.expected not in (0, [], "") and case.args[0] not in ([], "")]
    return min(telling or cases, key=lambda case: (len(str(case.args[0])), str(case.args)))


def _arguments(kind: str, parameters: Parameters, rng: random.Random) -> list[Any]:
    """NUM_CASES distinct inputs: the edge cases of the parameters first, then random inputs.

    The problems are frozen: every draw from `rng` must keep its place, or all later inputs change.
    """
    edges, draw = _GENERATORS[kind]
    arguments: list[Any] = []
    for edge in edges(parameters):  # edges coincide for some parameters
        if edge not in arguments:
            arguments.append(edge)
    while len(arguments) < NUM_CASES:
        candidate = draw(parameters, rng)
        if candidate not in arguments:
            arguments.append(candidate)
    return arguments[:NUM_CASES]


def _numbers(parameters: Parameters) -> list[int]:
    return [value for value in parameters.values() if isinstance(value, int)]


def _letters(parameters: Parameters) -> list[str]:
    """The parameters that are letters; separators and padding characters are not."""
    return [value for value in parameters.values() if isinstance(value, str) and value.isalpha()]


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
    """3 to 26 numbers, half of them at or next to a parameter, or twice one, where the bugs of a family show."""
    near = []
    for number in _numbers(parameters):
        near += [number - 1, number, number, number + 1]
    near += [2 * number for number in _numbers(parameters)]
    drawn = []
    for _ in range(rng.randint(3, 26)):
        if rng.random() < 0.5:
            drawn.append(rng.choice(near))
        else:
            drawn.append(rng.randint(-9, 60))
    return drawn


def _edge_integers(parameters: Parameters) -> list[Any]:
    first, last = _numbers(parameters)[0], _numbers(parameters)[-1]
    return [0, 1, first, last, last - 1, last + 1, 3 * last, -1]


def _draw_word(letters: Sequence[str], rng: random.Random, longest: int) -> str:
    """Draw 1 to `longest` letters, 40% of them from `letters` if there are any."""
    word = ""
    for _ in range(rng.randint(1, longest)):
        word += rng.choice(letters if letters and rng.random() < 0.4 else LETTERS)
    return word


def _edge_strings(parameters: Parameters) -> list[Any]:
    letters = _letters(parameters) or ["a"]
    first, last = letters[0], letters[-1]
    return ["", first, first * 2 + "x", "x" + last + first + first + last]


def _edge_texts(parameters: Parameters) -> list[Any]:
    letter = (_letters(parameters) or ["a"])[0]
    length = (_numbers(parameters) or [2])[0]
    different = "y" if letter == "x" else "x"
    around_length = f"{'b' * length} {'e' * (length + 1)} a"
    around_letter = f"{different}{letter} {letter}{different} {letter * 2} it"
    return ["", letter, around_length, around_letter]


def _draw_text(parameters: Parameters, rng: random.Random) -> str:
    """2 to 5 words, each with one of the parameters' letters, if there are any, put before it."""
    letters = _letters(parameters)
    longest = (_numbers(parameters) or [5])[0] + 2
    words = [_draw_word(letters, rng, longest) for _ in range(rng.randint(2, 5))]
    return " ".join(rng.choice(letters or [""]) + word for word in words)


# Kind of input -> (its edge cases, one random input). A family of a new kind needs a row here and in ANNOTATIONS.
_GENERATORS = {
    "nums": (_edge_lists, _draw_list),
    "n": (_edge_integers, lambda _, rng: rng.randint(2, 99)),
    "s": (_edge_strings, lambda parameters, rng: _draw_word(_letters(parameters), rng, 8)),
    "text": (_edge_texts, _draw_text),
}
