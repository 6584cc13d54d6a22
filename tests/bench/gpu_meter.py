"""What a way costs on its device: seconds, memory above what was held before, and the time the device waits for the
host; and the time that a part may take.
"""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import torch
from timing import interleaved
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

GIB = 2**30
MOST_REPEATS = 5


class TimeUpError(BaseException):
    """A part takes longer than it may. Not an Exception, which libraries catch and go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one call; None is what this device cannot show, or what was not asked for."""

    seconds: float
    peak_gib: float | None  # of memory above what was held before the call
    host_bound: float | None  # share of the seconds in which the device had nothing to do


class Deadline:
    """The time that is left, of which everything that asks gets a part."""

    def __init__(self, at: float) -> None:
        """`at` in seconds since the epoch."""
        self.at = at

    @property
    def left(self) -> float:
        """Seconds."""
        return self.at - time.time()

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """While open, TimeUpError is raised at the deadline; a call that does not return to Python is waited for."""
        if self.left <= 0:
            raise TimeUpError

        def stop(_number: int, _frame: FrameType | None) -> None:
            raise TimeUpError

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.left)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def costs(
    ways: Mapping[str, Callable[[], object]],
    device: torch.device,
    deadline: Deadline,
    *,
    profiled: bool = False,
    most_repeats: int = MOST_REPEATS,
) -> dict[str, Cost]:
    """Of each way, run in turn: once to warm up, which shows the peak, then as often as there is time for.

    Args:
        ways: by name.
        device: on which they compute.
        deadline: TimeUpError where the ways do not fit before it.
        profiled: ask for the share of the time in which the device waits, by a run of its own.
        most_repeats: after the warm-up.
    """
    on_gpu = device.type == "cuda"
    finished = {name: partial(finish, way, device) for name, way in ways.items()}
    started = time.time()
    peaks = {name: peak_gib(way, device) for name, way in finished.items()}
    warm_up = time.time() - started
    busy: dict[str, float | None] = dict.fromkeys(ways)
    if on_gpu and profiled:
        busy = {name: busy_seconds(way) for name, way in finished.items()}
    repeats = min(most_repeats, int(deadline.left / warm_up))
    if repeats < 1:
        raise TimeUpError
    measured = {}
    for name, taken in interleaved(finished, repeats, warm_up=False).items():
        works = busy[name]
        waits = None if works is None else max(0.0, 1 - works / taken.wall)
        measured[name] = Cost(seconds=taken.wall, peak_gib=peaks[name], host_bound=waits)
    return measured


def finish(way: Callable[[], object], device: torch.device) -> None:
    """Call it, and wait until the device is done."""
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gib(way: Callable[[], object], device: torch.device) -> float | None:
    """GiB that a call allocates on the GPU at most, beside what was there; None on a CPU, where nobody counts."""
    if device.type != "cuda":
        way()
        return None
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    way()
    return (torch.cuda.max_memory_allocated(device) - held) / GIB


def busy_seconds(way: Callable[[], object]) -> float | None:
    """How long the GPU computes or copies in a call; None where the driver shows no kernel to the profiler."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        way()
    spans = []
    for event in profiler.events() or ():
        # An annotation of the host spans the gaps between the kernels as well.
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            spans.append((event.time_range.start, event.time_range.end))
    return covered(spans) / 1e6 if spans else None


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of (start, end) spans: kernels of two streams may run at the same time."""
    total, reached = 0.0, -float("inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
