"""Reading and writing of pools, and starts of `probe`, on the embedded organism: python tests/bench/bench_starts.py

1. pools: one built-in pool, read whole with its hashes, and written whole with the syncs of every file
2. `probe replay` twice into the same empty folder, a process each: without and with its caches, phase by phase
3. the help, and the plan of phase 3
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import interleaved, is_quick, seconds, show

from replay_pools.base.files import encode_jsonl
from replay_pools.pool import BUILTIN, PoolWriter, open_pool

PHASE3 = Path(__file__).parents[2] / "spec" / "experiments" / "phase3.toml"


def pools(repeats: int) -> None:
    """MB of JSON and rollouts a second."""
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

    for name, taken in interleaved({"read": read, "write": write}, repeats).items():
        show(f"pool {name}, a second", MB=megabytes / taken.wall, rollouts=count / taken.wall)


def main() -> None:
    """Print a line each."""
    quick = is_quick(__doc__)
    pools(1 if quick else 5)
    replay = "replay --steps 2 --name"
    with tempfile.TemporaryDirectory() as out:
        for line in ("--help",) if quick else (f"{replay} cold", f"{replay} warm", "--help", f"spec plan {PHASE3}"):
            words = [sys.executable, "-m", "probe", *line.split(), *(["--out", out] if line != "--help" else [])]
            taken = seconds(lambda words=words: subprocess.run(words, check=True, capture_output=True))
            show(f"probe {line}", seconds=taken.wall)
        for timings in Path(out).glob("runs/*/timings.jsonl"):
            show(timings.parent.name, **json.loads(timings.read_text().splitlines()[0]))


if __name__ == "__main__":
    main()
