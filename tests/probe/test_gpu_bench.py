"""`tests/bench/gpu.py`, small on a CPU: every row with finite ratios; what does not fit its time is left out."""

import json
import math
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).parents[1] / "bench"
PARTS = ["limit", "replay", "replay, rank 16", "training", "sample", "generate"]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCH)
    return import_module("gpu_meter")


@pytest.mark.slow  # every part of the bench
def test_every_row_has_finite_ratios() -> None:
    command = [sys.executable, str(BENCH / "gpu.py"), "--small", "--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    rows = {row["part"]: row for row in record["rows"]}
    svds = [part for part in rows if part.startswith("SVD ")]
    assert list(rows) == PARTS + svds
    assert len(svds) == 6, "five shapes of weights, and all modules"
    assert svds[-1] == "SVD of all 14 modules"
    for row in rows.values():
        assert 0 < row["seconds"] < math.inf
        assert 0 < row["ratio"] < math.inf
        assert (row["tokens_per_second"] is None) == row["part"].startswith("SVD ")
        assert row["peak_gib"] is row["peak_ratio"] is row["host_bound"] is None, "a CPU shows none of these"
    assert rows["limit"]["ratio"] == 1
    one_each = [rows[part]["seconds"] for part in svds[:-1]]
    assert rows[svds[-1]]["seconds"] > sum(one_each), "every shape has several modules"
    assert record["facts"]["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
def test_a_missing_gpu_is_said(
    meter: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit) as end:
        import_module("gpu").main()
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert "expected a GPU, found none" in said.err


def test_a_part_ends_at_its_deadline(meter: ModuleType) -> None:
    def spin(seconds: float) -> None:
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            pass

    with pytest.raises(meter.TimeUpError), meter.Deadline(time.time() + 0.05).enforced():
        spin(60)
    with pytest.raises(meter.TimeUpError), meter.Deadline(time.time() - 1).enforced():
        pytest.fail("began after its deadline")
    with meter.Deadline(time.time() + 0.05).enforced():
        pass
    spin(0.1)  # the time of a part that has ended stops nothing


def test_ways_that_would_not_fit_are_not_repeated(meter: ModuleType) -> None:
    calls = []

    def way() -> None:
        calls.append(time.sleep(0.05))

    with pytest.raises(meter.TimeUpError):
        meter.costs({"way": way}, torch.device("cpu"), meter.Deadline(time.time() + 0.08))
    assert len(calls) == 1, "the warm-up showed it"
    cost = meter.costs({"way": way}, torch.device("cpu"), meter.Deadline(time.time() + 60), most_repeats=2)["way"]
    assert len(calls) == 1 + 3
    assert cost.seconds >= 0.05


def test_kernels_that_overlap_count_once(meter: ModuleType) -> None:
    assert meter.covered([(5, 6), (0, 2), (1, 3), (1.5, 2), (5.5, 7)]) == 3 + 2
    assert meter.covered([]) == 0
