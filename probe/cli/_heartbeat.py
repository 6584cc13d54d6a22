"""Progress of a command on stderr: bars on a terminal, else a line after every silent while.

NO_COLOR and TERM=dumb are respected.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from replay_pools.base.terminal import ProgressCallback, on_progress

QUIET_S = 5.0  # silence before the first line; doubled for each further one
MAX_QUIET_S = 600.0
RATE_PERIOD_S = 600.0  # the rate is averaged over this time, because a step of a large model takes minutes

_last_line = time.monotonic()
_reports: list[str] = []  # the newest report of progress
_bars_shown: list[Callable[[], None]] = []  # functions that remove the bars


def note_output(*, result: bool = False) -> None:
    """Note that something is printed, which restarts the silence; a `result` first removes the bars."""
    global _last_line
    _last_line = time.monotonic()
    for clear in _bars_shown if result else ():
        clear()


@contextmanager
def quiet_progress() -> Iterator[ProgressCallback]:
    """Yield a progress callback; `heartbeat` prints its newest report and the remaining time."""
    starts: dict[str, tuple[float, int]] = {}

    def hear(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, first_done = starts.setdefault(what, (now, done))
        # A resumed run has already done some at its first report.
        pace = (now - start) / (done - first_done) if done > first_done else None
        left = "" if pace is None else f", {pace * (total - done):.0f} s left"
        _reports[:] = [f"{what} {done}/{total}{left}"] if done < total else []  # other work follows

    try:
        yield hear
    finally:
        _reports.clear()


@contextmanager
def heartbeat(say: Callable[[str], None]) -> Iterator[None]:
    """Print that the block is still at work after every silent while."""
    started, ended = time.monotonic(), threading.Event()
    note_output()

    def beat() -> None:
        quiet = QUIET_S
        while not ended.wait(quiet / 10):
            now = time.monotonic()
            if now - _last_line >= quiet:
                quiet = min(2 * quiet, MAX_QUIET_S)
                note_output()
                from probe.records.timings import running_phases  # short commands need no import

                work = "".join((_reports or running_phases)[-1:])
                # The reader of stderr may have closed it.
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
    """Show the progress of the block."""
    with _bars() if on_terminal() else quiet_progress() as callback, on_progress(callback):
        yield


def on_terminal() -> bool:
    """Return True if lines of stderr can be redrawn; with FORCE_COLOR rich would return True for a pipe too."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return Console(stderr=True).is_interactive


@contextmanager
def _bars() -> Iterator[ProgressCallback]:
    """Yield a progress callback that draws a bar for each kind of work; other lines on stderr go above the bars."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    tasks: dict[str, TaskID] = {}
    # Transient, because the command itself prints its results.
    bars = Progress(
        *columns,
        console=Console(stderr=True),
        speed_estimate_period=RATE_PERIOD_S,
        redirect_stdout=False,
        transient=True,
    )

    def hear(what: str, done: int, total: int) -> None:
        note_output()
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
