"""The memory that a plan states against the peak of the run itself, in a process of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from extraction.pairs import load_pairs, write_pairs
from probe.cli import cli
from probe.cli._frame import run
from replay_pools import organism

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [REPLAY, REPLAY + BFLOAT16, TRAIN], ids=["replay", "replay in bfloat16", "training"]
)
def test_organism(arguments: list[str], pairs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    within_a_fifth([*arguments, *pairs], tmp_path, capsys)


@pytest.mark.real
def test_evaluation_of_many_rows(pairs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """512 rows are sampled at once, and no pass runs meanwhile; marked since it takes minutes."""
    sizes = ("evaluation.num_problems=64", "evaluation.rollouts_per_problem=8", "rollouts.sampler.max_new_tokens=64")
    options = [word for size in sizes for word in ("--set", size)]
    within_a_fifth([*TRAIN, "--steps", "2", *options, *pairs], tmp_path, capsys)


@pytest.mark.real
@pytest.mark.parametrize("dtype", [[], BFLOAT16], ids=["float32", "bfloat16"])
def test_larger_model(dtype: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random weights, 6 layers, all built-in pairs; marked since it takes minutes."""
    model, source = tmp_path / "model", next(Path(organism.__path__[0]).rglob("config.json")).parent
    shutil.copytree(source, model, ignore=shutil.ignore_patterns("*.safetensors"))
    config = AutoConfig.from_pretrained(source)
    config.update({"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6, "head_dim": 64})
    config.layer_types = ["full_attention"] * 6
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    within_a_fifth([*TRAIN, "--set", f"model.name={model}", *dtype], tmp_path, capsys)
