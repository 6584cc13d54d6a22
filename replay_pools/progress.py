"""Progress of long work: whoever does it reports, and only who started it knows whether anybody looks on.

Reports pass by no argument lists, since they change nothing that is computed. Nobody hears them by default.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Hearer = Callable[[str, int, int], None]

_hearers: ContextVar[tuple[Hearer, ...]] = ContextVar("hearers", default=())


def report(what: str, done: int, total: int) -> None:
    """Say that `done` of `total` units of `what` (a plural: "steps") are done."""
    for hearer in _hearers.get():
        hearer(what, done, total)


@contextmanager
def heard_by(hearer: Hearer) -> Iterator[None]:
    """Every report from within, in this thread, goes to `hearer` too."""
    token = _hearers.set((*_hearers.get(), hearer))
    try:
        yield
    finally:
        _hearers.reset(token)
