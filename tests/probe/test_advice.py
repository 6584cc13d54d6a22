"""What advice proposes: commands that repeat the settings of the run, and that mend the part which is broken."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from worlds import World, make_run

from probe.analysis.verdict.commands import extract, generate, replay, replay_again
from probe.analysis.verdict.evidence import Evidence, PoolFacts, PoolPlan
from probe.analysis.verdict.mending import _MENDS, mend
from probe.analysis.verdict.run_options import RunOptions, run_options
from probe.analysis.verdict.validity import validity
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import MANIFEST_FILE, read_run
from probe.settings.presets import configure
from replay_pools.grading.tiers import UNSAFE
from replay_pools.pool import BUILTIN, MANIFEST_NAME, resolve_pool
from replay_pools.storage.files import read_json, sha256, write_json

PLAN = PoolPlan(name="mine", reference="mine", hint=True, policy="m", problems="p", steps=20, group=8, recipe="--hint")


def evidence(**changes: Any) -> Evidence:
    """Of a run without records, which commands do not read."""
    facts = PoolFacts(
        name="mine", grader="3", isolation="A", prompt_tail="x", plan=PLAN, regrade=None, regrade_command=None
    )
    values = {"steps": [], "samples": [], "measured": None, "summaries": {}, "buckets": [], "contrasts": []}
    return Evidence(**cast(Any, values | {"specificity": None, "pools": [facts]} | changes))


def options(settings: dict[str, Any], tmp_path: Path, model: str = "organism") -> RunOptions:
    directory = make_run(tmp_path / "out" / "runs" / "run", World(num_steps=2))
    stored = read_run(directory)
    config = stored.config | {"settings": {"verb": "replay"} | settings, "model": model}
    return run_options(replace(stored, config=config))


def test_a_run_of_defaults_needs_no_options(tmp_path: Path) -> None:
    from dataclasses import asdict

    plain = options(json.loads(json.dumps(asdict(configure("replay")))), tmp_path)
    assert (plain.replay, plain.extract) == ({}, {})


def test_commands_repeat_what_the_run_was_told(tmp_path: Path) -> None:
    """Model, pairs, k and any other setting; a direction file instead of its pairs, by name where OUT has it."""
    settings: dict[str, Any] = {
        "model": {"name": "Qwen/Qwen3-4B", "dtype": "bfloat16"},
        "objective": {"scale_rewards": "group", "loss_type": "dapo"},
        "intervention": {"extraction": {"pairs": "my pairs.jsonl", "k": 8}, "v_hack": None},
        "conditions": [{"name": "capped", "changes": {"advantage_clip": 2.0}}],
        "seed": 7,
        "steps": 3,
    }
    asked = evidence(options=options(settings, tmp_path / "a", model="Qwen/Qwen3-4B"), match="prompt")
    command = replay(["one", "two"], asked)
    for part in (
        "--replay-dirs one,two --match prompt",
        "--model Qwen/Qwen3-4B",
        "--set model.dtype=bfloat16",
        "--set objective.scale_rewards=group",
        "--pairs 'my pairs.jsonl'",
        "--k 8",
        "--condition capped:advantage_clip=2.0",
    ):
        assert part in command
    assert "seed" not in command
    assert "--steps" not in command
    assert "objective." not in replay_again(asked, without="objective.")
    extraction = extract(asked)
    for part in ("--model Qwen/Qwen3-4B", "--set model.dtype=bfloat16", "--set objective.loss_type=dapo", "--k 8"):
        assert part in extraction
    assert "my pairs" not in extraction
    assert "scale_rewards" not in extraction
    file = str(tmp_path / "b" / "out" / "directions" / "mine.safetensors")
    settings["intervention"] |= {"v_hack": file}
    named = replay_again(evidence(options=options(settings, tmp_path / "b")))
    assert "--v-hack mine " in named
    assert "--pairs" not in named


@pytest.mark.parametrize("adapter", ["2024-teacher", "my adapters/one", "a=b"])
def test_texts_that_are_no_word_are_quoted(tmp_path: Path, adapter: str) -> None:
    """What is printed is a command: the shell and `--set` read the text back."""
    words = shlex.split(options({"model": {"adapter": adapter}}, tmp_path).replay["model.adapter"])
    assert words[0] == "--set"
    assert configure("replay", settings=words[1:]).model.adapter == adapter


def test_the_default_size_is_the_presets() -> None:
    usual = configure("generate")
    assert usual.rollouts is not None
    assert usual.steps is not None
    group, steps = usual.rollouts.group, usual.steps
    assert generate(replace(PLAN, group=group, steps=steps), "more") == "probe pool generate --hint --name more"
    larger = replace(PLAN, group=group + 1, steps=steps + 1)
    assert f"--steps {steps + 1} --group {group + 1} " in generate(larger, "more")
    assert generate(larger, "more", "--group 32").count("--group") == 1
    assert generate(larger, "more", "--steps 32").count("--steps") == 1


def test_every_part_has_a_remedy() -> None:
    """But for the number of prompts, which is never broken."""
    assert {part.name for part in validity(evidence())} - set(_MENDS) == {"prompts"}


MENDED = {
    "grader canaries": "probe pool regrade mine --name mine-again",
    "arms at the first step": "probe replay --replay-dirs mine",
    "contributions add up": "--set model.dtype=float64",
    "held-out sign": "probe extract",
    "template tails": "probe pool generate --hint --name mine-again",
    "offline geometry": "probe replay --replay-dirs mine",
    "gate": "probe replay --replay-dirs mine",
}


@pytest.mark.parametrize("part", MENDED)
def test_a_remedy_is_about_its_part(part: str) -> None:
    asked = evidence()
    asked = replace(asked, pools=[replace(asked.pools[0], isolation=UNSAFE)])
    commands, text = mend(part, asked)
    assert MENDED[part] in "\n".join(commands)
    assert text


def test_labels_that_a_training_learnt_from_are_not_graded_again() -> None:
    asked = evidence(trains=True)
    asked = replace(asked, pools=[replace(asked.pools[0], isolation=UNSAFE)])
    commands, text = mend("grader canaries", asked)
    assert commands == ["probe doctor"]
    assert text.startswith("train again where submissions are isolated")


def test_a_broken_run_says_what_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inner products of other pairs: the replay again, with the run's own settings, not a check of the machine."""
    directory = make_run(tmp_path / "out" / "runs" / "run", World(other_pairs=True, num_steps=12))
    assert run(cli, ["analyze", str(directory), "--draws", "99"]) == 0
    text = capsys.readouterr().out
    assert "VERDICT: BROKEN" in text
    assert "probe replay --replay-dirs teacher,base-hinted --arm vanilla,projected --name again" in text
    assert "probe doctor" not in text


@pytest.mark.parametrize(("out", "option"), [("other", " --out other"), ("out", "")])
def test_advice_stays_in_the_root_folder_of_the_run(
    out: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command reads and writes where the run lies."""
    make_run(tmp_path / out / "runs" / "run", World(other_pairs=True, num_steps=12))
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["analyze", "run", "--draws", "99", "--json", "--out", out]) == 0
    command = json.loads(capsys.readouterr().out)["decision"]["next"]["command"]
    assert command == f"probe replay --replay-dirs teacher,base-hinted --arm vanilla,projected --name again{option}"


def pool_at(path: Path, **changes: dict[str, Any]) -> Path:
    """The built-in pool `teacher` at another place, with parts of its manifest changed."""
    shutil.copytree(BUILTIN / "teacher", path)
    manifest = read_json(path / MANIFEST_NAME)
    write_json(path / MANIFEST_NAME, manifest | {part: manifest[part] | new for part, new in changes.items()})
    return path


def advised(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The commands that `probe analyze` proposes next, as a shell takes them apart."""
    assert run(cli, ["analyze", str(directory), "--draws", "99", "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["decision"]["next"]["command"]
    return [shlex.split(line) for line in command.splitlines()]


def test_a_replay_finds_the_pools_that_the_run_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere, beside another pool of the same name, and in OUT, where the name alone finds it."""
    out = tmp_path / "out"
    pools = [pool_at(tmp_path / "my pools" / "mine"), pool_at(tmp_path / "theirs"), pool_at(out / "pools" / "known")]
    pool_at(out / "pools" / "theirs")
    directory = make_run(
        out / "runs" / "run", World(other_pairs=True, num_steps=12, pools=tuple(str(pool) for pool in pools))
    )
    ((*_, verb, option, value, _arm, _arms, _name, _new, _out, _path),) = advised(directory, capsys)
    assert (verb, option) == ("replay", "--replay-dirs")
    assert [resolve_pool(name, out) for name in value.split(",")] == pools
    assert value.endswith(",known")


def test_the_rollouts_of_a_training_are_graded_again_where_they_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new pool has a plain name, by which the replay finds it."""
    out = tmp_path / "out"
    directory = make_run(out / "runs" / "run", World(num_steps=4))
    own = pool_at(directory / "rollouts", grader={"isolation": UNSAFE})
    manifest = read_json(directory / MANIFEST_FILE)
    manifest["files"][f"rollouts/{MANIFEST_NAME}"] = sha256((own / MANIFEST_NAME).read_bytes())
    write_json(directory / MANIFEST_FILE, manifest)
    _doctor, regrade, again = advised(directory, capsys)
    assert regrade[:3] == ["probe", "pool", "regrade"]
    assert resolve_pool(regrade[3], out) == own
    assert regrade[4:6] == ["--name", "rollouts-again"]
    assert again[:4] == ["probe", "replay", "--replay-dirs", "rollouts-again,teacher,base-hinted"]


def test_a_pool_that_was_moved_goes_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A built-in pool of another installation is that of this one."""
    old = pool_at(tmp_path / "old" / "teacher")
    world = World(other_pairs=True, num_steps=12, pools=(str(old),))
    directory = make_run(tmp_path / "out" / "runs" / "run", world)
    shutil.rmtree(old)
    ((_, _, option, value, *_),) = advised(directory, capsys)
    assert (option, value) == ("--replay-dirs", "teacher")


def test_a_pool_is_sampled_anew_on_all_of_its_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four times the rollouts of each of 48, by the command as it stands."""
    pool = pool_at(tmp_path / "mine", plan={"steps": 48})
    world = World(told_by="length", num_steps=12, pools=(str(pool),))
    (command,) = advised(make_run(tmp_path / "out" / "runs" / "run", world), capsys)
    assert run(cli, [*command[1:], "--dry-run", "--json"]) == 0
    work = json.loads(capsys.readouterr().out)["work"]
    assert (work["steps"], work["rollouts"]) == (48, 48 * 32)
