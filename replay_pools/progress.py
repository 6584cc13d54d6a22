"""Progress reports of long work.

The code that works calls `report`. A caller that wants to show progress wraps the call in `heard_by`:

    with heard_by(lambda what, done, total: print(f"{done}/{total} {what}")):
        generate_pool(...)

Without a hearer a report does nothing. Hearers are no arguments of the functions in between, since they change nothing
that is computed.
"""

from collections.abc import Callable, Iterator
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
