"""Signs of life: how far a command is and how long the rest takes, on stderr.

Bars on a terminal, where NO_COLOR and TERM=dumb mean what they mean elsewhere; where somebody reads a file later, a
line whenever nothing was said for a while.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from replay_pools.base.terminal import ProgressCallback, on_progress

QUIET_S = 5.0  # without a line, until the first sign; twice as long until each further one
MOST_BETWEEN_S = 600.0
RATE_OVER_S = 600.0  # a step of a large model takes minutes: the rate is that of the last ten

_last_line = time.monotonic()
_reports: list[str] = []  # how far the work is, in the newest report
_bars_shown: list[Callable[[], None]] = []  # what takes the bars away


def heard(*, result: bool = False) -> None:
    """Something was said, or progress was shown; before a `result`, the bars go."""
    global _last_line
    _last_line = time.monotonic()
    for clear in _bars_shown if result else ():
        clear()


@contextmanager
def quiet_progress() -> Iterator[ProgressCallback]:
    """Have the signs of life say what was last reported, and how long the rest takes at the pace so far."""
    starts: dict[str, tuple[float, int]] = {}

    def hear(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, first_done = starts.setdefault(what, (now, done))
        # A resumed run has done some before its first report.
        pace = (now - start) / (done - first_done) if done > first_done else None
        left = "" if pace is None else f", {pace * (total - done):.0f} s left"
        _reports[:] = [f"{what} {done}/{total}{left}"] if done < total else []  # what follows is other work

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


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show every report of what is done within."""
    with _bars() if on_terminal() else quiet_progress() as hearer, on_progress(hearer):
        yield


def on_terminal() -> bool:
    """Whether lines of stderr can be redrawn. rich alone would say so of a pipe, too, where FORCE_COLOR is set."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return Console(stderr=True).is_interactive


@contextmanager
def _bars() -> Iterator[ProgressCallback]:
    """A bar for each kind of work, from its first report on; other lines on stderr are written above them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    tasks: dict[str, TaskID] = {}
    # Transient: what has been done is said by who did it.
    bars = Progress(
        *columns,
        console=Console(stderr=True),
        speed_estimate_period=RATE_OVER_S,
        redirect_stdout=False,
        transient=True,
    )

    def hear(what: str, done: int, total: int) -> None:
        heard()
        if what not in tasks:
            bars.start()
            tasks[what] = bars.add_task(what, total=total, completed=done)
        bars.update(tasks[what], completed=done, total=total)

    def clear() -> None:
        bars.stop()
        for task in tasks.values():
            bars.remove_task(task)
        tasks.clear()

    _bars_shown.append(clear)
    try:
        yield hear
    finally:
        _bars_shown.remove(clear)
        clear()
