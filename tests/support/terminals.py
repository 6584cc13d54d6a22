"""A python on a terminal of its own."""

import os
import pty
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def on_a_terminal(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    keys: Callable[[], bytes] = lambda: b"",
    *,
    seconds: float = 120,
) -> tuple[int, str]:
    """The exit code of `python ARGUMENTS` and what the terminal showed; `keys` is asked after every output."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a parent in the background, as `make test &`, ignores Ctrl-C
        os.execve(sys.executable, [sys.executable, *arguments], dict(environment))
    deadline, shown = time.monotonic() + seconds, b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        shown += data
        assert time.monotonic() < deadline, shown
        if typed := keys():
            os.write(terminal, typed)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode()
