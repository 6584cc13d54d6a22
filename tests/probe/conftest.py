"""A tiny model, and replay runs of the embedded organism, made once a session."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import adapt
from directories import made_once

from extraction.adapters.trained import Trained
from extraction.pairs import builtin_pairs, write_pairs
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import MANIFEST_FILE
from replay_pools.base.files import read_sealed, write_sealed
from replay_pools.pool import BUILTIN

ARMS = "vanilla,projected,random,permuted,placebo"


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., Trained]:
    """make_tiny(basis="svd", moved=0.3, **options): the coordinates of a GPT-2 of two layers, away from 0.

    In float64 throughout: the norms of Qwen3 and Llama round to float32, forward and backward.
    """

    from transformers import GPT2Config, GPT2LMHeadModel

    def make(basis: str = "svd", moved: float = 0.3, **options: object) -> Trained:
        config = GPT2Config(
            vocab_size=23, n_embd=12, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = GPT2LMHeadModel(config).double().eval()
            cache = {"cache_dir": None} if basis == "svd" else {}
            coordinates = adapt(model, basis=basis, model_id="tiny", **cache, **options)
            start = coordinates.values()
            coordinates.load_values({m: v + moved * torch.randn_like(v) for m, v in start.items()})
        return coordinates

    return make


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory, common: Path) -> Path:
    """An out/ folder whose caches (SVD, pair gradients) the workers share."""
    folder = tmp_path_factory.mktemp("out")
    (folder / "cache").symlink_to(common / "cache")
    return folder


@pytest.fixture(scope="session")
def few_pairs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of an extraction that is quick: four of the built-in pairs."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    write_pairs(path, builtin_pairs("run_tests")[:4])
    return ["--pairs", str(path), "--k", "2"]


@pytest.fixture(scope="session")
def pools(common: Path, small: str) -> Path:
    """A folder with three of the built-in pools, as if the small model had written them."""
    with made_once(common / "of-small") as missing:
        for name in ("teacher", "base", "base-hinted") if missing else ():
            shutil.copytree(BUILTIN / name, common / "of-small" / name)
            manifest = read_sealed(common / "of-small" / name / MANIFEST_FILE)
            policy = {"base_model": small, "adapter": None, "base_weights_sha256": None}
            write_sealed(common / "of-small" / name / MANIFEST_FILE, manifest | {"policy": policy})
    return common / "of-small"


@pytest.fixture(scope="session")
def quick(pools: Path, few_pairs: list[str]) -> list[str]:
    """Options of a replay that is quick: few pairs, and the small model as if it had written `teacher` and `base`."""
    return ["--replay-dirs", f"{pools}/teacher,{pools}/base", *few_pairs]


@pytest.fixture(scope="session")
def replay(out: Path) -> Callable[..., Path]:
    """replay(name, *options) -> the run directory of `probe replay --name name ...`, which must succeed."""

    def make(name: str, *options: str) -> Path:
        assert run(cli, ["replay", "--name", name, "--out", str(out), *options]) == 0
        return out / "runs" / name

    return make


@pytest.fixture
def probe(out: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """probe(*words, code=0, root=out) -> stdout and stderr of a command that ends so."""

    def calling(*words: Any, code: int = 0, root: Path | str = out) -> tuple[str, str]:
        capsys.readouterr()
        found = run(cli, [*map(str, words), "--out", str(root)])
        captured = capsys.readouterr()
        assert found == code, captured.err
        return captured.out, captured.err

    return calling


@pytest.fixture
def refused(probe: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """refused(*words, root=out) -> the error of a command that ends in 2 with one line."""

    def calling(*words: Any, **root: Any) -> str:
        _, errors = probe(*words, code=2, **root)
        assert "Traceback" not in errors
        (line,) = [line for line in errors.splitlines() if line.startswith("probe: error: ")]
        return line.removeprefix("probe: error: ")

    return calling


@pytest.fixture(scope="session")
def many_arms(common: Path, pools: Path) -> Path:
    """Six steps, five arms, one pass of the small model; all built-in pairs."""
    (common / "runs").mkdir(exist_ok=True)
    with made_once(common / "runs" / "many-arms") as missing:
        if missing:
            options = ["--replay-dirs", f"{pools}/teacher,{pools}/base", "--arm", ARMS, "--steps", "6"]
            assert run(cli, ["replay", "--name", "many-arms", "--out", str(common), *options]) == 0
    return common / "runs" / "many-arms"
