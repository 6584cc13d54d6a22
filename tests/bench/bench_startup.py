"""CPU seconds of starting up, side by side, as ratios to the import of torch:

    python tests/bench/bench_startup.py [--repeats 3] [--runs 6]

- imports: of torch, of what transformers' models need, of `probe replay`.
- a replay: the warm one of `make demo`, and its steps alone (forward, backward, arms), measured within a process.

The target: a warm replay takes at most twice the import of torch plus its steps.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from timing import Seconds, interleaved

DEMO = ["replay", "--replay-dirs", "teacher,base", "--arm", "vanilla,projected,random"]
SHORT = ["replay", "--arm", "vanilla,projected", "--steps", "2", "--per-pool", "2"]
IMPORTS = {
    "import torch": "import torch",
    "import a model": "from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM",
    "import a replay": "import probe.runs.replay",
}
# The steps of a run alone: the clock runs inside `run_steps`.
STEPS = """
import sys, time
from probe.cli import cli
from probe.cli._frame import run
from probe.runs import loop, replay
spent, run_steps = [], loop.run_steps
def timed(*args, **options):
    start = time.process_time()
    run_steps(*args, **options)
    spent.append(time.process_time() - start)
replay.run_steps = timed
code = run(cli, sys.argv[1:])
print("STEPS", *spent)
sys.exit(code)
"""


def main() -> None:
    """Print a row for every way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `probe` does
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        ways: dict[str, Callable[[], object]] = {}
        for name, code in IMPORTS.items():
            ways[name] = lambda code=code: children(lambda: python("-c", code))
        ways["warm replay"] = lambda: children(lambda: python("-m", "probe", *DEMO, *new_run(out)))
        ways["its steps"] = lambda: steps(out)
        python("-m", "probe", *SHORT, *new_run(out))  # fills the caches of SVDs and pair gradients
        results = interleaved(ways, options.repeats, warm_up=False)
    torch = results["import torch"].cpu
    print(f"{'':<24}{'CPU s':>8}{'/ torch':>10}")
    for name, taken in results.items():
        print(f"{name:<24}{taken.cpu:>8.2f}{taken.cpu / torch:>10.1f}")
    floor = torch + results["its steps"].cpu
    print(f"warm replay / (torch + its steps): {results['warm replay'].cpu / floor:.2f}")


def python(*arguments: str) -> str:
    """Run this interpreter; returns what it prints."""
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout


def children(function: Callable[[], object]) -> Seconds:
    """CPU seconds of the processes that ended within the function."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    function()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(0.0, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def steps(out: Path) -> Seconds:
    """CPU seconds of the steps of a warm replay."""
    printed = python("-c", STEPS, *DEMO, *new_run(out))
    return Seconds(0.0, float(printed.rpartition("STEPS")[2]))


def new_run(out: Path) -> list[str]:
    """Options that make a run with a name of its own."""
    runs = out / "runs"
    return ["--out", str(out), "--name", f"run{len(list(runs.glob('*'))) if runs.is_dir() else 0}"]


if __name__ == "__main__":
    main()
