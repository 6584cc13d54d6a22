"""Replay runs of the embedded organism, made once a session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from extraction.pairs import builtin_pairs, write_pairs
from probe.cli import cli
from probe.cli._frame import run

ARMS = "vanilla,projected,random,permuted,placebo"


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An out/ folder whose caches (SVD, pair gradients) the session shares."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="session")
def few_pairs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of an extraction that is quick: four of the built-in pairs."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_pairs(path, builtin_pairs("run_tests")[:4])
    return ["--pairs", str(path), "--k", "2"]


@pytest.fixture(scope="session")
def replay(out: Path) -> Callable[..., Path]:
    """replay(name, *options) -> the run directory of `probe replay --name name ...`, which must succeed."""

    def make(name: str, *options: str) -> Path:
        assert run(cli, ["replay", "--name", name, "--out", str(out), *options]) == 0
        return out / "runs" / name

    return make


@pytest.fixture(scope="session")
def many_arms(replay: Callable[..., Path]) -> Path:
    """Six steps, five arms, one pass."""
    return replay("many-arms", "--arm", ARMS, "--steps", "6")
