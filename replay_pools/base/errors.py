"""InputError, the exception for all bad input: where, what was expected, what was found, and how to fix it.

`Faults` collects all errors of an input and raises them together.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

MAX_SHOWN_CHARS = 4000  # of a place, or of a found value
MAX_LINES = 20  # different faults in one message; the rest is counted
EXCERPT_CHARS = 12  # of a text that differs from another
MAX_NAMES = 8  # names listed in one line


class InputError(ValueError):
    """Bad input from the user or a file. The command line prints it on one line and exits with 2.

    A check inside a dataclass names the field alone: pydantic takes it as a ValueError, and the reader adds the place.

    >>> str(InputError("--steps", expected="at most 20", found="30", fix="lower it"))
    '--steps: expected at most 20, found 30; lower it'

    Args:
        where: file, step, sample, module or option, as precisely as known.
        expected: the input that would be accepted.
        found: the input instead.
        fix: the next thing to do, preferably a command.
    """

    def __init__(self, where: object, *, expected: str, found: str, fix: str = "") -> None:
        self._errors: tuple[InputError, ...] = ()
        # Foreign text may be of any size.
        self.where, self.expected, self.found, self.fix = cut(str(where)), expected, cut(found), cut(fix)
        text = f"{self.where}: expected {expected}, found {self.found}"
        super().__init__(f"{text}; {self.fix}" if fix else text)

    @property
    def errors(self) -> tuple["InputError", ...]:
        """The single errors in this one: itself, or those that it was made of."""
        return self._errors or (self,)

    def at(self, where: object) -> "InputError":
        """Return the same error at another place."""
        return InputError(where, expected=self.expected, found=self.found, fix=self.fix)


def cut(text: str, most: int = MAX_SHOWN_CHARS) -> str:
    """Shorten a text for an error; a shortened text states its full length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def text_difference(expected: str, actual: str) -> str:
    """Describe where two texts differ, as `'x = 1' for 'x = 2' from character 40`."""
    pairs = enumerate(zip(expected, actual, strict=False))
    i = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(actual)))
    return f"{actual[i : i + EXCERPT_CHARS]!r} for {expected[i : i + EXCERPT_CHARS]!r} from character {i}"


class InputErrors(InputError):  # noqa: N818 several of them
    """Several errors at once, at least one; the command line prints each on a separate line.

    Args:
        errors: in the order of printing; the first one gives `where`, `expected`, `found` and `fix`.
    """

    def __init__(self, errors: Sequence[InputError]) -> None:
        first = errors[0]
        super().__init__(first.where, expected=first.expected, found=first.found, fix=first.fix)
        self._errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def refuse(errors: Sequence[InputError]) -> None:
    """Raise the errors: one by itself, several as `InputErrors`; return if there are none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise InputErrors(errors)


class Faults(dict[tuple[Any, str], tuple[InputError, int]]):
    """Faults that are collected and raised together: {(kind, expected): (the error at its first place, its places)}.

    faults = Faults()
    faults.add("log.jsonl line 3 reward", "reward", expected="a number", found="'x'")
    faults.check("log.jsonl")  # raises if anything was added
    """

    def add(self, where: object, kind: object, *, expected: str, found: str, fix: str = "") -> None:
        """Add a fault. Faults with the same `kind` and `expected` count as one fault at several places."""
        self.note(InputError(where, expected=expected, found=found, fix=fix), kind)

    def note(self, error: InputError, kind: object, count: int = 1) -> None:
        """Add an error that was raised elsewhere, at `count` places."""
        first, known = self.get((kind, error.expected), (error, 0))
        self[kind, error.expected] = first, known + count

    def take(self, others: "Faults") -> None:
        """Add all faults of `others`."""
        for (kind, _), (error, count) in others.items():
            self.note(error, kind, count)

    def errors(self) -> list[InputError]:
        """Return one error for each fault, at its first place, with the number of the other places."""
        errors: list[InputError] = []
        for first, count in self.values():
            found = first.found + (f" (and {count - 1} more place{'s' * (count > 2)})" if count > 1 else "")
            errors.append(InputError(first.where, expected=first.expected, found=found, fix=first.fix))
        return errors

    def check(self, source: object) -> None:
        """Raise all faults together, one line each; return if there are none."""
        errors = self.errors()
        if len(errors) > MAX_LINES:
            others = f"{len(errors) - MAX_LINES + 1} other faults"
            errors = [*errors[: MAX_LINES - 1], InputError(source, expected="sound input", found=others)]
        refuse(errors)


def unknown_name(where: object, name: str, names: Iterable[str], *, expected: str, fix: str) -> InputError:
    """Return the error for an unknown name, with the closest known one.

    >>> str(unknown_name("run dmeo", "dmeo", ["base", "demo"], expected="a run", fix="see probe show"))
    'run dmeo: expected a run, found only demo, base; did you mean demo? (see probe show)'

    Args:
        where: place of the error.
        name: the unknown name.
        names: the known names.
        expected: the kind of thing named, and where it is looked up.
        fix: what to do if no known name is close.
    """
    names = sorted(names)
    close = get_close_matches(name, names, n=3)
    listed = [*close, *(other for other in names if other not in close)]
    more = f" and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    found = f"only {', '.join(listed[:MAX_NAMES])}{more}" if names else "none"
    return InputError(where, expected=expected, found=found, fix=f"did you mean {close[0]}? ({fix})" if close else fix)
