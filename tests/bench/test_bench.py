"""Every benchmark runs, with --quick; its numbers are not judged."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("bench", sorted(Path(__file__).parent.glob("bench_*.py")), ids=lambda path: path.stem)
def test_a_benchmark_runs(bench: Path) -> None:
    subprocess.run([sys.executable, str(bench), "--quick"], check=True, capture_output=True, timeout=300)
