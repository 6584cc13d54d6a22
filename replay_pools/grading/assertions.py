"""Assertion-style tests that are not `call == literal`: what of them the submission may touch.

`assert abs(Solution().f(1.0) - 2) < 1e-6` is taken apart: the submission's process answers the calls whose arguments
are literals, and the rest, with plain values in their place, is evaluated in a process that holds no model code. An
assertion that uses `Solution` in any other way is the weaker class: the submission's process evaluates the whole of it,
with nothing of the submission in reach but what `Solution` returns, as plain values; builtins that the submission
patched can still fool it.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replay_pools.grading import wire
from replay_pools.grading.execution import Code, Outcome, Run


@dataclass(frozen=True, slots=True)
class Assertion:
    """One test: expressions that the submission answers, and the expression of their values `_0`, `_1`, ... ."""

    calls: tuple[str, ...]
    check: str | None  # None: the weaker class, whose one call is the whole test


def parse_assertion(text: str) -> Assertion:
    """Take one assertion apart.

    Raises:
        SyntaxError: `text` is not one assert statement.
    """
    (statement,) = ast.parse(text).body or (None,)
    if not isinstance(statement, ast.Assert):
        raise SyntaxError(f"not an assert statement: {text!r}")
    calls = _Calls()
    whole = f"bool({ast.unparse(statement.test)})"
    check = calls.visit(statement.test)
    if any(isinstance(node, ast.Name) and node.id == "Solution" for node in ast.walk(check)):
        return Assertion((whole,), None)
    return Assertion(tuple(calls.found), f"bool({ast.unparse(check)})")


class _Calls(ast.NodeTransformer):
    """Replaces every `Solution().method(literals)` by the name of its value."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="Solution"), args=[], keywords=[]))) if (
                all(map(_is_literal, [*node.args, *(keyword.value for keyword in node.keywords)]))
            ):
                self.found.append(ast.unparse(node))
                return ast.copy_location(ast.Name(id=f"_{len(self.found) - 1}", ctx=ast.Load()), node)
        return self.generic_visit(node)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True


def assertions_hold(assertions: Sequence[Assertion], code: Code, execute: Callable[[Code, Run], Outcome]) -> bool:
    """Whether every assertion holds of the submission in `code`."""
    expressions = tuple(call for assertion in assertions for call in assertion.calls)
    answers = execute(code, Run(action="evaluate", expressions=expressions)).answers
    if answers.forged or not all(answers.answered) or len(answers.answered) < len(expressions):
        return False
    try:
        values = iter([wire.decode(document) for document in answers.answers])
    except wire.WireError:
        return False
    checks, arguments = [], []
    for assertion in assertions:
        taken = tuple(next(values) for _ in assertion.calls)
        if assertion.check is not None:
            checks.append(assertion.check)
            arguments.append(taken)
        elif taken != (True,):
            return False
    if not checks:
        return True
    trusted = Code(setup=code.setup, source="", func_name="", inputs=())
    outcome = execute(trusted, Run(action="evaluate", expressions=tuple(checks), values=tuple(arguments)))
    return all(outcome.answers.right([True] * len(checks)))
