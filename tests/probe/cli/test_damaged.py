"""Files that were damaged or made to do harm, through every verb that reads them: exit code 2, one line."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.runs.arm_directions import card_path


@pytest.fixture(scope="module")
def made(out: Path, small: str, quick: list[str], preset: Callable[..., str]) -> Path:
    """OUT with a direction file, a small replay along it and a training run that moved."""
    moves = preset({"objective.entropy_coef": 0.1, "evaluation.every": 9})
    given = ("--arm", "vanilla", "--v-hack", "given", "--k", "2")
    for command in (
        ["extract", "--name", "given", "--model", small, *quick[2:]],
        ["replay", "--name", "replayed", *quick[:2], "--steps", "2", *given],
        ["train", "--name", "trained", "--preset", moves],
    ):
        assert run(cli, [*command, "--out", str(out)]) == 0
    return out


def flipped(path: Path) -> None:
    """One bit of the last tensor."""
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.fixture
def refusing(refused: Callable[..., str], copied: Path) -> Callable[[list[str], str], None]:
    """refusing(command, text): the command, in a copy of OUT, ends in one line that has the text."""

    def check(command: list[str], expected: str) -> None:
        line = refused(*command, root=copied)
        assert "expected" in line
        assert "found" in line
        assert expected in line

    return check


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copied", ignore=shutil.ignore_patterns("cache")))


SAMPLE = ["--steps", "1", "--group", "2", "--set", "rollouts.sampler.max_new_tokens=4"]


@pytest.mark.slow
def test_a_damaged_adapter(copied: Path, small: str, refusing) -> None:
    """Of a run, given by its path or by the run."""
    adapter = copied / "runs" / "trained" / "adapter"
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    sample = ["pool", "generate", "--model", small, "--adapter", str(adapter), "--name", "x", *SAMPLE]
    refusing(sample, "adapter_model.safetensors")
    refusing(["policy", "eval", "trained", "--problems", "1", "--rollouts", "1"], "adapter_model.safetensors")
    assert not (copied / "pools" / "x").exists()


def test_a_damaged_direction_file(copied: Path, refusing, preset: Callable[..., str]) -> None:
    """Its card has its hash."""
    path = copied / "directions" / "given.safetensors"
    flipped(path)
    options = ["--v-hack", "given", "--k", "2", "--arm", "vanilla"]
    refusing(["replay", "--name", "x", "--steps", "1", *options], "given.safetensors: expected")
    given = ["--set", "intervention.v_hack=given", "--set", "intervention.extraction.k=2"]
    refusing(["train", "--preset", preset(), "--name", "y", *given], "given.safetensors: expected")
    refusing(["show", str(path)], "expected")


def test_damaged_inner_products(copied: Path, refusing) -> None:
    flipped(copied / "runs" / "replayed" / "gram" / "step_001.safetensors")
    refusing(["analyze", "replayed"], "step_001.safetensors: expected sha256")


def test_a_damaged_cache_is_made_again(quick: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a line, and the same numbers: pair gradients, and SVDs."""
    command = ["replay", *quick, "--arm", "vanilla", "--steps", "2", "--out", str(tmp_path), "--name"]
    assert run(cli, [*command, "before"]) == 0
    entries = [*tmp_path.glob("cache/pair_gradients/*.safetensors"), *tmp_path.glob("cache/svd/*.safetensors")]
    whole = {path: path.read_bytes() for path in entries}
    for path in entries:
        path.write_bytes(path.read_bytes()[:-5])
    assert run(cli, [*command, "after"]) == 0
    assert "damaged; made again" in capsys.readouterr().err
    steps = [(tmp_path / "runs" / name / "steps.jsonl").read_bytes() for name in ("before", "after")]
    assert steps[0] == steps[1]
    assert {path.read_bytes() == data for path, data in whole.items()} == {True}


def test_a_damaged_checkpoint_is_not_resumed(copied: Path, refusing) -> None:
    run_directory = copied / "runs" / "trained"
    (run_directory / "manifest.json").unlink()
    path = max((run_directory / "checkpoint").iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    config = ["--config", str(run_directory / "config.json")]
    refusing(["train", *config, "--name", "trained"], f"{path.name}: expected a checkpoint with its sha256")


def test_json_that_is_cut(copied: Path, refusing) -> None:
    """In a config, a card, the manifests of run and pool, pairs, problems and logged rollouts."""
    content, expected = '{"settings": {}, "settings', "expected strict JSON"
    files = copied / "files"
    (files / "log").mkdir(parents=True)
    (files / "x.json").write_text(content)
    (files / "x.jsonl").write_text(content + "\n")
    (files / "log" / "step_000.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    card = copied / "directions" / "given.safetensors"
    card_path(card).write_text(content)
    for place in (copied / "runs" / "replayed", copied / "pools" / "bad"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "manifest.json").write_text(content)
    of_line = "line 1: expected JSON"
    for words, said in (
        (["replay", "--name", "x", "--config", files / "x.json"], expected),
        (["extract", "--name", "x", "--pairs", files / "x.jsonl"], f"x.jsonl {of_line}"),
        (["pool", "generate", "--env", f"leetcode:{files / 'x.jsonl'}", "--name", "x", *SAMPLE], expected),
        (["pool", "import", files / "log", "--name", "x", "--model", "organism"], of_line),
        (["show", card], expected),
        (["replay", "--name", "x", "--v-hack", "given", "--k", "2", "--dry-run"], expected),
        (["analyze", "replayed"], expected),
        (["report", "replayed"], expected),
        (["report", "replayed", "--tables", "csv"], expected),
        (["pool", "show", "bad"], expected),
        (["pool", "regrade", "bad", "--name", "x"], expected),
        (["replay", "--replay-dirs", "bad", "--name", "x"], expected),
    ):
        refusing([*map(str, words)], said)
