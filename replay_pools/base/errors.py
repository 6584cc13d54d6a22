"""InputError, the one exception for bad input: where it is, what was expected, what was found, what to do.

`Faults` collects all errors of an input and raises them together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

EXIT_INPUT = 2  # the exit code of a command with bad input: run again, it would end the same way
MOST_SHOWN = 4000  # characters of a place, or of what was found
MOST_LINES = 20  # different faults in one message; the rest is counted
MOST_NAMES = 8  # that one line lists
MOST_PLACES = 100  # of one fault, that its line lists


class InputError(Exception):
    """Bad input from the user or from a file. The command line prints it as one line and exits with 2.

    >>> str(InputError("--steps", expected="at most 20", found="30", fix="lower it"))
    '--steps: expected at most 20, found 30; lower it'

    Args:
        where: file, step, sample, module or option, as precisely as known.
        expected: what should have been there.
        found: what was there instead.
        fix: the next thing to do, as a command where possible.
    """

    def __init__(self, where: object, *, expected: str, found: str, fix: str = "") -> None:
        # What was written by others may be of any size.
        self.where, self.expected, self.found, self.fix = cut(str(where)), expected, cut(found), cut(fix)
        text = f"{self.where}: expected {expected}, found {self.found}"
        super().__init__(f"{text}; {self.fix}" if fix else text)

    @property
    def errors(self) -> tuple["InputError", ...]:
        """Return the errors that this one stands for: itself."""
        return (self,)

    def at(self, where: object) -> "InputError":
        """Return the same error at another place."""
        return InputError(where, expected=self.expected, found=self.found, fix=self.fix)


def cut(text: str, most: int = MOST_SHOWN) -> str:
    """Cut a text of an error to `most` characters, and say how long it was."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


class FieldError(InputError, ValueError):
    """A field of a dataclass that cannot have its value; whoever reads the dataclass from a file adds the place.

    It is a ValueError so that pydantic reports it with the table in which the field stands.

    Args:
        field: the field, with dots where it stands in an inner table.
    """

    def __init__(self, field: str, expected: str, found: object) -> None:
        super().__init__(field, expected=expected, found=str(found))


class InputErrors(InputError, ValueError):  # noqa: N818 several of them
    """Several errors at once, at least one; the command line prints each in one line.

    Args:
        errors: in the order in which they are printed; the first stands for all where one place is asked for.
    """

    def __init__(self, errors: Sequence[InputError]) -> None:
        self._errors, first = tuple(errors), errors[0]
        super().__init__(first.where, expected=first.expected, found=first.found, fix=first.fix)

    @property
    def errors(self) -> tuple[InputError, ...]:
        """Return all of them."""
        return self._errors

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def refuse(errors: Sequence[InputError]) -> None:
    """Raise the errors: one as itself, several together; nothing for an empty list."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise InputErrors(errors)


class Faults:
    """Collects faults, to be raised together.

    faults = Faults()
    faults.add("log.jsonl line 3 reward", "reward", expected="a number", found="'x'")
    faults.check("log.jsonl")  # raises where anything was added
    """

    def __init__(self) -> None:
        self._found: dict[Any, list[InputError]] = {}  # {kind: the error at its first places}
        self._places: Counter[Any] = Counter()

    def add(self, where: object, kind: object, *, expected: str, found: str, fix: str = "") -> None:
        """Note a fault; those with one `kind` and one expectation are the same fault."""
        key = (kind, expected)
        self._places[key] += 1
        if self._places[key] <= MOST_PLACES:
            self._found.setdefault(key, []).append(InputError(where, expected=expected, found=found, fix=fix))

    def note(self, error: InputError, kind: object) -> None:
        """Note an error that was raised elsewhere."""
        self.add(error.where, kind, expected=error.expected, found=error.found, fix=error.fix)

    def __bool__(self) -> bool:
        """Return whether anything was added."""
        return bool(self._found)

    def take(self, others: "Faults") -> None:
        """Move all faults of `others` here."""
        for key, errors in others._found.items():
            self._found[key] = [*self._found.get(key, ()), *errors][:MOST_PLACES]
            self._places[key] += others._places[key]
        others._found, others._places = {}, Counter()

    def errors(self) -> list[InputError]:
        """Return each fault at its first place, with its other places."""
        errors: list[InputError] = []
        for key, (first, *others) in self._found.items():
            count, found = self._places[key] - 1, first.found
            if count:
                words = {*first.where.split()}
                places = [" ".join(word for word in other.where.split() if word not in words) for other in others]
                listed = ", ".join(filter(None, places)) + (", ..." if count > len(others) else "")
                found += f" (and {count} more places{': ' if listed else ''}{listed})"
            errors.append(InputError(first.where, expected=first.expected, found=found, fix=first.fix))
        return errors

    def check(self, source: object) -> None:
        """Raise all faults together, one line each, if there are any."""
        errors = self.errors()
        if len(errors) > MOST_LINES:
            others = f"{len(errors) - MOST_LINES + 1} other faults"
            errors = [*errors[: MOST_LINES - 1], InputError(source, expected="sound input", found=others)]
        refuse(errors)


def unknown_name(where: object, name: str, names: Iterable[str], *, expected: str, fix: str) -> InputError:
    """Return the error to raise for `name`.

    >>> str(unknown_name("run dmeo", "dmeo", ["base", "demo"], expected="a run", fix="see probe show"))
    'run dmeo: expected a run, found only demo, base; did you mean demo? (see probe show)'

    Args:
        where: the place, before "expected".
        name: the unknown name.
        names: the names that exist.
        expected: the kind of thing, and where it is looked up.
        fix: the next thing to do if no name is close.
    """
    names = sorted(names)
    if not names:
        return InputError(where, expected=expected, found="none at all", fix=fix)
    close = get_close_matches(name, names, n=3)
    listed = [*close, *(other for other in names if other not in close)]
    more = f" and {len(listed) - MOST_NAMES} more" if len(listed) > MOST_NAMES else ""
    actual = f"only {', '.join(listed[:MOST_NAMES])}{more}"
    return InputError(where, expected=expected, found=actual, fix=f"did you mean {close[0]}? ({fix})" if close else fix)
