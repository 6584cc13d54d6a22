"""Sweeps: every run of a spec, resumed, never dropped; and where the commands run."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from directories import contents
from in_process import Ended, InProcess, Scripted
from specs import ALIGNED, LOWERS, replay_spec, spec_text

from probe.cli import cli
from probe.cli._frame import run
from probe.cli._settings import configured
from probe.cli.replay import replay
from probe.experiments.jobs import COMMAND, command_of, input_faults, run_jobs
from probe.experiments.spec import Spec
from probe.experiments.spec_file import load_spec
from probe.experiments.sweep import Command, ended, executor, has_failed, sweep, visible_gpus
from probe.settings.loss import LossSettings
from probe.settings.presets import configure
from probe.settings.verbs import read_config
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_json, write_sealed
from replay_pools.base.tables import flat

CONDITIONS = {"plain": {}, "narrow": {"intervention.extraction.k": 2}}


def tiny_text(settings: Mapping[str, Any], **parts: Any) -> str:
    """A spec of two conditions, two arms, one step."""
    usual = {"arms": ["vanilla", "random"], "conditions": CONDITIONS}
    return replay_spec("tiny", {"steps": 1, "source.per_pool": 2, **settings}, **usual | parts)


@pytest.fixture
def tiny(tmp_path: Path, quick: list[str]) -> Callable[..., Spec]:
    """tiny(seed, ..., pools, threshold, **parts) -> that spec, of the small model unless there are other pools."""
    extraction = {"intervention.extraction.pairs": quick[3], "intervention.extraction.k": 1}

    def make(*seeds: int, pools: Sequence[str] = (), threshold: float = 0.0, **parts: Any) -> Spec:
        path = tmp_path / "tiny.toml"
        settings = {"source.replay_dirs": pools} if pools else {"source.replay_dirs": quick[1].split(","), **extraction}
        criterion = {**ALIGNED, "above": threshold}
        path.write_text(tiny_text(settings, seeds=seeds or (0, 1), criteria=[criterion], **parts))
        return load_spec(path)

    return make


def scripted(spec: Spec, out: Path, **codes: int) -> Scripted:
    """An engine whose commands end as told, by run name; a success leaves a finished run behind."""

    def act(name: str) -> int:
        code = codes.get(name.replace("-", "_"), 0)
        if code == 0:
            directory = out / "runs" / name
            write_json(directory / "config.json", {"settings": {"verb": "replay", "preregistered": spec.mark}})
            (directory / "steps.jsonl").write_bytes(b"")
            write_sealed(directory / "manifest.json", {})
        return code

    return Scripted(act)


def test_a_sweep_runs_everything_once_and_resumes(tiny: Callable[..., Spec], out: Path) -> None:
    """Real replays: one pass a condition serves all arms, seed by seed, and what is done is not done again."""
    spec = tiny(7)
    first, second = InProcess(), InProcess()
    table = sweep(spec, out, engine=first)
    assert [row["status"] for row in table["rows"]] == ["done"] * 2
    assert [args[args.index("--name") + 1] for args in first.launched] == ["tiny-plain-seed7", "tiny-narrow-seed7"]
    runs = run_jobs(spec, out)
    assert all(one.complete and one.made_under == spec.mark for one in runs)
    settings = read_json(runs[1].directory / "config.json")["settings"]
    assert settings["preregistered"] == spec.mark
    assert read_config(settings, "config.json") == runs[1].config
    assert not has_failed(sweep(spec, out, engine=second))
    assert second.launched == []


def test_runs_under_an_edited_spec_are_not_mixed_with_new_ones(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """After an edit the sweep refuses, and names the run."""
    spec = tiny(0)
    sweep(spec, tmp_path, engine=scripted(spec, tmp_path))
    edited = tiny(0, threshold=0.01)
    assert [one.made_under for one in run_jobs(edited, tmp_path)] == [spec.mark] * 2 != [edited.mark] * 2
    with pytest.raises(InputError, match="tiny-plain-seed0"):
        sweep(edited, tmp_path, engine=scripted(edited, tmp_path))


def test_a_job_that_fails_is_reported_and_the_others_go_on(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """With its last words and its log; the next sweep tries it again, and it alone."""
    spec = tiny()
    table = sweep(spec, tmp_path, engine=scripted(spec, tmp_path, tiny_narrow_seed0=2), num_jobs=2)
    found = {row["name"]: (row["status"], row["error"]) for row in table["rows"]}
    assert found.pop("tiny-narrow-seed0") == ("failed", "ended with 2")
    assert {*found.values()} == {("done", "")}
    (kept,) = [row for row in read_json(tmp_path / "sweeps/tiny/state.json")["rows"] if row["status"] == "failed"]
    assert (kept["name"], kept["log"]) == ("tiny-narrow-seed0", "the log")
    again = scripted(spec, tmp_path)
    assert not has_failed(sweep(spec, tmp_path, engine=again))
    assert again.launched == ["tiny-narrow-seed0"]


def test_an_interrupt_cancels_what_runs(tiny: Callable[..., Spec], tmp_path: Path, monkeypatch) -> None:
    """And starts no other; `num_jobs` run side by side, and no more."""
    spec = tiny()
    engine = scripted(spec, tmp_path)

    def show(row: dict[str, str]) -> None:
        if len(engine.jobs) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Ended, "done", lambda _: False)
    with pytest.raises(KeyboardInterrupt):
        sweep(spec, tmp_path, engine=engine, num_jobs=2, show=show)
    assert [job.cancelled for job in engine.jobs] == [True, True]


@pytest.mark.slow
def test_a_job_of_this_machine_leaves_the_bytes_of_a_run_by_hand(tiny, out: Path, tmp_path: Path) -> None:
    """Through submitit's local executor, in a process of its own."""
    (tmp_path / "cache").symlink_to(out / "cache")
    spec = tiny(5, conditions={"plain": {}})
    table = sweep(spec, tmp_path, engine=executor("local", tmp_path / "logs", {}, 2), num_jobs=2)
    assert [(row["status"], row["error"]) for row in table["rows"]] == [("done", "")]
    (one,) = run_jobs(spec, tmp_path)
    args = command_of(one, COMMAND, ())
    args[args.index("--name") + 1] = "by-hand"
    assert run(cli, args) == 0
    assert contents(one.directory) == contents(tmp_path / "runs" / "by-hand")


@pytest.mark.slow
def test_how_jobs_of_submitit_end(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """One is refused its input, one is killed: both failed, with a reason and a log."""
    (job, *_) = run_jobs(tiny(), tmp_path)
    engine = executor("local", tmp_path / "logs", {}, 2)
    refused = engine.submit(Command(), [sys.executable, "-m", "probe", "replay", "--nonsense"])
    killed = engine.submit(_die)
    rows = []
    for submitted in (refused, killed):
        submitted.wait()
        rows.append(ended(job, submitted))
    assert [row["status"] for row in rows] == ["failed", "failed"]
    assert "--nonsense" in rows[0]["error"]
    assert rows[1]["error"]
    assert "--nonsense" in Path(rows[0]["log"]).read_text()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_conditions_of_the_loss_share_a_pass(tmp_path: Path) -> None:
    """Conditions that differ in settings of the loss alone are one run; the spec's settings go to each of them."""
    conditions = {"plain": {}, "narrow": {"objective.advantage_clip": 2.0, "objective.gtpo_beta": 0.1}}
    (tmp_path / "tiny.toml").write_text(tiny_text({"objective.scale_rewards": "group"}, conditions=conditions))
    spec = load_spec(tmp_path / "tiny.toml")
    (job,) = run_jobs(spec, tmp_path)
    assert (job.name, job.conditions) == ("tiny-seed0", ("plain", "narrow"))
    assert [(one.name, dict(one.changes)) for one in job.config.conditions] == [
        ("plain", {"scale_rewards": "group"}),
        ("narrow", {"scale_rewards": "group", "advantage_clip": 2.0, "gtpo_beta": 0.1}),
    ]
    assert job.config.objective == LossSettings(), "what a condition says is no setting of the whole run"


TRAINED = spec_text(
    "trained",
    {"verb": "train", "preset": "smoke", "steps": 2, "rollouts.group": 4, "objective.reference": "base"},
    arms=["vanilla", "projected"],
    seeds=[0, 1],
    conditions={"plain": {}, "pulled": {"arms": ["vanilla"], "objective.beta": 0.05, "rollouts.group": 6}},
    criteria=[{**LOWERS, "name": "main"}],
)


def test_a_training_spec_is_one_command_a_run(tmp_path: Path) -> None:
    """Conditions lay their tables over the spec's, and those over the preset's."""
    (tmp_path / "trained.toml").write_text(TRAINED)
    spec = load_spec(tmp_path / "trained.toml")
    jobs = run_jobs(spec, tmp_path)[3:]
    assert [job.name for job in jobs] == [
        "trained-plain-vanilla-seed1",
        "trained-plain-projected-seed1",
        "trained-pulled-vanilla-seed1",
    ], "a condition with arms of its own has no other runs"
    pulled = jobs[2]
    found = flat(asdict(pulled.config))
    assert (found["rollouts.group"], found["objective.beta"], found["objective.reference"]) == (6, 0.05, "base")
    assert (found["seed"], found["steps"], found["intervention.arms"]) == (1, 2, ("vanilla",))
    usual = flat(asdict(configure("train", preset="smoke")))
    assert found["rollouts.sampler.max_new_tokens"] == usual["rollouts.sampler.max_new_tokens"]
    assert pulled.config.preregistered == spec.mark
    assert command_of(pulled, COMMAND, ())[0] == "train"


def test_pools_that_nobody_makes_stop_a_sweep_before_its_first_run(tmp_path: Path, tiny, probe) -> None:
    """A name and a path; `probe spec plan` has them among its notes, and a pool of [[pools]] is none of them."""
    spec, out = tiny(pools=["tacher", "./gone", "base"]), tmp_path / "out"
    _, errors = probe("spec", "sweep", spec.path, code=2, root=out)
    assert "tiny.toml pool tacher: expected a directory in" in errors
    assert not (out / "sweeps").exists()
    assert "tiny.toml gone: expected a pool" in probe("spec", "plan", spec.path, root=out)[0]
    long = tiny(pools=["teacher", "base"]).path
    long.write_text(long.read_text().replace("steps = 1", "steps = 999"))
    assert re.search(r"conditions\.plain: .*999 steps", probe("spec", "sweep", long, code=2, root=out)[1])
    made = tiny(pools=["tacher", "base"]).path
    made.write_text(made.read_text().replace("[settings]", '[[pools]]\nname = "tacher"\n[settings]'))
    assert input_faults(load_spec(made), out) == []


@pytest.fixture
def print_jobs(probe) -> Callable[..., list[str]]:
    """print_jobs(spec, out, *options) -> the lines of --print-jobs, or the error."""

    def make(spec: Spec, out: Path, *options: str, code: int = 0) -> list[str]:
        said = probe("spec", "sweep", spec.path, "--print-jobs", *options, code=code, root=out)
        return said[bool(code)].splitlines()

    return make


def test_jobs_of_this_machine_share_out_its_gpus(tiny: Callable[..., Spec], tmp_path: Path, monkeypatch) -> None:
    """Each its own; more jobs than GPUs share them; without any, a job sees what its cluster gives it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5,6,7")
    spec, gpus = tiny(), visible_gpus()
    for number, (num_jobs, given, expected) in enumerate(
        [(2, gpus, {"4,6", "GPU-5,7"}), (1, gpus, {"4,GPU-5,6,7"}), (3, gpus[:1], {"4"}), (2, [], {None})]
    ):
        engine = scripted(spec, tmp_path / str(number))
        sweep(spec, tmp_path / str(number), engine=engine, num_jobs=num_jobs, gpus=given)
        assert set(engine.gpus) == expected


def test_runs_are_started_by_a_template(tiny: Callable[..., Spec], tmp_path: Path, print_jobs) -> None:
    """What stands around {command} goes to runs; a pool is sampled by one process."""
    spec = tiny(6)
    made = '[[pools]]\nname = "made"\nsettings.steps = 1\n[settings]'
    spec.path.write_text(spec.path.read_text().replace("[settings]", made, 1))
    template = "env 'A=1 2' torchrun --no-python {command} --url http://h:1"
    pool, first, *_ = print_jobs(spec, tmp_path, "--launch", template)
    assert pool.startswith("probe pool generate --config ")
    assert first.startswith("env 'A=1 2' torchrun --no-python probe replay --config ")
    assert first.endswith(" --url http://h:1")
    for wrong in ("torchrun", "torchrun {command} {command}", "'{command}", "x{command}"):
        (error,) = print_jobs(spec, tmp_path, "--launch", wrong, code=2)
        assert "--launch: expected a command line with the word {command}" in error


def test_settings_of_a_printed_job_stand_alone(tiny: Callable[..., Spec], tmp_path: Path, print_jobs, probe) -> None:
    """One line a run, in order, of which --dry-run is content; flags change it, and then it is not of the spec."""
    spec, out = tiny(0), tmp_path / "out"
    lines = print_jobs(spec, out)
    file = out / "sweeps" / "tiny" / "settings" / spec.sha256[:12] / "tiny-narrow-seed0.json"
    assert lines[1] == f"probe replay --config {file} --name tiny-narrow-seed0 --out {out}"
    arguments = shlex.split(lines[1])[1:-2]
    probe(*arguments, "--dry-run", root=out)
    assert "--preset" in probe(*arguments, "--preset", "full", code=2, root=out)[1]
    settings = read_json(file)["settings"]
    context = replay.make_context("replay", [*arguments[1:], "--out", str(out), "--k", "3", "--set", "seed=7"])
    config = json.loads(json.dumps(asdict(configured("replay", context.params, out))))
    changed = {key: value for key, value in flat(config).items() if value != flat(settings).get(key)}
    assert changed == {"seed": 7, "intervention.extraction.k": 3, "preregistered": None}
    assert not (out / "runs").exists()
