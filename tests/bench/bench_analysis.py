"""Analysis as ratios: 12 conditions to one, and 2,000 steps to 20. Runs alone: python tests/bench/bench_analysis.py.

Each way is a process of its own, so that nothing is remembered from the way before.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from long_run import repeat_steps

from probe.records.run import read_run

CONDITIONS = 12
REPEATS = 100


def probe(*words: str) -> float:
    """CPU seconds of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "probe", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def replay(name: str, out: str, conditions: int) -> None:
    """A run of the built-in pools under so many caps of the advantage."""
    words = ["replay", "--replay-dirs", "teacher,base", "--arm", "vanilla,projected", "--name", name, "--out", out]
    for i in range(1, conditions + 1):
        words += ["--condition", f"cap{i}:scale_rewards=group,advantage_clip={i / 4}"]
    probe(*words)


def analysis() -> None:
    with tempfile.TemporaryDirectory() as out:
        replay("one", out, 1)
        replay("many", out, CONDITIONS)
        runs = Path(out) / "runs"
        one, many = (probe("analyze", name, "--out", out) for name in ("one", "many"))
        print(f"analysis: {CONDITIONS} conditions take {many / one:.2f} x one")
        repeat_steps(read_run(runs / "one"), REPEATS, runs / "long")
        long = probe("analyze", "long", "--out", out)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"analysis: {REPEATS} x the steps take {long / one:.1f} x the time; peak of all processes {peak:.0f} MB")


if __name__ == "__main__":
    analysis()
