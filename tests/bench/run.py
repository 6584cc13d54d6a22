"""The other numbers of `make bench`, on the embedded organism (the gradient engine: bench_engine.py).

1. grading: see bench_grading.py, which also runs alone
2. sampling: see bench_sampling.py, which also runs alone
3. pools: reading and writing, MB of JSON and rollouts a second
4. a cold and a warm start of `probe replay`, phase by phase; the help and the plan of phase 3 beside them
5. probe.attach: see bench_attach.py, which also runs alone
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_attach import attaching
from bench_grading import grading
from bench_sampling import sampling
from timing import interleaved, seconds

from replay_pools.base.files import encode_jsonl
from replay_pools.pool import BUILTIN, PoolWriter, open_pool

PHASE3 = Path(__file__).parents[2] / "spec" / "experiments" / "phase3.toml"


def pools() -> None:
    """One built-in pool, read whole with its hashes, and written whole with the syncs of every file."""
    pool = open_pool(BUILTIN / "teacher")
    count = sum(map(len, pool.steps))
    megabytes = sum(len(encode_jsonl(group)) for group in pool.steps) / 1e6

    def read() -> None:
        assert sum(map(len, open_pool(BUILTIN / "teacher").steps)) == count

    def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            writer = PoolWriter(Path(folder) / "pool", header=pool.header())
            for group in pool.steps:
                writer.write_step(group[0].step, group)
            writer.finish()

    for name, taken in interleaved({"read": read, "write": write}, 5).items():
        print(f"pool {name}: {megabytes / taken.wall:.1f} MB and {count / taken.wall:.0f} rollouts a second")


def starts() -> None:
    """`probe replay` twice into the same empty folder, a process each: without and with its caches."""
    with tempfile.TemporaryDirectory() as out:
        for name in ("cold", "warm"):
            words = ["-m", "probe", "replay", "--steps", "2", "--name", name, "--out", out]
            taken = seconds(
                lambda words=words: subprocess.run([sys.executable, *words], check=True, capture_output=True)
            )
            lines = (Path(out) / "runs" / name / "timings.jsonl").read_text().splitlines()
            print(f"{name} start of probe replay: {taken.wall:.1f} s in all; {json.loads(lines[0])}")
        for line in ("--help", "train --help", f"spec plan {PHASE3} --out {out}"):
            words = ["-m", "probe", *line.split()]
            taken = seconds(
                lambda words=words: subprocess.run([sys.executable, *words], check=True, capture_output=True)
            )
            print(f"probe {line}: {taken.wall:.1f} s")


if __name__ == "__main__":
    grading()
    sampling()
    pools()
    starts()
    attaching()
