"""The memory that a plan states against the peak of the run itself, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from extraction.pairs import write_pairs
from extraction.selection import load_pairs
from probe.cli import cli
from probe.cli._frame import run
from probe.runs.replay import ReplayInputs
from probe.settings.rollouts import SourceConfig
from probe.settings.run import ReplayConfig
from replay_pools import pool

# Everything that is imported counts before the run: the peak is that of what the run itself holds.
PEAK = """
import ctypes, gc, sys
from pathlib import Path
import probe.runs.replay, probe.runs.train, scipy.stats
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM
from probe.cli import cli
from probe.cli._frame import run
def kilobytes(row):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(row))
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
code = run(cli, sys.argv[1:])
print("PEAK", (kilobytes("VmHWM") - before) * 1024)
sys.exit(code)
"""
REPLAY = ["replay", "--replay-dirs", "teacher,base", "--steps", "2", "--arm", "vanilla,projected,random"]
TRAIN = ["train", "--preset", "smoke"]
BFLOAT16 = ["--set", "model.dtype=bfloat16"]


def within_a_fifth(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*arguments, "--out", str(tmp_path / "out")]
    assert run(cli, [*arguments, "--dry-run", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["memory"]
    done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True)
    measured = int(done.stdout.rpartition("PEAK")[2])
    assert sum(row["num_bytes"] for row in rows) == pytest.approx(measured, rel=0.2), rows


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    """Fewer than the built-in ones: their pass is shorter, and still longer than a step of the replay."""
    built_in = load_pairs("builtin")
    write_pairs(tmp_path / "pairs.jsonl", [*built_in[:12], *built_in[-4:]])
    return ["--set", f"intervention.extraction.pairs={tmp_path}/pairs.jsonl"]


# What bfloat16 takes was counted on a CPU with AVX-512; the kernels of others take less than is said.
OF_AVX512 = pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="counted with AVX-512")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [REPLAY, pytest.param(REPLAY + BFLOAT16, marks=OF_AVX512), TRAIN],
    ids=["replay", "replay in bfloat16", "training"],
)
def test_organism(arguments: list[str], pairs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    within_a_fifth([*arguments, *pairs], tmp_path, capsys)


def test_a_long_pool_is_read_as_far_as_its_steps_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first eight of 20 groups fill two steps with the groups that the whole pool would give; 16 take all."""
    read: set[Path] = set()
    read_listed = pool._read_listed
    monkeypatch.setattr(pool, "_read_listed", lambda path, entry: read.add(path) or read_listed(path, entry))

    def drawn(num_steps: int) -> list[Any]:
        config = ReplayConfig(source=SourceConfig(replay_dirs=("teacher",)), steps=num_steps)
        read.clear()
        groups = ReplayInputs(config, tmp_path, print, "cpu").groups()
        return [groups.groups(step) for step in range(num_steps)]

    whole = {num_steps: drawn(num_steps) for num_steps in (2, 16)}
    assert len(read) == 20
    monkeypatch.setattr("probe.runs.replay_inputs.LEAST_READ", 8)
    monkeypatch.setattr("probe.runs.replay_inputs.READ_PER_STEP", 2)
    capsys.readouterr()
    assert drawn(2) == whole[2]
    assert len(read) == 8
    assert "12 of 20 groups were not read" in capsys.readouterr().out
    assert drawn(16) == whole[16]
    assert len(read) == 20
