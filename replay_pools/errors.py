"""InputError, the one exception for bad input: where it is, what was expected, what was found, what to do."""


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
