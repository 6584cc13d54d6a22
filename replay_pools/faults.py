"""All faults of an input at once: the same fault in many places is named at the first of them, and counted."""

from collections import Counter
from typing import Any

from replay_pools.errors import InputError, refuse

MOST_LINES = 20  # different faults; the rest is counted


class Faults:
    """Collects faults, to be raised together.

    faults = Faults()
    faults.add("log.jsonl line 3 reward", "reward", expected="a number", found="'x'")
    faults.check("log.jsonl")  # raises where anything was added
    """

    def __init__(self) -> None:
        self._first: dict[Any, InputError] = {}  # {kind: the error at its first place}
        self._places: Counter[Any] = Counter()

    def add(self, where: object, kind: object, *, expected: str, found: str, fix: str = "") -> None:
        """Note a fault; those with one `kind` and one expectation are the same fault."""
        key = (kind, expected)
        self._first.setdefault(key, InputError(where, expected=expected, found=found, fix=fix))
        self._places[key] += 1

    def note(self, error: InputError, kind: object) -> None:
        """Note an error that was raised elsewhere."""
        self.add(error.where, kind, expected=error.expected, found=error.found, fix=error.fix)

    def __bool__(self) -> bool:
        """Whether anything was added."""
        return bool(self._first)

    def check(self, source: object) -> None:
        """Raise all faults together, one line each, where there are any."""
        errors: list[InputError] = []
        for key, error in self._first.items():
            others = self._places[key] - 1
            found = f"{error.found} (and {others} more places)" if others else error.found
            errors.append(InputError(error.where, expected=error.expected, found=found, fix=error.fix))
        if len(errors) > MOST_LINES:
            others = f"{len(errors) - MOST_LINES + 1} other faults"
            errors = [*errors[: MOST_LINES - 1], InputError(source, expected="sound input", found=others)]
        refuse(errors)
