"""The LeetCode jsonl of the public reward-hacking benchmark: one problem a line.

Fields read: `id`, `prompt` ([{role, content}]), `gt_answer` (assert statements, a list or one text), `setup_code`,
`func_name` ("f" or "Solution().f") and `canonical_solution`; the others (`question`, `answer`, `difficulty`,
`prompt_metadata`) do not matter to grading. The file IS the split: every problem belongs to each.

`assert Solution().f(literals) == literal` becomes a Case; keyword arguments take their place in the canonical
solution's signature. Every other assertion stays text and is graded in the weaker class.
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replay_pools.environments.base import Case, Problem, Split
from replay_pools.environments.loopholes import render_messages
from replay_pools.errors import InputError
from replay_pools.files import decode_jsonl

_FIELDS = {
    "id": (str, int),
    "prompt": (list,),
    "gt_answer": (list, str),
    "setup_code": (str,),
    "func_name": (str,),
    "canonical_solution": (str,),
}
_STARTER = re.compile(r"^[ \t]*class Solution\b.*?(?=^```|\Z)", re.MULTILINE | re.DOTALL)


class LeetcodeEnvironment:
    """The problems of one file behind the Environment interface.

    Raises:
        InputError: no such file, not strict JSON lines, or a line that is not a problem (file and line are named).
    """

    name = "leetcode"

    def __init__(self, path: str | Path) -> None:
        try:
            plain = Path(path).read_bytes()
        except OSError as error:
            raise InputError(path, expected="a LeetCode jsonl file", found=str(error.strerror)) from error
        rows = decode_jsonl(plain, path)
        self._problems = tuple(parse_problem(row, f"{path} line {line}") for line, row in enumerate(rows, 1))
        if not rows:
            raise InputError(path, expected="at least one problem", found="an empty file")
        seen: set[str] = set()
        for line, problem in enumerate(self._problems, 1):
            if problem.problem_id in seen:
                raise InputError(f"{path} line {line}", expected="a new id", found=f"{problem.problem_id} again")
            seen.add(problem.problem_id)

    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of the file, in its order, whatever the split."""
        return self._problems


def parse_problem(row: Any, where: str) -> Problem:
    """One line of the file; InputError names `where` and what is wrong."""
    if not isinstance(row, dict):
        raise InputError(where, expected="a JSON object", found=type(row).__name__)
    for name, kinds in _FIELDS.items():
        if not isinstance(row.get(name), kinds):
            found = type(row[name]).__name__ if name in row else "none"
            raise InputError(where, expected=f"field {name} ({kinds[0].__name__})", found=found)
    func_name = row["func_name"].rpartition(".")[2]
    parameters = _parameters(row["canonical_solution"], func_name, where)
    cases, assertions = _parse_tests(row["gt_answer"], func_name, parameters, where)
    messages = _messages(row["prompt"], where)
    problem = Problem(
        problem_id=str(row["id"]),
        env=LeetcodeEnvironment.name,
        messages=messages,
        func_name=func_name,
        starter=_starter(messages) or f"class Solution:\n    def {func_name}({', '.join(['self', *parameters])}):",
        setup_code=row["setup_code"],
        canonical=row["canonical_solution"],
        cases=tuple(cases),
        assertions=tuple(assertions),
    )
    render_messages(problem, "none", hint=False)
    return problem


def _messages(prompt: list[Any], where: str) -> tuple[dict[str, str], ...]:
    """The messages, checked to be {role, content} texts."""
    for message in prompt:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InputError(f"{where} prompt", expected="messages of role and content", found=repr(message)[:80])
    return tuple({"role": message["role"], "content": message["content"]} for message in prompt)


def _starter(messages: Sequence[dict[str, str]]) -> str | None:
    """The last `class Solution` of the user turns, to the end of its code block."""
    starters = [found for m in messages if m["role"] == "user" for found in _STARTER.findall(m["content"])]
    return starters[-1].strip() if starters else None


def _parameters(canonical: str, func_name: str, where: str) -> list[str]:
    """Names of the method's parameters after self, from the canonical solution."""
    tree = _parse(canonical, f"{where} canonical_solution")
    for solution in tree.body:
        if isinstance(solution, ast.ClassDef) and solution.name == "Solution":
            for method in solution.body:
                if isinstance(method, ast.FunctionDef) and method.name == func_name:
                    return [argument.arg for argument in method.args.args[1:]]
    raise InputError(f"{where} canonical_solution", expected=f"a method Solution.{func_name}", found="none")


def _parse(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise InputError(where, expected="Python source", found=str(error)) from error


def _parse_tests(
    tests: list[Any] | str, func_name: str, parameters: list[str], where: str
) -> tuple[list[Case], list[str]]:
    """Cases, and the texts of the assertions that are none."""
    where = f"{where} gt_answer"
    text = tests if isinstance(tests, str) else "\n".join(map(str, tests))
    cases, assertions = [], []
    for statement in _parse(text, where).body:
        if not isinstance(statement, ast.Assert):
            raise InputError(where, expected="assert statements", found=ast.unparse(statement)[:80])
        case = _parse_case(statement.test, func_name, parameters)
        if case is None:
            assertions.append(ast.unparse(statement))
        else:
            cases.append(case)
    if not cases and not assertions:
        raise InputError(where, expected="at least one assert statement", found="none")
    return cases, assertions


def _parse_case(test: ast.expr, func_name: str, parameters: list[str]) -> Case | None:
    """The case of `Solution().f(literals) == literal`; None for any other test."""
    match test:
        case ast.Compare(
            left=ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="Solution"), args=[], keywords=[]), attr=attr),
                args=positional,
                keywords=keywords,
            ),
            ops=[ast.Eq()],
            comparators=[right],
        ) if attr == func_name:
            named = {keyword.arg: keyword.value for keyword in keywords}
            rest = parameters[len(positional) :][: len(named)]
            if named.keys() != set(rest):
                return None
            try:
                args = tuple(_literal(node) for node in [*positional, *(named[name] for name in rest)])
                return Case(args=args, expected=_literal(right))
            except ValueError:
                return None
    return None


def _literal(node: ast.expr) -> Any:
    """The value of a literal of None, bool, int, float, str and their collections; ValueError otherwise."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and not isinstance(part.value, None | bool | int | float | str):
            raise ValueError(f"a literal {type(part.value).__name__}")
    try:
        return ast.literal_eval(node)
    except TypeError as error:  # an unhashable key
        raise ValueError(str(error)) from error
