"""A sign of life: a command that has said nothing for a while says that it is still at work, and at what."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

QUIET_S = 10.0  # without a line, until the first sign; twice as long until each further one
MOST_BETWEEN_S = 600.0

_last_line = time.monotonic()


def heard() -> None:
    """Something was said, or progress was shown."""
    global _last_line
    _last_line = time.monotonic()


@contextmanager
def heartbeat(say: Callable[[str], None]) -> Iterator[None]:
    """Say that the block is still at work, whenever nothing else was said for a while."""
    started, ended = time.monotonic(), threading.Event()
    heard()

    def beat() -> None:
        quiet = QUIET_S
        while not ended.wait(quiet / 10):
            now = time.monotonic()
            if now - _last_line >= quiet:
                quiet = min(2 * quiet, MOST_BETWEEN_S)
                heard()
                from probe.records.timings import running_phases  # not for a command that is soon over

                phase = "".join(f" ({name})" for name in running_phases[-1:])
                # Whoever read stderr may have gone.
                with suppress(OSError, ValueError):
                    say(f"still at work{phase}, {now - started:.0f} s after the start")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
