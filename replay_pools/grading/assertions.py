"""Tests that are assert statements but no (arguments, expected) pair: which part of them the submission may compute.

    assert abs(Solution().f(1.0) - 2) < 1e-6

is split in two. The submission's process answers the call `Solution().f(1.0)`. The rest, `abs(_0 - 2) < 1e-6` with the
plain answer as `_0`, is evaluated in a process that holds no model code. Only calls with literal arguments can be
split off like this.

An assertion that uses `Solution` in any other way is of the weaker class: the submission's process evaluates all of it.
There, `Solution` returns plain values and nothing else of the submission is in scope, but builtins that the submission
patched can still fool it. It may also see what is expected, so this execution is the last of its sandbox.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replay_pools.grading.execution import Code, Execution, Outcome


@dataclass(frozen=True, slots=True)
class Assertion:
    """One test, split: the expressions that the submission answers, and a check of their values `_0`, `_1`, ... ."""

    calls: tuple[str, ...]
    check: str | None  # None: the weaker class, where the only call is the whole test


def parse_assertion(text: str) -> Assertion:
    """Split one assertion.

    Raises:
        SyntaxError: `text` is not one assert statement.
    """
    (statement,) = ast.parse(text).body or (None,)
    if not isinstance(statement, ast.Assert):
        raise SyntaxError(f"not an assert statement: {text!r}")
    replacer = _CallReplacer()
    # Before `visit`, which changes the tree in place.
    whole_test = f"bool({ast.unparse(statement.test)})"
    check = replacer.visit(statement.test)
    for node in ast.walk(check):
        if isinstance(node, ast.Name) and node.id == "Solution":
            return Assertion((whole_test,), None)
    return Assertion(tuple(replacer.calls), f"bool({ast.unparse(check)})")


class _CallReplacer(ast.NodeTransformer):
    """Replaces every `Solution().method(literals)` by the name of its value, and collects their source texts."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="Solution"), args=[], keywords=[]))):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                if all(map(_is_literal, arguments)):
                    self.calls.append(ast.unparse(node))
                    return ast.copy_location(ast.Name(id=f"_{len(self.calls) - 1}", ctx=ast.Load()), node)
        return self.generic_visit(node)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError):
        return False
    return True


def assertions_hold(assertions: Sequence[Assertion], code: Code, execute: Callable[[Code, Execution], Outcome]) -> bool:
    """Whether the submission in `code` satisfies every assertion.

    Args:
        assertions: the tests of one problem.
        code: the submission.
        execute: runs code in isolation; called once for the answers and once, without the submission, for the checks.
    """
    expressions = []
    for assertion in assertions:
        expressions += assertion.calls
    shown = any(assertion.check is None for assertion in assertions)
    answers = execute(code, Execution(action="evaluate", expressions=tuple(expressions), last=shown)).answers
    if answers.forged or not all(answers.answered) or len(answers.answered) < len(expressions):
        return False
    # They stay documents: only the process of the checks decodes them, within its limits.
    documents = iter(answers.answers)
    checks, check_values = [], []
    for assertion in assertions:
        call_values = tuple(next(documents) for _ in assertion.calls)
        if assertion.check is not None:
            checks.append(assertion.check)
            check_values.append(call_values)
        elif call_values[0] is not True:
            return False
    if not checks:
        return True
    # The checks run in a process without the submission: nothing that it patched can change their outcome.
    trusted = Code(setup=code.setup, source="", func_name="", inputs=())
    outcome = execute(trusted, Execution(action="evaluate", expressions=tuple(checks), values=tuple(check_values)))
    return all(outcome.answers.right([True] * len(checks)))
