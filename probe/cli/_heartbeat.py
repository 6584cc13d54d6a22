"""A sign of life: a command that has said nothing for a while says that it is still at work, and at what."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from replay_pools.screen import Hearer

QUIET_S = 10.0  # without a line, until the first sign; twice as long until each further one
MOST_BETWEEN_S = 600.0

_last_line = time.monotonic()
_reports: list[str] = []  # how far the work is, in the newest report


def heard() -> None:
    """Something was said, or progress was shown."""
    global _last_line
    _last_line = time.monotonic()


@contextmanager
def told_progress() -> Iterator[Hearer]:
    """Have the signs of life say what was last reported, and how long the rest takes at the pace so far."""
    starts: dict[str, tuple[float, int]] = {}

    def hear(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, first_done = starts.setdefault(what, (now, done))
        # A resumed run has done some before its first report.
        pace = (now - start) / (done - first_done) if done > first_done else None
        left = "" if pace is None else f", {pace * (total - done):.0f} s left"
        _reports[:] = [f"{what} {done}/{total}{left}"]

    try:
        yield hear
    finally:
        _reports.clear()


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

                work = "".join((_reports or running_phases)[-1:])
                # Whoever read stderr may have gone.
                with suppress(OSError, ValueError):
                    say(f"still at work{f' ({work})' if work else ''}, {now - started:.0f} s after the start")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
