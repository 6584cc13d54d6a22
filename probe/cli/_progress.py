"""Progress of long work, on stderr: bars on a terminal, a plain line now and then where somebody reads a file later.

On a terminal NO_COLOR and TERM=dumb mean what they mean elsewhere.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from probe.cli._frame import echo
from replay_pools.screen import Hearer, heard_by, visible

FIRST_LINE_S = 30.0
MOST_BETWEEN_S = 600.0  # of two plain lines
RATE_OVER_S = 600.0  # a step of a large model takes minutes: the rate is that of the last ten


def say(text: str) -> None:
    """A line about what is being done."""
    echo(visible(text, kept=""), err=True)


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show every report of what is done within."""
    with _bars() if on_terminal() else _lines() as hearer, heard_by(hearer):
        yield


def on_terminal() -> bool:
    """Whether lines of stderr can be redrawn. rich alone would say so of a pipe, too, where FORCE_COLOR is set."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return Console(stderr=True).is_interactive


@contextmanager
def _bars() -> Iterator[Hearer]:
    """A bar for each kind of work; other lines on stderr are written above them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    tasks: dict[str, TaskID] = {}
    console = Console(stderr=True)
    # Transient: what has been done is said by who did it.
    with Progress(
        *columns, console=console, speed_estimate_period=RATE_OVER_S, redirect_stdout=False, transient=True
    ) as bars:

        def hear(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, completed=done, rate="")
                return
            bars.update(tasks[what], completed=done, total=total)
            bars.update(tasks[what], rate=_pace(bars.tasks[tasks[what]].speed))

        yield hear


@contextmanager
def _lines() -> Iterator[Hearer]:
    """A line after FIRST_LINE_S and whenever that time has doubled; who does the work says that it is done."""
    starts: dict[str, tuple[float, int]] = {}
    due: dict[str, float] = {}

    def hear(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, first_done = starts.setdefault(what, (now, done))
        taken = now - start
        if taken < FIRST_LINE_S or now < due.get(what, start) or done >= total:
            return
        due[what] = now + min(taken, MOST_BETWEEN_S)
        rate = (done - first_done) / taken
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        say(f"{what} {done}/{total}" + (f", {_pace(rate)}" if rate else "") + left)

    yield hear


def _pace(rate: float | None) -> str:
    """Units a second, or seconds a unit where that is the larger number."""
    if not rate:
        return ""
    return f"{rate:.1f} a second" if rate >= 1 else f"{1 / rate:.1f} s each"
