"""Work that is cut off: at a call (`interrupted_at`), or in a real process that is killed for real.

Processes start quickly: they are forks of one server with torch and the verbs imported.
"""

import multiprocessing
import socket
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["probe.cli.replay", "probe.runs.replay", "probe.cli.train", "probe.runs.train"])
HEAD = """
import os, signal, sys
os.environ.update({environment!r})
signal.signal(signal.SIGINT, signal.default_int_handler)
if {log!r}:
    log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
sys.argv[1:] = {arguments!r}
"""

# python -c KILLER PART ARGS...: `probe ARGS...`, killed when it is about to sync a file whose path holds PART.
KILLER = """
import os, signal, sys
real = os.fsync
def sync(descriptor):
    if sys.argv[1] in os.readlink(f"/proc/self/fd/{descriptor}"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = sync
from probe.cli import cli
from probe.cli._frame import run
sys.exit(run(cli, sys.argv[2:]))
"""


def interrupted_at(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose `number`-th call is Ctrl-C instead."""
    calls = []

    def dying(*arguments: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments, **keywords)

    return dying


def start(
    code: str, *arguments: str, environment: Mapping[str, str] | None = None, log: Path | None = None
) -> BaseProcess:
    """A process that executes `code` as `python -c CODE ARGUMENTS` does; what it prints goes to `log`."""
    own = {"environment": dict(environment or {}), "log": str(log or ""), "arguments": arguments}
    process = CONTEXT.Process(target=exec, args=(HEAD.format(**own) + code, {"__name__": "child"}))
    process.start()
    return process


def finish(process: BaseProcess, seconds: float = 300) -> int | None:
    """Its exit code; -N of signal N."""
    process.join(seconds)
    return process.exitcode


def command(*arguments: str) -> str:
    """What a process executes to run `probe ARGUMENTS`."""
    return f"import sys; from probe.cli import cli; from probe.cli._frame import run; sys.exit(run(cli, {arguments!r}))"


def start_ranks(num: int, code: str) -> list[BaseProcess]:
    """`num` ranks that execute `code` in the environment that torchrun gives them, without its agent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": num, "LOCAL_WORLD_SIZE": num, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    owns = ({**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(num))
    return [start(code, environment={name: str(value) for name, value in own.items()}) for own in owns]
