"""Timing for benchmarks: ways of doing the same thing, run in turn, so that a busy machine slows all of them alike."""

import statistics
import time
from collections.abc import Callable


def seconds(function: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleaved(repeats: int, **ways: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each way, run in turn `repeats` times after one warm-up."""
    for way in ways.values():
        way()
    times = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(seconds(way))
    return {name: statistics.median(values) for name, values in times.items()}
