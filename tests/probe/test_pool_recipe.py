"""The options that an advice gives to sample a pool again: run as they stand, they make the same pool."""

import shlex
from pathlib import Path
from types import SimpleNamespace

from directories import contents

from probe.analysis.verdict.commands import generate
from probe.analysis.verdict.provenance import pools_at_hand
from probe.cli import cli
from probe.cli._frame import run
from replay_pools.storage.files import read_json, write_json

SIZE = ["--steps", "1", "--group", "2"]
ODD = """--hint --twice --adapter teacher --env minicode:at_least --split eval --mode sentinel --seed 5
    --temperature 0.8 --max-new-tokens 9 --set rollouts.sampler.top_p=0.9 --set rollouts.sampler.top_k=7
    --set rollouts.code_rule=last --set rollouts.cpu_limit=6 --set model.dtype=bfloat16"""


def recipe_of(out: Path, name: str) -> str:
    """The whole command that makes the pool again, as `name`-again."""
    plans = {plan.name: plan for plan in pools_at_hand(SimpleNamespace(path=out / "runs" / "any"))}
    return generate(plans[name], f"{name}-again", " ".join(SIZE))


def test_a_recipe_makes_the_same_pool(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, options in (("odd", shlex.split(ODD)), ("usual", [])):
        assert run(cli, ["pool", "generate", *options, *SIZE, "--name", name]) == 0
        command = recipe_of(Path("out"), name)
        assert run(cli, shlex.split(command)[1:]) == 0
        pools = Path("out/pools")
        assert contents(pools / f"{name}-again") == contents(pools / name), command


def test_a_server_is_named_and_a_path_is_quoted(tmp_path: Path, monkeypatch) -> None:
    """A pool says neither where its server was nor in what precision it sampled."""
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["pool", "generate", *SIZE, "--max-new-tokens", "9", "--name", "mine"]) == 0
    path = Path("out/pools/mine/manifest.json")
    served = {"base_model": "my models/small", "adapter": "hacker", "base_weights_sha256": None, "dtype": None}
    write_json(path, read_json(path) | {"policy": served, "engine": {"kind": "server"}})
    command = recipe_of(Path("out"), "mine")
    words = ["--engine server --url URL", "--model 'my models/small'", "--served-model hacker"]
    assert all(word in command for word in words), command
    assert "dtype" not in command
