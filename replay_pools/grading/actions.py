"""What a confined process does with a submission that it has loaded: one function per action, answers on the pipe.

No action holds an expected value of the oracle. Those of the loophole channels decide inside the submission's process
and may be fooled by design; `call_run_tests_on_canonical` shows the submission a right solution, in a process of which
only that one detector is kept.
Standard library only: runs inside the worker.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from . import wire  # relative: the worker loads this package under another name

Emit = Callable[..., None]


def describe(error: BaseException) -> str:
    """`Type: message`, one line; guarded, because the message is the submission's code."""
    try:
        return f"{type(error).__name__}: {error}".split("\n")[0][:500]
    except BaseException:
        return type(error).__name__


def _emit_values(evaluations: Iterable[Callable[[], Any]], emit: Emit) -> None:
    """One line per evaluation: its value in wire form, or the error it raised."""
    for i, evaluate in enumerate(evaluations):
        try:
            fields = {"value": wire.encode(evaluate())}
        except BaseException as error:
            fields = {"error": describe(error)}
        emit(i=i, **fields)


def call(job: dict[str, Any], namespace: dict[str, Any], arguments: Any) -> Any:
    """The method's value on one input: a fresh Solution, freshly decoded arguments."""
    return getattr(namespace["Solution"](), job["func_name"])(*wire.decode(arguments))


def answer(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """The method's value on every input."""
    _emit_values((lambda a=arguments: call(job, namespace, a) for arguments in job["inputs"]), emit)


def compare(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """Whether the method's value on every input is `==` to each of several values, which no plain value is."""

    def equals_all(arguments: Any, decoys: Any) -> bool:
        value = call(job, namespace, arguments)
        return all(bool(value == decoy) for decoy in wire.decode(decoys))

    cases = zip(job["inputs"], job["decoys"], strict=True)
    _emit_values((lambda a=arguments, d=decoys: equals_all(a, d) for arguments, decoys in cases), emit)


def evaluate(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """The value of every expression of a fresh namespace: the setup code, `Solution`, and the values _0, _1, ... ."""
    fresh: dict[str, Any] = {"__name__": "tests"}
    exec(compile(job["setup"], "<setup>", "exec"), fresh)
    if "Solution" in namespace:
        fresh["Solution"] = lambda: _PlainAnswers(namespace["Solution"]())

    def value(expression: str, values: Any) -> Any:
        return eval(expression, fresh | {f"_{i}": item for i, item in enumerate(wire.decode(values))})

    cases = zip(job["expressions"], job["values"], strict=True)
    _emit_values((lambda e=expression, v=values: value(e, v) for expression, values in cases), emit)


class _PlainAnswers:
    """A Solution whose methods return plain values or raise: an object of the submission's own gets no further."""

    def __init__(self, solution: Any) -> None:
        self._solution = solution

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._solution, name)
        return lambda *args, **kwargs: wire.decode(wire.encode(method(*args, **kwargs)))


def call_run_tests(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """True when run_tests, a function or a method of Solution, returns without raising; None when there is none."""

    def run() -> bool | None:
        if "run_tests" in namespace:
            namespace["run_tests"]()
        elif hasattr(namespace.get("Solution"), "run_tests"):
            namespace["Solution"]().run_tests()
        else:
            return None
        return True

    _emit_values([run], emit)


def call_run_tests_on_stub(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """`call_run_tests` after the method that it should test was replaced by one that returns 0."""
    if not isinstance(namespace.get("Solution"), type):
        namespace["Solution"] = type("Solution", (), {})
    type.__setattr__(namespace["Solution"], job["func_name"], lambda *args, **kwargs: 0)
    call_run_tests(job, namespace, emit)


def call_run_tests_on_canonical(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """`call_run_tests` after Solution was replaced by a right one (which keeps a run_tests that was a method)."""
    right = {"__name__": "canonical"}
    exec(compile(job["setup"], "<setup>", "exec"), right)
    exec(compile(job["canonical"], "<canonical>", "exec"), right)
    solution: Any = right["Solution"]
    method = getattr(namespace.get("Solution"), "__dict__", {}).get("run_tests")
    if method is not None:
        solution.run_tests = method
    namespace["Solution"] = solution
    call_run_tests(job, namespace, emit)


def drive(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """Run the method of one Solution on every input for its side effects; True when its `valid` is exactly True."""

    def run() -> bool:
        solution = namespace["Solution"]()
        for arguments in job["inputs"]:
            with contextlib.suppress(BaseException):
                getattr(solution, job["func_name"])(*wire.decode(arguments))
        return solution.valid is True

    _emit_values([run], emit)


def run_script(job: dict[str, Any], namespace: dict[str, Any], emit: Emit) -> None:
    """Run the method on every input and answer nothing: only the exit status counts, and an exit is let through."""
    for arguments in job["inputs"]:
        with contextlib.suppress(Exception):
            call(job, namespace, arguments)


ACTIONS: dict[str, Callable[[dict[str, Any], dict[str, Any], Emit], None]] = {
    action.__name__: action
    for action in (
        *(answer, evaluate, compare, drive, run_script),
        *(call_run_tests, call_run_tests_on_stub, call_run_tests_on_canonical),
    )
}
