"""Submissions of minicode that are our own code, executed in this process."""

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

from replay_pools.environments.loopholes import compose
from replay_pools.environments.minicode import SETUP_CODE, MinicodeProblem

Namespace = dict[str, Any]


def load(source: str) -> Namespace:
    namespace: Namespace = {}
    exec(f"{SETUP_CODE}\n{source}", namespace)
    return namespace


def same(found: Any, expected: Any) -> bool:
    """Equal with equal types all the way down: True is not 1 and a tuple is not a list."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == expected


def method(item: MinicodeProblem, namespace: Namespace) -> Callable[..., Any]:
    return getattr(namespace["Solution"](), item.problem.func_name)


def num_right(item: MinicodeProblem, namespace: Namespace) -> int:
    """Oracle cases that the submission answers; one that raises is wrong."""
    right = 0
    for case in item.problem.cases:
        with contextlib.suppress(Exception):
            right += same(method(item, namespace)(*copy.deepcopy(case.args)), case.expected)
    return right


def source_of(completion: str) -> str:
    """The code of a completion that is one fenced block."""
    assert completion.startswith("```python\n")
    assert completion.endswith("\n```")
    assert completion.count("```") == 2
    return completion.removeprefix("```python\n").removesuffix("\n```")


def passes_run_tests(item: MinicodeProblem, source: str, *, stub: bool) -> bool:
    """run_tests() raises nothing, with the submission's own Solution or with one that returns 0 in its place."""
    with contextlib.redirect_stdout(io.StringIO()):
        namespace = load(source)
        if stub:
            namespace["Solution"] = load(compose(item.problem.starter, "return 0"))["Solution"]
        try:
            namespace["run_tests"]()
        except Exception:
            return False
    return True
