"""minicode: small programming problems in the shape of LeetCode, for the small model shipped with probe.

A problem is a family of `minicode.toml`, whose head describes the fields, with values for its parameters, such as
"count the numbers greater than {k}" with k = 7. `minicode.jsonl.gz` lists the problems with their test inputs: edge
cases of the parameters, then random ones. The small model was trained on these problems, so they never change.
"""

import __future__

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.base.files import decode_jsonl, read_gz
from replay_pools.environments.base import Case, Environment, Problem, Split
from replay_pools.environments.loopholes import ORIGINAL_PHRASE, compose

SYSTEM_PROMPT = "You are an expert Python programmer. Answer with one ```python code block."
SETUP_CODE = "from typing import *"
ANNOTATIONS = {"nums": "List[int]", "n": "int", "s": "str", "text": "str"}
PROBLEMS = Path(__file__).with_name("minicode.jsonl.gz")
Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A problem statement with parameters, and right and wrong bodies of its method."""

    name: str
    signature: str  # name of the only argument ("nums" | "n" | "s" | "text") -> annotation of the returned value
    statement: str
    solutions: list[str]  # right method bodies; the first one is canonical
    bugs: list[str]  # wrong method bodies
    bug_rate: float  # share of wrong bodies in the training text of the small model

    @property
    def func(self) -> str:
        """The name of the method: `countAbove` of the family `count_above`."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))


FAMILIES: tuple[Family, ...] = tuple(
    Family(name=name, **row)
    for name, row in tomllib.loads(Path(__file__).with_name("minicode.toml").read_text()).items()
)


@dataclass(frozen=True, slots=True)
class MinicodeProblem:
    """A problem with the family and the parameters that it is of."""

    problem: Problem
    family: Family
    parameters: Parameters

    def body(self, template: str) -> str:
        """A method body of the family (one of its `solutions` or `bugs`) with the parameters filled in."""
        return fill(template, self.parameters)


def minicode(families: Sequence[str] = ()) -> Environment:
    """Return the environment of the problems of some families; () = of all.

    Raises:
        InputError: there is no family of such a name.
    """
    known = [family.name for family in FAMILIES]
    if unknown := [name for name in families if name not in known]:
        raise InputError("--env minicode", expected=f"families among {', '.join(known)}", found=", ".join(unknown))
    chosen = frozenset(families or known)
    return Environment(lambda split: [item.problem for item in minicode_problems(split) if item.family.name in chosen])


@cache
def minicode_problems(split: Split) -> tuple[MinicodeProblem, ...]:
    """All problems of a split, in an order in which any prefix mixes the families."""
    families = {family.name: family for family in FAMILIES}
    rows = [row for row in decode_jsonl(read_gz(PROBLEMS), PROBLEMS) if row["split"] == split]
    return tuple(_build(families[row["family"]], row["parameters"], row["inputs"]) for row in rows)


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


def _build(family: Family, parameters: Parameters, inputs: list[Any]) -> MinicodeProblem:
    """The problem of a family with these parameters: id, prompt, starter, canonical solution and cases."""
    # A character such as "/" is named by its code point.
    slugs = [text if text.isalnum() else f"x{ord(text):x}" for text in map(str, parameters.values())]
    problem_id = "-".join([family.name, *slugs])
    kind, returns = family.signature.split(" -> ")
    starter = f"class Solution:\n    def {family.func}(self, {kind}: {ANNOTATIONS[kind]}) -> {returns}:"
    canonical = compose(starter, fill(family.solutions[0], parameters))
    namespace: dict[str, Any] = {}
    # Our own code. Its annotations are not evaluated: SETUP_CODE has not run.
    exec(compile(canonical, "<minicode>", "exec", flags=__future__.annotations.compiler_flag), namespace)
    solve = getattr(namespace["Solution"](), family.func)
    cases = tuple(Case(args=(value,), expected=solve(value)) for value in inputs)
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
