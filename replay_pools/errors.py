"""InputError, the one exception for bad input: where it is, what was expected, what was found, what to do."""

from collections.abc import Sequence

EXIT_INPUT = 2  # the exit code of a command with bad input: run again, it would end the same way


class InputError(Exception):
    """Bad input from the user or from a file. The command line prints it as one line and exits with 2.

    >>> str(InputError("--steps", expected="at most 20", found="30", fix="lower it"))
    '--steps: expected at most 20, found 30; lower it'

    Args:
        where: file, step, sample, module or option, as precisely as known.
        expected: what should have been there.
        found: what was there instead.
        fix: the next thing to do (a command where there is one).
    """

    def __init__(self, where: object, *, expected: str, found: str, fix: str = "") -> None:
        self.where, self.expected, self.found, self.fix = str(where), expected, found, fix
        text = f"{self.where}: expected {expected}, found {found}"
        super().__init__(f"{text}; {fix}" if fix else text)


class FieldError(InputError, ValueError):
    """A field of a dataclass that cannot have its value; whoever reads the dataclass from a file adds the place.

    It is a ValueError so that pydantic reports it with the table in which the field stands.

    Args:
        field: the field, with dots where it stands in an inner table.
    """

    def __init__(self, field: str, expected: str, found: object) -> None:
        super().__init__(field, expected=expected, found=str(found))


class InputErrors(InputError):  # noqa: N818 several of them
    """Several errors at once, at least one; the command line prints each on a line of its own.

    Args:
        errors: in the order in which they are printed; the first stands for all where one place is asked for.
    """

    def __init__(self, errors: Sequence[InputError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.where, expected=first.expected, found=first.found, fix=first.fix)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def refuse(errors: Sequence[InputError]) -> None:
    """Raise what was found wrong: one error as itself, several together; nothing where there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise InputErrors(errors)
