"""Work that is cut off at a call of one of its functions."""

from collections.abc import Callable
from typing import Any


def interrupted_at(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose `number`-th call is Ctrl-C instead."""
    calls = []

    def dying(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments, **keywords)

    return dying
