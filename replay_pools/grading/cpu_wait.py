"""How long the process of an execution waited for a CPU, as the kernel counts it: a busy machine, not a sleeper.

The figure is the longest wait of any one thread. A submission cannot raise it at will: besides other processes, only
its own threads can keep a thread waiting, and they burn its limited CPU time meanwhile.
"""

from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def waited_s(worker_pid: int) -> float | None:
    """Seconds that the process at the end of the chain of children below a worker was ready to run and did not.

    None where the kernel does not count them, or the process is gone.
    """
    waits: list[int] = []
    for task in _tasks(worker_pid):
        # "running waiting timeslices", in nanoseconds; all 0 where the kernel does not count. Readable for every user,
        # whoever owns the process.
        numbers = _read(task / "schedstat").split()
        if len(numbers) == 3 and int(numbers[0]):
            waits.append(int(numbers[1]))
    return max(waits) / 1e9 if waits else None


def _tasks(pid: int) -> Iterator[Path]:
    """The folders of the threads of the last processes below `pid`: below bubblewrap and the warm process."""
    try:
        tasks = list((_PROC / str(pid) / "task").iterdir())
    except OSError:  # gone
        return
    children = [child for task in tasks for child in _read(task / "children").split()]
    if not children:
        yield from tasks
    for child in children:
        yield from _tasks(int(child))


def _read(path: Path) -> str:
    """The text of a file in /proc; "" for a thread that is gone."""
    try:
        return path.read_text()
    except OSError:  # no reason to give up: a submission that starts and ends threads would hide all its waits
        return ""
