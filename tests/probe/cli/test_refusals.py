"""Bad input gives one clear line and exit code 2, and loses nothing."""

import shutil
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.files import read_sealed, write_sealed
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
        (["--arm", "vanilla,projected", "--set", "optimizer.lr=1e-3"], "intervention.arms: expected one"),
        (["--condition", "x:clip=2"], "condition x clip"),
        (["--planning-phrases", "nowhere.txt"], "Say --set planning_phrases=VALUE"),
        (["--k", "33"], "--k: expected at most 32, the pairs that are not held out"),
        (["--pairs", "nowhere.jsonl"], "no such file"),
        (["--v-hack", "nowhere.safetensors"], "probe extract"),
        (["--config", "nowhere.json"], "no such file"),
        (["--match", "prompt"], "none"),
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


def test_a_pool_of_another_model_is_refused(copied: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = read_sealed(copied / "manifest.json")
    manifest["policy"]["base_weights_sha256"] = "0" * 64
    write_sealed(copied / "manifest.json", manifest)
    line = refused(replay_copied(out), capsys)
    assert "base weights" in line
    assert "000000" in line


def test_rollouts_of_another_model_count_beside_some_of_this_one(
    copied: Path, out: Path, quick: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As a training takes a teacher of another base; by themselves they are no rollouts of this policy."""
    manifest = read_sealed(copied / "manifest.json")
    manifest["policy"] |= {"base_model": "other", "base_weights_sha256": "0" * 64}
    write_sealed(copied / "manifest.json", manifest)
    said = "sampled by other, replayed on organism"
    command = ["replay", *quick, "--arm", "vanilla", "--steps", "1", "--out", str(out), "--model", "organism"]
    assert run(cli, [*command, "--replay-dirs", "teacher,copied", "--name", "two-bases"]) == 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert run(cli, ["analyze", "two-bases", "--full", "--out", str(out)]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert "base weights" in refused([*command, "--replay-dirs", "copied", "--name", "refused"], capsys)


def test_the_config_of_another_verb_is_named(
    many_arms: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["train", "--config", str(many_arms / "config.json"), "--out", str(out)], capsys)
    assert "expected the config.json of a run of probe train, found a run of probe replay" in line
    (tmp_path / "other.json").write_text("[1]")
    line = refused(["replay", "--config", str(tmp_path / "other.json"), "--out", str(out)], capsys)
    assert "expected the config.json of a run of probe replay, found none" in line


def test_a_header_that_differs_is_named_by_its_leaf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pool", "generate", "--name", "x", "--steps", "1", "--group", "2", "--max-new-tokens", "8"]
    arguments += ["--out", str(tmp_path)]
    assert run(cli, arguments) == 0
    assert "manifest.json plan.hint: expected True, found False; choose" in refused([*arguments, "--hint"], capsys)


def test_a_log_is_no_pool_before_its_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb that takes a pool says which command makes one, of a folder and of a file."""
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "step_000.jsonl"
    log.write_text("{}")
    for place, found in ((log.parent, "step_000.jsonl"), (log, "a file")):
        for verb in (["pool", "show", str(place)], ["pool", "verify", str(place)], ["pool", "regrade", str(place)]):
            options = ["--name", "x"] if verb[1] == "regrade" else []
            line = refused([*verb, *options, "--out", str(tmp_path)], capsys)
            assert (
                f"found {found}; to make one of logged rollouts: probe pool import {place} --name NAME --model MODEL"
                in line
            )
        arguments = ["replay", "--replay-dirs", str(place), "--out", str(tmp_path)]
        assert f"probe pool import {place}" in refused(arguments, capsys)
