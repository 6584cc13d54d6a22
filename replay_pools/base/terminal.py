"""What a terminal or a page shows: progress reports of long work, and text of others made safe to look at.

The code that works calls `report`. A caller that wants to show progress wraps the call in `heard_by`:

    with heard_by(lambda what, done, total: print(f"{done}/{total} {what}")):
        generate_pool(...)

Without a hearer a report does nothing. Hearers are no arguments of the functions in between, since they change nothing
that is computed. `visible` shows characters that a terminal or a browser would obey, or not show.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

Hearer = Callable[[str, int, int], None]  # what, done, total: as in `report`

_hearers: ContextVar[tuple[Hearer, ...]] = ContextVar("hearers", default=())


def report(what: str, done: int, total: int) -> None:
    """Say that `done` of `total` units of `what` (a plural: "steps") are done."""
    for hearer in _hearers.get():
        hearer(what, done, total)


@contextmanager
def heard_by(hearer: Hearer) -> Iterator[None]:
    """Send every report made inside this context, in this thread, to `hearer` too."""
    token = _hearers.set((*_hearers.get(), hearer))
    try:
        yield
    finally:
        _hearers.reset(token)


# Controls (escape sequences begin with one), formats (among them those that turn the direction of text around, and
# zero-width ones), lone surrogates, and the separators of lines and paragraphs.
INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
_USERINFO = re.compile(r"(\w://)[^\s/@'\"]+@")
_SECRET = re.compile(r"([?&](?:api[_-]?key|access[_-]?token|token|key|password|secret)=)[^&\s'\"]+", re.IGNORECASE)


def is_invisible(character: str) -> bool:
    """Whether a character has no form of its own on a screen; newline and tab are such characters too."""
    return unicodedata.category(character) in INVISIBLE


def visible(text: str, *, kept: str = "\n\t") -> str:
    r"""The text with every invisible character as its Python escape, but for those in `kept`.

    >>> visible("a\x1b[2Jb\u202e")
    'a\\x1b[2Jb\\u202e'
    """
    if text.isprintable():  # most texts, at once: no invisible character is printable
        return text
    shown: list[str] = []
    for character in text:
        if character not in kept and is_invisible(character):
            character = character.encode("unicode_escape", "surrogatepass").decode()
        shown.append(character)
    return "".join(shown)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """The lines of a table: its first `left` columns flush left, the others, mostly numbers, flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row[:left], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def without_secrets(text: str) -> str:
    """The text with `***` for user and password of every address in it, and for keys in its query.

    >>> without_secrets("http://me:pass@host:8000/v1?token=abc")
    'http://***@host:8000/v1?token=***'
    """
    return _SECRET.sub(r"\1***", _USERINFO.sub(r"\1***@", text))
