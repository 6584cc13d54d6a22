"""Progress of long work: a line that is redrawn on a terminal, a plain line now and then elsewhere. On stderr."""

import sys
import time
from collections.abc import Callable

import click

PLAIN_EVERY_S = 10.0


def say(text: str) -> None:
    """A line about what is being done."""
    click.echo(text, err=True)


def progress(label: str) -> Callable[[int, int], None]:
    """A callback (done, total) that shows a rate and the time left."""
    start = time.monotonic()
    last = start
    first_done: int | None = None

    def report(done: int, total: int) -> None:
        nonlocal last, first_done
        first_done = done - 1 if first_done is None else first_done
        now = time.monotonic()
        rate = (done - first_done) / max(now - start, 1e-9)
        left = (total - done) / max(rate, 1e-9)
        line = f"{label} {done}/{total}, {rate:.2f} a second, {left:.0f} s left"
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{line}", err=True, nl=done == total)
        elif done == total or now - last >= PLAIN_EVERY_S:
            last = now
            say(line)

    return report
