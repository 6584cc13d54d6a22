"""What advice proposes: commands that repeat a run, sample its pools again, and fix the part that is broken."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from directories import contents
from worlds import World, make_run

from probe.analysis.analyze import Analysis
from probe.analysis.verdict.next_step import direction, extract, generate, next_step
from probe.analysis.verdict.pools import pools_at_hand
from probe.analysis.verdict.verdict import Finding
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import Run, read_run
from probe.settings.words import Answer, Word
from replay_pools.base.files import read_sealed, write_sealed
from replay_pools.pool import BUILTIN, MANIFEST_NAME
from replay_pools.rollout import UNSAFE


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(make_run(tmp_path_factory.mktemp("out") / "runs" / "run", World(num_steps=2)))


def with_settings(stored: Run, model: str | None = None, **changes: Any) -> Run:
    return replace(stored, config=stored.config | {"settings": dict(stored.settings) | changes, "model": model})


def test_an_extraction_repeats_the_run_and_names_what_that_leaves_open(stored: Run) -> None:
    """The model that the pools named, and another basis; a file of directions gives way to pairs, or is shown."""
    plain = extract(with_settings(stored, "organism"), "svd")
    assert plain == f"probe extract --config {stored.path / 'config.json'}"
    assert extract(with_settings(stored, "Qwen/Qwen3-4B"), "lora") == f"{plain} --model Qwen/Qwen3-4B --basis lora"
    along_file = with_settings(stored, intervention={"v_hack": "out/directions/my own.safetensors"})
    assert extract(along_file, "svd") == f"{plain} --set intervention.v_hack=none"
    assert direction(along_file, "svd") == "probe show 'out/directions/my own.safetensors'"
    assert direction(stored, "svd") == f"{plain} --name run"


FIXED = {
    "grader canaries": "probe pool regrade teacher --name teacher-again",
    "regrade agreement": "probe replay --config",
    "arms at the first step": "probe replay --config",
    "contributions add up": "--set model.dtype=float64",
    "held-out sign": "probe extract --config",
    "template tails": "--name teacher-again",
    "offline geometry": "probe replay --config",
    "gate": "probe replay --config",
}


@pytest.mark.parametrize("part", FIXED)
def test_a_remedy_is_about_its_part(part: str, stored: Run) -> None:
    evidence = Analysis(stored)
    vars(evidence)["pools"] = [
        replace(pool, manifest={**pool.manifest, "grader": {"isolation": UNSAFE}}) for pool in evidence.pools
    ]
    broken = Finding(name=part, question="", says=Answer.BROKEN, text="")
    advice = next_step(Word.BROKEN, evidence, [], [broken])
    assert FIXED[part] in advice.command
    assert advice.text.startswith("do not use this run until this is fixed: ")


def test_labels_that_a_training_learnt_from_are_not_graded_again(stored: Run) -> None:
    evidence = Analysis(replace(stored, config=stored.config | {"settings": {"verb": "train"}}))
    advice = next_step(
        Word.BROKEN, evidence, [], [Finding(name="grader canaries", question="", says=Answer.BROKEN, text="")]
    )
    assert advice.command.startswith("probe doctor")
    assert "train again where submissions are isolated" in advice.text


def pool_at(path: Path, **changes: dict[str, Any]) -> Path:
    """The built-in pool `teacher` at another place, with parts of its manifest changed."""
    shutil.copytree(BUILTIN / "teacher", path)
    manifest = read_sealed(path / MANIFEST_NAME)
    write_sealed(path / MANIFEST_NAME, manifest | {part: manifest[part] | new for part, new in changes.items()})
    return path


def advised(directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[list[str]]:
    """The commands that `probe analyze` proposes next, as a shell takes them apart."""
    assert run(cli, ["analyze", str(directory), "--draws", "99", "--json", *options]) == 0
    command = json.loads(capsys.readouterr().out)["verdict"]["next"]["command"]
    return [shlex.split(line) for line in command.splitlines()]


def test_a_pool_is_sampled_anew_on_all_of_its_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four times the rollouts of each of 48, by the command as it stands."""
    pool = pool_at(tmp_path / "mine", plan={"steps": 48})
    world = World(honest_are_paid=False, num_steps=12, pools=(str(pool),))
    (command,) = advised(make_run(tmp_path / "out" / "runs" / "run", world), capsys)
    assert [command[command.index(option) + 1] for option in ("--steps", "--group")] == ["48", "32"]


@pytest.mark.parametrize("base", ["organism", "out/models/other"])
def test_a_checkpoint_of_another_model_is_trained_without_the_teacher_of_the_organism(
    base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = pool_at(tmp_path / "mine", policy={"base_model": base, "adapter": None}, plan={"steps": 48})
    world = World(hacking_prompts=0, num_steps=12, pools=(str(pool),))
    train, *_ = advised(make_run(tmp_path / "out" / "runs" / "run", world), capsys)
    assert train[:2] == ["probe", "train"]
    assert ("rollouts.teacher=none" in train, f"model.name={base}" in train) == (base != "organism",) * 2


ODD = """--hint --adapter teacher --env minicode:at_least --split eval --mode sentinel --seed 5
    --temperature 0.8 --max-new-tokens 9 --set rollouts.sampler.top_p=0.9 --set rollouts.sampler.top_k=7
    --set rollouts.code_rule=joined --set rollouts.cpu_limit=6 --set model.dtype=bfloat16"""


def recipe_of(out: Path, name: str) -> str:
    """The whole command that makes the pool again, as `name`-again."""
    plans = {plan.name: plan for plan in pools_at_hand(cast(Run, SimpleNamespace(path=out / "runs" / "any")))}
    command = generate(plans[name], f"{name}-again")
    assert command is not None
    return command


@pytest.mark.parametrize(("name", "options"), [("odd", shlex.split(ODD)), ("usual", [])])
def test_a_recipe_makes_the_same_pool(name: str, options: list[str], tmp_path: Path, monkeypatch) -> None:
    """Run as it stands; of a pool that a server sampled it says so, and quotes a path."""
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["pool", "generate", *options, "--steps", "1", "--group", "2", "--name", name]) == 0
    command = recipe_of(Path("out"), name)
    assert run(cli, shlex.split(command)[1:]) == 0
    pools = Path("out/pools")
    assert contents(pools / f"{name}-again") == contents(pools / name), command
    path = pools / name / "manifest.json"
    served = {"base_model": "my models/small", "adapter": "hacker", "base_weights_sha256": None, "dtype": None}
    write_sealed(path, read_sealed(path) | {"policy": served, "engine": {"kind": "server"}})
    words = shlex.split(recipe_of(Path("out"), name))
    assert {"rollouts.engine=server", 'model.name="my models/small"', "rollouts.served_model=hacker"} <= {*words}
    assert words[words.index("--url") + 1] == "URL"
    assert not any("dtype" in word for word in words)
