"""Progress reports of long work, and texts of others made safe to look at on a terminal or a page.

The code that works calls `report`. A caller that wants to show progress wraps the call in `on_progress`:

    with on_progress(lambda what, done, total: print(f"{done}/{total} {what}")):
        generate_pool(...)

Without a listener a report does nothing. Listeners are not arguments of the functions in between, since they change
nothing that is computed. `visible` shows characters that a terminal or a browser would obey, or not show.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

OnProgress = Callable[[str, int, int], None]  # what, done, total: as in `report`

_listeners: ContextVar[tuple[OnProgress, ...]] = ContextVar("listeners", default=())


def report(what: str, done: int, total: int) -> None:
    """Report that `done` of `total` units of `what` (a plural: "steps") are done."""
    for listener in _listeners.get():
        listener(what, done, total)


@contextmanager
def on_progress(listener: OnProgress) -> Iterator[None]:
    """Send every report made inside this context, in this thread, to `listener` too."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


# Controls (escape sequences begin with one), formats (which include changes of direction and zero-width characters),
# lone surrogates, and the separators of lines and paragraphs.
INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
_USERINFO = re.compile(r"(\w://)[^\s/@'\"]+@")
_SECRET = re.compile(r"([?&](?:api[_-]?key|access[_-]?token|token|key|password|secret)=)[^&\s'\"]+", re.IGNORECASE)


def is_invisible(character: str) -> bool:
    """Return whether a character has no form of its own on a screen, as newline and tab."""
    return unicodedata.category(character) in INVISIBLE


def visible(text: str, *, kept: str = "\n\t") -> str:
    r"""Return the text with every invisible character as its Python escape, but for those in `kept`.

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
    """Return the lines of a table: its first `left` columns flush left, the others, mostly numbers, flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row[:left], widths, strict=False)]
        cells += [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def without_secrets(text: str) -> str:
    """Return the text with `***` for user and password of every address in it, and for keys in its query.

    >>> without_secrets("http://me:pass@host:8000/v1?token=abc")
    'http://***@host:8000/v1?token=***'
    """
    return _SECRET.sub(r"\1***", _USERINFO.sub(r"\1***@", text))
