"""Bad input gives one clear line and exit code 2, and loses nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay_pools.base.files import read_sealed, write_json, write_sealed
from replay_pools.pool import BUILTIN

Refused = Callable[..., str]


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
def test_replay_refuses(options: list[str], expected: str, out: Path, refused: Refused) -> None:
    assert expected in refused("replay", "--name", "refused", *options)
    shutil.rmtree(out / "runs" / "refused", ignore_errors=True)


@pytest.fixture
def copied(out: Path) -> Callable[..., None]:
    """copied(**changes of its policy): the built-in pool `base` as out/pools/copied, of other weights."""

    def make(**policy: Any) -> None:
        place = out / "pools" / "copied"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(BUILTIN / "base", place)
        manifest = read_sealed(place / "manifest.json")
        manifest["policy"] |= {"base_weights_sha256": "0" * 64, **policy}
        write_sealed(place / "manifest.json", manifest)

    return make


def test_a_pool_of_another_model_is_refused(copied: Callable[..., None], refused: Refused) -> None:
    copied()
    line = refused("replay", "--name", "refused", "--replay-dirs", "teacher,copied")
    assert "base weights" in line
    assert "000000" in line


@pytest.mark.slow
def test_rollouts_of_another_model_count_beside_some_of_this_one(
    copied: Callable[..., None], quick: list[str], probe, refused: Refused
) -> None:
    """As a training takes a teacher of another base; by themselves they are no rollouts of this policy."""
    copied(base_model="other")
    said = "sampled by other, replayed on organism"
    command = ["replay", *quick, "--arm", "vanilla", "--steps", "1", "--model", "organism"]
    _, errors = probe(*command, "--replay-dirs", "teacher,copied", "--name", "two-bases")
    assert said in " ".join(errors.split())
    assert said in " ".join(probe("analyze", "two-bases", "--full")[0].split())
    assert "base weights" in refused(*command, "--replay-dirs", "copied", "--name", "refused")


@pytest.mark.parametrize(
    ("verb", "config", "found"),
    [("train", {"settings": {"verb": "replay"}}, "a run of probe replay"), ("replay", [1], "none")],
)
def test_the_config_of_another_verb_is_named(
    verb: str, config: Any, found: str, tmp_path: Path, refused: Refused
) -> None:
    write_json(tmp_path / "other.json", config)
    line = refused(verb, "--config", tmp_path / "other.json")
    assert f"expected the config.json of a run of probe {verb}, found {found}" in line


def test_a_header_that_differs_is_named_by_its_leaf(small: str, tmp_path: Path, probe, refused: Refused) -> None:
    arguments = ["pool", "generate", "--model", small, "--name", "x", "--steps", "1", "--group", "2"]
    arguments += ["--max-new-tokens", "8"]
    probe(*arguments, root=tmp_path)
    line = refused(*arguments, "--hint", root=tmp_path)
    assert "manifest.json plan.hint: expected True, found False; choose" in line


def test_a_log_is_no_pool_before_its_import(tmp_path: Path, refused: Refused) -> None:
    """Every verb that takes a pool says which command makes one, of a folder and of a file."""
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "step_000.jsonl"
    log.write_text("{}")
    for place in (log.parent, log):
        advice = f"to make one of logged rollouts: probe pool import {place} --name NAME --model MODEL"
        for words in (
            ["pool", "show", place],
            ["pool", "verify", place],
            ["pool", "regrade", place, "--name", "x"],
            ["replay", "--replay-dirs", place],
        ):
            assert advice in refused(*words, root=tmp_path)
