"""What benchmarks share: ways of doing the same thing, run in turn, so that a busy machine slows all of them alike."""

import argparse
import gc
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Seconds(NamedTuple):
    """Of the wall clock, and of the CPU: other processes on the machine do not enter the latter."""

    wall: float
    cpu: float


def is_quick(about: str | None) -> bool:
    """The one option of a benchmark: with --quick it only shows that all runs, and its numbers mean nothing."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one run of each: does the bench work?")
    return parser.parse_args().quick


def interleaved(ways: Mapping[str, Callable[[], object]], repeats: int, *, warm_up: bool = True) -> dict[str, Seconds]:
    """The best of each way, run in turn `repeats` times, once before that to warm up."""
    taken: dict[str, list[Seconds]] = {name: [] for name in ways}
    for turn in range(-int(warm_up), repeats):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            if turn >= 0:
                taken[name].append(Seconds(time.perf_counter() - wall, time.process_time() - cpu))
            gc.collect()
    return {name: Seconds(*map(min, zip(*each, strict=True))) for name, each in taken.items()}


def show(what: str, **numbers: object) -> None:
    """Print a line of numbers, each after its name."""
    words = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in numbers.items()
    ]
    print(f"  {what}: {'; '.join(words).replace('_', ' ')}", flush=True)
