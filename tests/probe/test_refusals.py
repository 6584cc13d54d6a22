"""Bad input gives one clear line and exit code 2, and loses nothing."""

import gzip
import shutil
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.files import read_json, write_json
from replay_pools.pool import BUILTIN


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one error line of a command that must exit with 2."""
    capsys.readouterr()
    assert run(cli, arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("probe: error:")]
    assert len(lines) == 1, "one line, no traceback"
    return lines[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--replay-dirs", "teacher,nowhere"], "base"),
        (["--arm", "projekted"], "projected"),
        (["--arm", ""], "at least one"),
        (["--arm", "vanilla,vanilla"], "different arms"),
        (["--arm", "vanilla,projected", "--lr", "1e-3"], "one arm"),
        (["--per-pool", "9"], "at least 9 rollouts"),
        (["--steps", "21"], "21 steps"),
        (["--replay-dirs", "teacher,teacher"], "different pools"),
        (["--loss-type", "ppo"], "dr_grpo"),
        (["--advantage-estimator", "maxrl", "--scale-rewards", "group"], "maxrl"),
        (["--condition", "x:clip=2"], "advantage_clip"),
        (["--condition", "x", "--condition", "x:hicra_alpha=1"], "different names"),
        (["--condition", "a", "--condition", "b", "--lr", "1e-3"], "one condition"),
        (["--dtype", "float64", "--dtype-noise", "2"], "below float64"),
        (["--planning-phrases", "nowhere.txt"], "nowhere.txt"),
        (["--tokens-per-batch", "0"], "--tokens-per-batch"),
        (["--k", "33"], "32 pairs"),
        (["--pairs", "nowhere.jsonl"], "no such file"),
        (["--pairs", "builtin:nothing"], "placebo"),
        (["--v-hack", "nowhere.safetensors"], "probe extract"),
        (["--device", "cuda:77"], "present device"),
        (["--model", "./nowhere"], "no such directory"),
        (["--config", "nowhere.json"], "no such file"),
        (["--match", "prompt"], "none"),
        (["--name", "../escape"], "letters"),
        (["--no-such-option"], "--help"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_replay_refuses(options: list[str], expected: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", "--name", "refused", "--out", str(out), *options]
    assert expected in refused(arguments, capsys)
    shutil.rmtree(out / "runs" / "refused", ignore_errors=True)


@pytest.fixture
def copied(out: Path) -> Path:
    """A copy of the built-in pool `base` under out/pools/copied, to be damaged."""
    place = out / "pools" / "copied"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(BUILTIN / "base", place)
    return place


def replay_copied(out: Path) -> list[str]:
    return ["replay", "--name", "refused", "--replay-dirs", "teacher,copied", "--out", str(out)]


def test_a_truncated_file_is_named(copied: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copied / "step_003.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    assert "step_003.jsonl.gz" in refused(replay_copied(out), capsys)


def test_a_changed_file_is_named(copied: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copied / "step_003.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"solution", b"Solution")))
    line = refused(replay_copied(out), capsys)
    assert "step_003.jsonl.gz" in line
    assert "sha256" in line


def test_a_pool_of_another_model_is_refused(copied: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = read_json(copied / "manifest.json")
    manifest["policy"]["base_weights_sha256"] = "0" * 64
    write_json(copied / "manifest.json", manifest)
    line = refused(replay_copied(out), capsys)
    assert "base weights" in line
    assert "000000" in line


def test_an_unwritable_place_is_named(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = out / "blocked"
    blocked.write_text("a file where a folder should be")
    assert "blocked" in refused(["replay", "--out", str(blocked)], capsys)


def test_an_unfinished_run_cannot_be_analysed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = out / "runs" / "unfinished"
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text("{}")
    assert "resume" in refused(["analyze", str(place)], capsys)


def test_extract_needs_the_divisor_of_dr_grpo(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--max-completion-length" in refused(["extract", "--loss-type", "dr_grpo", "--out", str(out)], capsys)
