"""Progress of long work, and foreign text made safe for terminals and pages.

Working code calls `report`. A caller that shows progress wraps the work in `on_progress`:

    with on_progress(lambda what, done, total: print(f"{done}/{total} {what}")):
        generate_pool(...)

Without a callback a report does nothing. `visible` escapes characters that a terminal or browser would obey or hide.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ProgressCallback = Callable[[str, int, int], None]  # what, done, total, as in `report`

_callbacks: ContextVar[tuple[ProgressCallback, ...]] = ContextVar("callbacks", default=())


def report(what: str, done: int, total: int) -> None:
    """Report that `done` of `total` units of `what` (a plural: "steps") are done."""
    for callback in _callbacks.get():
        callback(what, done, total)


@contextmanager
def on_progress(callback: ProgressCallback) -> Iterator[None]:
    """Call `callback` for every report of this thread inside the context."""
    token = _callbacks.set((*_callbacks.get(), callback))
    try:
        yield
    finally:
        _callbacks.reset(token)


# Controls (which start escape sequences), formats (which reverse text or have no width), lone surrogates, and line and
# paragraph separators.
INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
_USERINFO = re.compile(r"(\w://)[^\s/@'\"]+@")
_SECRET = re.compile(r"([?&](?:api[_-]?key|access[_-]?token|token|key|password|secret)=)[^&\s'\"]+", re.IGNORECASE)


def is_invisible(character: str) -> bool:
    """Return True for a character without a shape on the screen, newline and tab included."""
    return unicodedata.category(character) in INVISIBLE


def visible(text: str, *, kept: str = "\n\t") -> str:
    r"""Escape every invisible character that is not in `kept`, as in Python.

    >>> visible("a\x1b[2Jb\u202e")
    'a\\x1b[2Jb\\u202e'
    """
    if text.isprintable():  # true for most texts: printable characters are visible
        return text
    escaped = {
        ord(character): character.encode("unicode_escape", "surrogatepass").decode()
        for character in {*text} - {*kept}
        if is_invisible(character)
    }
    return text.translate(escaped)


def without_secrets(text: str) -> str:
    """Replace users, passwords and query keys of all addresses in a text by `***`.

    >>> without_secrets("http://me:pass@host:8000/v1?token=abc")
    'http://***@host:8000/v1?token=***'
    """
    return _SECRET.sub(r"\1***", _USERINFO.sub(r"\1***@", text))
