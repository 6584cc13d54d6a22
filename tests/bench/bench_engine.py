"""The per-sample gradient engine against its limit and against other ways to the same gradients, side by side.

A SmolLM2-135M-shaped model with random weights, 8 ragged rollouts (prompts 200-350 tokens, completions 100-300),
float32.

    limit           packed rows, frozen forward and backward down to the first adapted outputs, nothing per sample
    products        the limit and the engine's products with U and Vh, unsummed: loop / products bounds loop / svd
    svd, svd 256    per_sample_gradients in the SVD basis: all singular triplets, the 256 largest of each module
    lora            the same in the LoRA basis, rank 32
    loop            what the engine replaces: a backward for each sample through y = W x + U diag(delta_S) Vh x, the
                    difference of `.grad` before and after; again for every (arm x condition) cell

Times are the best of interleaved runs, wall and CPU seconds; read the ratios. Targets are judged by CPU seconds, which
other processes on the machine do not enter. The engine is given one pass, as the limit has. Peak memory is that of a
process which does one of these and nothing else. "FLOPs" is the same ratio by counting the operations of the matrix
products: what a perfect machine would show.

About 10 minutes on two idle cores (estimated): hence two runs of each way. `--quick` checks in a minute that all runs;
its numbers mean nothing.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
from timing import Seconds, interleaved
from ways import engine, evaluate, frames_of, limit, loop, products, reference_model
from workload import FULL, OUT, QUICK, TRUNCATED, Shape, adapted, flops, rollouts

CELLS = (3, 12)
TARGETS = {
    "svd / limit": ("<=", 1.30),
    "lora / limit": ("<=", 1.12),
    "loop / svd, 1 cell": (">=", 1.6),
    "loop / svd, 12 cells": (">=", 15.0),
    "peak svd / peak limit": ("<=", 1.25),
    "peak lora / peak limit": ("<=", 1.25),
}
CUT = f"svd {TRUNCATED}"
Ways = dict[str, Callable[[], object]]


@dataclass(slots=True)
class Record:
    """Everything that was measured, as it is written."""

    facts: dict[str, object]
    seconds: dict[str, dict[str, Seconds]] = field(default_factory=dict)  # by table and way
    peak_mb: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)

    def compare(self, above: str, below: str, table: str, name: str = "") -> None:
        """A ratio of two times of one table."""
        a, b = self.seconds[table][above], self.seconds[table][below]
        self.ratios[name or f"{above} / {below}"] = {"wall": a.wall / b.wall, "CPU": a.cpu / b.cpu}

    def to_json(self) -> dict[str, object]:
        """With times by name."""
        named = {table: {way: t._asdict() for way, t in ways.items()} for table, ways in self.seconds.items()}
        return asdict(self) | {"seconds": named}


def measure_engine(record: Record, shape: Shape, repeats: int) -> None:
    """The engine in both bases, its limit, the loop; what many cells add to one pass."""
    svd, reference, batch = adapted("svd", shape), reference_model(shape), shape.rollouts()
    bases = {"svd": svd, CUT: adapted("svd", shape, TRUNCATED), "lora": adapted("lora", shape)}

    def ways(own) -> Ways:
        return {
            "limit": lambda: limit(svd, own),
            "products": lambda: products(svd, own),
            **{name: partial(engine, coordinates, own) for name, coordinates in bases.items()},
            "loop": lambda: loop(reference, own),
        }

    interleaved(ways(rollouts((8, 9), (5, 4), shape.vocabulary)), 1, warm_up=False)
    unit, vectors = engine(svd, batch), frames_of(svd.sizes, 4)
    evaluations = {f"{n} cells": partial(evaluate, unit, vectors, n) for n in CELLS}
    found = interleaved(ways(batch) | evaluations, repeats, warm_up=False)
    record.seconds["engine"] = found
    by_flops = flops(shape)
    for name in bases:
        record.compare(name, "limit", "engine")
        record.ratios[f"{name} / limit"]["FLOPs"] = by_flops[name] / by_flops["limit"]
    for below in ("limit", "products"):
        record.compare("loop", below, "engine")
    record.compare("loop", "svd", "engine", "loop / svd, 1 cell")
    record.ratios["loop / svd, 1 cell"]["FLOPs"] = by_flops["loop"] / by_flops["svd"]
    for n in CELLS:
        pairs = zip(found["loop"], found["svd"], found[f"{n} cells"], strict=True)
        wall, cpu = (n * a / (b + c) for a, b, c in pairs)
        record.ratios[f"loop / svd, {n} cells"] = {"wall": wall, "CPU": cpu}


def measure_peaks(record: Record, arguments: list[str]) -> None:
    """Of the engine and the loop, a process each (ru_maxrss would begin with the parent's)."""
    for way in ("limit", "svd", CUT, "lora", "loop"):
        command = [sys.executable, __file__, *arguments, "--peak", way]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        record.peak_mb[way] = float(done.stdout.split()[-1])
    for way, peak in record.peak_mb.items():
        if way != "limit":
            record.ratios[f"peak {way} / peak limit"] = {"MB": peak / record.peak_mb["limit"]}


def print_peak(way: str, shape: Shape) -> None:
    """The inside of `measure_peaks`."""
    batch = shape.rollouts()
    if way == "loop":
        loop(reference_model(shape), batch)
    elif way == "limit":
        limit(adapted("lora", shape), batch)
    else:
        engine(adapted("lora" if way == "lora" else "svd", shape, TRUNCATED if way == CUT else None), batch)
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    print(int(line.split()[1]) / 1024)


def show(record: Record) -> None:
    """The tables: every time, every peak, every ratio with its target."""
    print(", ".join(f"{name} {value}" for name, value in record.facts.items()))
    for table, ways in record.seconds.items():
        for way, taken in ways.items():
            print(f"  {table:<12} {way:<20} {taken.wall:8.2f} s wall {taken.cpu:8.2f} s CPU")
    for way, peak in record.peak_mb.items():
        print(f"  peak of {way:<24} {peak:8.0f} MB")
    for name, found in record.ratios.items():
        numbers = "  ".join(f"{kind} {number:6.2f}" for kind, number in found.items())
        print(f"  {name:<40} {numbers:<40} {verdict(name, found)}")


def verdict(name: str, found: Mapping[str, float]) -> str:
    """The target of a ratio and whether it is met: by CPU seconds where there are any."""
    if name not in TARGETS:
        return ""
    sign, target = TARGETS[name]

    def met(value: float) -> bool:
        return value <= target if sign == "<=" else value >= target

    if met(found["CPU"] if "CPU" in found else next(iter(found.values()))):
        return f"target {sign} {target:<6} met"
    by_flops = "FLOPs" in found and not met(found["FLOPs"])
    return f"target {sign} {target:<6} MISSED{' (FLOPs alone miss it)' if by_flops else ''}"


def main() -> None:
    """Measure, show, and write `out/bench/engine.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one run of each: does the bench work?")
    parser.add_argument("--repeats", type=int, default=2, help="interleaved runs of each way")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape, repeats = (QUICK, 1) if options.quick else (FULL, options.repeats)
    if options.peak:
        print_peak(options.peak, shape)
        return
    OUT.mkdir(parents=True, exist_ok=True)
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "repeats": repeats}
    record = Record(facts | {"tokens": shape.tokens, "layers": shape.layers})
    measure_engine(record, shape, repeats)
    measure_peaks(record, ["--quick"] if options.quick else [])
    (OUT / "engine.json").write_text(json.dumps(record.to_json(), indent=1) + "\n")
    show(record)


if __name__ == "__main__":
    main()
