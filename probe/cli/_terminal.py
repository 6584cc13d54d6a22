"""Colours, tables that fit the terminal, and progress bars, by rich.

Where stderr is a file or a pipe, a line now and then takes the place of the bars. NO_COLOR and TERM=dumb mean what they
mean elsewhere.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from probe.settings.words import TONES
from replay_pools.base.terminal import on_progress

QUIET_S = 5.0  # before the first line; twice as long before each further one
MOST_BETWEEN_S = 600.0
RATE_OVER_S = 600.0  # a step of a large model takes minutes

THEME = Theme(
    {
        **{"good": "bold green", "likely": "bold green", "bad": "bold red", "open": "bold yellow", "empty": "dim"},
        **{"command": "cyan", "picture": "blue", "head": "bold"},
    }
)
STDOUT, STDERR = (Console(stderr=stderr, theme=THEME, highlight=False) for stderr in (False, True))
# Transient: the verb itself says what was done.
_bars = Progress(
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(compact=True),
    console=STDERR,
    speed_estimate_period=RATE_OVER_S,
    redirect_stdout=False,
    transient=True,
)


def _pattern(tone: str) -> str:
    names = "|".join(map(re.escape, sorted(TONES[tone], key=len, reverse=True)))
    return rf"(?<![\w-])(?P<{tone}>{names})(?![\w-])"


class Words(RegexHighlighter):
    """Words of verdicts by their tone, warnings, heads, pictures of intervals, and commands to copy."""

    highlights = [  # noqa: RUF012 (as rich has it)
        *map(_pattern, TONES),
        r"(?P<bad>probe: error:|FAILED|STOPPED)",
        r"(?P<open>WARNING|CAUTION|[Cc]aution:)",
        r"(?m)^(?P<head>VERDICT|OUTCOME|DECISION|NEXT|PROMPT|COMPLETION)\b",
        r"(?P<picture>[.=o|<>]{33})",
        r"(?m)^ *(?P<command>probe [a-z].*)$",
    ]


def print_text(text: str, *, err: bool) -> None:
    """Print a text with its colours; the terminal breaks its lines."""
    if not err:
        _bars.stop()
    (STDERR if err else STDOUT).print(Words()(Text(text)), soft_wrap=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    """Print a table no wider than the terminal: cells break into lines; the first `left` columns are flush left."""
    table = Table(box=None, header_style="head", pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(header):
        table.add_column(Text(name), justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Words()(Text(cell)) for cell in row))
    _bars.stop()
    STDOUT.print(table)


@contextmanager
def shown_progress(say: Callable[[str], None]) -> Iterator[None]:
    """Show the progress reports made in this context: as bars on a terminal, elsewhere a line now and then by `say`."""
    # rich alone would take a pipe for a terminal where FORCE_COLOR is set.
    _bars.disable = not (sys.stderr.isatty() and STDERR.is_interactive)
    started, tasks = time.monotonic(), dict[str, TaskID]()
    quiet = next_line = QUIET_S

    def show(what: str, done: int, total: int) -> None:
        nonlocal quiet, next_line
        if done < total and what in tasks:
            _bars.update(tasks[what], completed=done, total=total)
        elif done < total:
            _bars.start()
            tasks[what] = _bars.add_task(what, total=total, completed=done)
        elif what in tasks:
            _bars.remove_task(tasks.pop(what))
            if not tasks:
                _bars.stop()
        passed = time.monotonic() - started
        if _bars.disable and done < total and passed >= next_line:
            quiet = min(2 * quiet, MOST_BETWEEN_S)
            next_line = passed + quiet
            say(f"{what} {done}/{total}, {passed:.0f} s after the start")

    try:
        with on_progress(show):
            yield
    finally:
        _bars.stop()
        for task in tasks.values():
            _bars.remove_task(task)
