"""Sweeps: every run of a spec, in blocks, resumed, retried, never dropped; and where the commands run."""

import gzip
import json
import os
import re
import shlex
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from in_process import InProcess

from probe.cli import cli
from probe.cli._frame import run
from probe.cli._settings import run_config
from probe.cli.replay import replay
from probe.experiments.planning.checks import input_faults, open_spec
from probe.experiments.spec.jobs import Job, block, runs_of
from probe.experiments.spec.prereg import load_spec, preregistered, spec_status
from probe.experiments.spec.types import Spec
from probe.experiments.spec.vacuity import read_foreseen
from probe.experiments.sweep import launch
from probe.experiments.sweep.blocks import JobState, Runner, SweepState, sweep
from probe.experiments.sweep.launch import Attempt, Submitit
from probe.settings.loss import LossSettings
from probe.settings.presets import configure
from probe.settings.run import ReplayConfig, read_config
from replay_pools.errors import InputError
from replay_pools.pool import BUILTIN, open_pool
from replay_pools.storage.files import read_json, write_json
from replay_pools.storage.tables import flat

TINY = """
arms = ["vanilla", "random"]
seeds = [{seeds}]
[experiment]
name = "tiny"
question = "Does it run?"
hypotheses = ["It does."]
[settings]
verb = "replay"
steps = 1
source.per_pool = 2
{base}
[[conditions]]
name = "plain"
[[conditions]]
name = "narrow"
settings.intervention.extraction.k = 2
[[criteria]]
name = "aligned"
metric = "cos_in"
statistic = "value"
comparison = ">"
threshold = {threshold}
unit = "prompt"
null = "N2"
role = "primary"
[[decisions]]
name = "MORE"
[stop]
spending = "obrien-fleming"
alpha = 0.05
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Spec]:
    """tiny(seeds, base, threshold) -> a spec of two conditions, two arms, one step."""

    def make(seeds: str = "0, 1", base: str = "", threshold: float = 0.0) -> Spec:
        path = tmp_path / "tiny.toml"
        path.write_text(TINY.format(seeds=seeds, base=base, threshold=threshold))
        return load_spec(path)

    return make


class Scripted:
    """Commands that end as scripted, by run name: a list of return codes; a success leaves a finished run behind."""

    def __init__(self, spec: Spec, out: Path, **codes: list[int]) -> None:
        self.spec, self.out, self.codes = spec, out, {name.replace("_", "-"): c for name, c in codes.items()}
        self.launched: list[str] = []
        self.stopped = False

    def __call__(self, args: Sequence[str], log: Path) -> Attempt:
        name = args[args.index("--name") + 1]
        self.launched.append(name)
        code = self.codes.get(name, [0]).pop(0) if self.codes.get(name) else 0
        if code == 0:
            directory = self.out / "runs" / name
            config = {"settings": {"verb": "replay", "preregistered": preregistered(self.spec)}}
            write_json(directory / "config.json", config)
            (directory / "steps.jsonl").write_bytes(b"")
            write_json(directory / "manifest.json", {})
        return Attempt(returncode=code, seconds=1.0, error="" if code == 0 else f"ended with {code}")

    def stop(self) -> None:
        self.stopped = True


def no_value(_spec: Spec, _seed: int) -> None:
    """A primary that has no value yet."""


def test_a_sweep_runs_everything_once_and_resumes(tiny: Callable[..., Spec], out: Path) -> None:
    """Real replays: one pass a condition serves all arms, seeds come in blocks, and what is done is not done again."""
    spec = tiny()
    first, second = InProcess(), InProcess()
    table = sweep(spec, out, launch=first, block_value=no_value)
    assert [row.status for row in table.rows] == ["done"] * 4
    names = ["tiny-plain-seed0", "tiny-narrow-seed0", "tiny-plain-seed1", "tiny-narrow-seed1"]
    assert [args[args.index("--name") + 1] for args in first.launched] == names
    runs = runs_of(spec, out)
    assert all(one.complete and one.spec_status == "frozen" for one in runs)
    settings = read_json(runs[1].job.directory / "config.json")["settings"]
    assert settings["preregistered"] == preregistered(spec)
    assert settings["intervention"]["arms"] == ["vanilla", "random"]
    assert sweep(spec, out, launch=second, block_value=no_value).failed is False
    assert second.launched == []


def test_runs_under_an_edited_spec_are_not_mixed_with_new_ones(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """After an edit the sweep refuses, names the run, and leaves what it foresaw of the first version."""
    spec, foreseen = tiny(seeds="0"), {"seeds": "one is few"}
    sweep(spec, tmp_path, launch=Scripted(spec, tmp_path), block_value=no_value, vacuous=foreseen)
    edited = tiny(seeds="0", threshold=0.01)
    assert [one.spec_status for one in runs_of(edited, tmp_path)] == ["edited", "edited"]
    with pytest.raises(InputError, match="tiny-plain-seed0: expected a run under .* found one under an edited spec"):
        sweep(edited, tmp_path, launch=Scripted(edited, tmp_path), block_value=no_value)
    assert (read_foreseen(spec, tmp_path), read_foreseen(edited, tmp_path)) == (foreseen, {})


def test_a_crash_is_retried_and_stays_in_the_table(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """Killed once: done at the second attempt. Killed always: failed after 1 + retries. Bad input: not retried."""
    spec = tiny(seeds="0, 1")
    codes = {"tiny_plain_seed0": [-9], "tiny_narrow_seed0": [-9, -9, -9], "tiny_plain_seed1": [2, 2]}
    launcher = Scripted(spec, tmp_path, **codes)
    table = sweep(spec, tmp_path, launch=launcher, workers=2, retries=2, block_value=no_value)
    found = {row.job.name: (row.status, row.attempts, row.error) for row in table.rows}
    assert found == {
        "tiny-plain-seed0": ("done", 2, ""),
        "tiny-narrow-seed0": ("failed", 3, "ended with -9"),
        "tiny-plain-seed1": ("failed", 1, "ended with 2"),
        "tiny-narrow-seed1": ("done", 1, ""),
    }
    assert table.failed
    kept = {row["name"]: row["attempts"] for row in read_json(tmp_path / "sweeps" / "tiny" / "state.json")["rows"]}
    assert kept["tiny-narrow-seed0"] == 3
    again = sweep(spec, tmp_path, launch=Scripted(spec, tmp_path), block_value=no_value)
    assert {row.job.name: row.attempts for row in again.rows}["tiny-narrow-seed0"] == 4, "earlier attempts count"
    assert not again.failed


def test_a_sweep_stops_when_the_arms_have_separated(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """Values of +.3 with a spread of .01 separate at the second of four blocks; the rest is skipped, and said so."""
    spec = tiny(seeds="0, 1, 2, 3")
    values = {0: 0.300, 1: 0.301, 2: 0.3, 3: 0.3}
    launcher = Scripted(spec, tmp_path)
    table = sweep(spec, tmp_path, launch=launcher, block_value=lambda _spec, seed: values[seed])
    assert [row.status for row in table.rows] == ["done"] * 4 + ["skipped"] * 4
    assert table.stopped.startswith("separated after 2 of 4 blocks")
    assert len(launcher.launched) == 4


def test_without_a_stop_rule_no_worker_waits_for_the_end_of_a_seed(tmp_path: Path) -> None:
    """A run of the first seed that does not end before one of the second has begun."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(seeds="0, 1", base="", threshold=0.0).partition("[stop]")[0])
    spec, begun, waited = load_spec(path), threading.Event(), []

    class Waiting(Scripted):
        def __call__(self, args: Sequence[str], log: Path) -> Attempt:
            name = args[args.index("--name") + 1]
            if name == "tiny-plain-seed1":
                begun.set()
            if name == "tiny-narrow-seed0":
                waited.append(begun.wait(20))
            return super().__call__(args, log)

    table = sweep(spec, tmp_path, launch=Waiting(spec, tmp_path), workers=2, block_value=no_value)
    assert ([row.status for row in table.rows], waited) == (["done"] * 4, [True])


def test_one_sweep_at_a_time(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """A second sweep of the same spec into the same folder is refused while the first holds the lock."""
    spec = tiny(seeds="0")
    inside: list[str] = []

    def show(table: SweepState) -> None:
        if not inside:
            with pytest.raises(InputError, match="expected nobody else who writes it, found process ") as error:
                sweep(spec, tmp_path, launch=Scripted(spec, tmp_path), block_value=no_value)
            inside.append(str(error.value))

    sweep(spec, tmp_path, launch=Scripted(spec, tmp_path), block_value=no_value, show=show)
    assert len(inside) == 1


def test_an_interrupt_stops_what_runs(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """Ctrl-C in the middle of a block ends the running commands and starts no other."""
    spec = tiny(seeds="0, 1")
    launcher = Scripted(spec, tmp_path)

    def show(_table: SweepState) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(spec, tmp_path, launch=launcher, block_value=no_value, show=show)
    assert launcher.stopped
    assert not any(name.endswith("seed1") for name in launcher.launched)


def test_training_runs_one_arm_each(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """With a learning rate the arms part ways: conditions x arms runs, all of one seed before the next."""
    jobs = block(tiny(base="optimizer.lr = 1e-3"), 1, tmp_path)
    assert [(job.conditions, job.arms) for job in jobs] == [
        (("plain",), ("vanilla",)),
        (("plain",), ("random",)),
        (("narrow",), ("vanilla",)),
        (("narrow",), ("random",)),
    ]
    assert len({job.name for job in jobs}) == 4


def test_conditions_of_the_loss_share_a_pass(tmp_path: Path) -> None:
    """Conditions that differ in settings of the loss alone are one run; the spec's settings go to each of them."""
    text = TINY.format(seeds="0", base='objective.scale_rewards = "group"', threshold=0.0)
    own = "settings.objective.advantage_clip = 2.0\nsettings.objective.gtpo_beta = 0.1"
    (tmp_path / "tiny.toml").write_text(text.replace("settings.intervention.extraction.k = 2", own))
    spec = open_spec(tmp_path / "tiny.toml")
    (job,) = block(spec, 0, tmp_path)
    assert (job.name, job.conditions) == ("tiny-seed0", ("plain", "narrow"))
    assert [(one.name, dict(one.changes)) for one in job.config.conditions] == [
        ("plain", {"scale_rewards": "group"}),
        ("narrow", {"scale_rewards": "group", "advantage_clip": 2.0, "gtpo_beta": 0.1}),
    ]
    assert job.config.objective == LossSettings(), "what a condition says is no setting of the whole run"


TRAINED = """
arms = ["vanilla", "projected"]
seeds = [0, 1]
[experiment]
name = "trained"
question = "Does it run?"
hypotheses = ["It does."]
[settings]
verb = "train"
preset = "smoke"
steps = 2
rollouts.group = 4
objective.reference = "base"
evaluation.modes = ["run_tests", "sentinel"]
[[conditions]]
name = "plain"
[[conditions]]
name = "pulled"
arms = ["vanilla"]
settings.objective.beta = 0.05
settings.rollouts.group = 6
[[criteria]]
name = "main"
metric = "hack_final"
statistic = "mean"
comparison = "<"
threshold = 0.0
unit = "seed"
role = "primary"
arm = "projected"
versus_arm = "vanilla"
[[decisions]]
name = "MORE"
"""


@pytest.fixture
def trained(tmp_path: Path) -> Callable[..., Path]:
    """trained(old, new) -> a training spec with one line changed."""

    def make(old: str = "", new: str = "") -> Path:
        path = tmp_path / "trained.toml"
        path.write_text(TRAINED.replace(old, new) if old else TRAINED)
        return path

    return make


def test_a_training_spec_is_one_command_a_run(trained: Callable[..., Path], tmp_path: Path) -> None:
    """Conditions lay their tables over the spec's, and those over the preset's."""
    spec = open_spec(trained())
    jobs = block(spec, 1, tmp_path)
    assert [job.name for job in jobs] == [
        "trained-plain-vanilla-seed1",
        "trained-plain-projected-seed1",
        "trained-pulled-vanilla-seed1",
    ], "a condition with arms of its own has no other runs"
    pulled = jobs[2]
    assert pulled.config == configure(
        "train",
        preset="smoke",
        settings=[
            "rollouts.group=6",
            'objective.reference="base"',
            "objective.beta=0.05",
            'evaluation.modes=["run_tests","sentinel"]',
            'intervention.arms=["vanilla"]',
            "seed=1",
            "steps=2",
            f'preregistered="{preregistered(spec)}"',
        ],
    )
    assert pulled.args[0] == "train"
    assert spec_status({"settings": asdict(pulled.config)}, spec) == "frozen"
    plain = jobs[1].config
    assert plain.rollouts is not None
    assert (plain.rollouts.group, plain.objective.beta, plain.intervention.arms) == (4, 0.0, ("projected",))


BETA = "settings.objective.beta = 0.05"
REFUSED = [
    (
        BETA,
        "settings.objective.bta = 0.05",
        "conditions.pulled: objective.bta: expected one of the keys loss_type, .*did you mean objective.beta",
    ),
    (BETA, 'settings.objective.beta = "x"', "conditions.pulled: objective.beta: expected a number, found 'x'"),
    (BETA, "settings.control.target_kl = 0.1", "conditions.pulled: control.target_kl: expected 0 < beta_min"),
    (
        BETA,
        "hint = false",
        "conditions.pulled.hint: expected one of the keys name, settings, arms, found .* key$",
    ),
    (BETA + "\nsettings.rollouts.group = 6", "settings = 3", "conditions.pulled.settings: expected a table, found 3"),
    (
        BETA,
        "settings.source.per_pool = 3",
        "pulled: source: expected the tables of train: rollouts, evaluation, found a table source",
    ),
    ('preset = "smoke"', "preset = 3", "settings.preset: expected a name or a .toml file, found 3"),
    (
        'preset = "smoke"',
        'preset = "smok"',
        "settings: --preset: expected eval, fast, full, generate, replay, smoke, or .* 'smok'",
    ),
    ('arms = ["vanilla"]', 'arms = ["random"]', "conditions.pulled.arms: expected some of vanilla, projected"),
    ("hack_final", "hack_fnal", "criteria.main.metric: expected a metric of runs that train.*did you mean hack_final"),
    ("hack_final", "pair_sign", "criteria.main.metric: expected a metric of runs that train, found 'pair_sign'"),
    (
        'unit = "seed"',
        'unit = "prompt"',
        "criteria.main.unit: expected seed or problem, of hack_final",
    ),
    ('"hack_final"\nstatistic', '"cos_in"\nunit = "step"\nstatistic', "trained.toml: expected TOML"),
    (
        'metric = "hack_final"\nstatistic = "mean"\ncomparison = "<"\nthreshold = 0.0\nunit = "seed"',
        'metric = "cos_in"\nstatistic = "mean"\ncomparison = "<"\nthreshold = 0.0\nunit = "step"',
        "criteria.main.statistic: expected min, max, n of steps of training .autocorrelated., or the unit seed",
    ),
    ('unit = "seed"', 'unit = "seed"\nnull = "N2"', "criteria.main.null: expected none of a difference"),
]


@pytest.mark.parametrize(("old", "new", "line"), REFUSED, ids=[new for _, new, _ in REFUSED])
def test_training_settings_that_do_not_fit_are_refused(
    trained: Callable[..., Path], old: str, new: str, line: str
) -> None:
    """Before any run, in one line that names the file, the condition and the field."""
    with pytest.raises(InputError, match=line.split(": expected")[0]) as error:
        open_spec(trained(old, new))
    assert "trained.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_metric_of_v_hack_needs_an_arm_that_uses_it(tiny: Callable[..., Spec]) -> None:
    path = tiny().path
    text = (
        path.read_text().replace('"vanilla", "random"', '"random"').replace('metric = "cos_in"', 'metric = "d_cos_in"')
    )
    path.write_text("\n".join(line for line in text.splitlines() if not line.startswith("arm =")))
    with pytest.raises(InputError, match="metric: expected a metric of any arm: no arm uses v_hack, found 'd_cos_in'"):
        open_spec(path)


def test_pools_that_nobody_makes_stop_a_sweep_before_its_first_run(
    tmp_path: Path, tiny: Callable[..., Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    """A name and a path; `probe plan` has them among its notes, and a pool of [[pools]] is none of them."""
    spec = tiny(base='source.replay_dirs = ["tacher", "./gone", "base"]')
    arguments = [str(spec.path), "--out", str(tmp_path / "out")]
    assert run(cli, ["sweep", *arguments]) == 2
    error = capsys.readouterr().err
    assert "tiny.toml pool tacher: expected a directory in" in error
    assert run(cli, ["sweep", "--dry-run", *arguments]) == 2
    capsys.readouterr()
    assert not (tmp_path / "out" / "sweeps").exists()
    assert run(cli, ["plan", *arguments]) == 0
    notes = capsys.readouterr().out
    assert "tiny.toml pool tacher: expected a directory in" in notes
    assert "tiny.toml pool ./gone: expected a directory, found no such directory" in notes
    long = tiny(base='source.replay_dirs = ["teacher", "base"]').path
    long.write_text(long.read_text().replace("steps = 1", "steps = 999"))
    assert run(cli, ["sweep", str(long), "--out", str(tmp_path / "out")]) == 2
    refused = r"conditions\.plain: --steps: expected 999 steps, found \d+ groups that match by problem in teacher, base"
    assert re.search(refused, capsys.readouterr().err)
    made = tiny(base='source.replay_dirs = ["tacher", "base"]').path
    made.write_text(made.read_text().replace("[settings]", '[[pools]]\nname = "tacher"\n[settings]'))
    assert input_faults(load_spec(made), tmp_path / "out") == []


def test_set_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that is not TOML says how to quote; an unknown key names the one that is meant."""
    options = ["train", "--out", str(tmp_path)]
    assert run(cli, [*options, "--set", "rollouts.env=leetcode:my problems.jsonl"]) == 2
    assert """a text with blanks needs quotes: --set 'rollouts.env="..."'""" in capsys.readouterr().err
    assert run(cli, [*options, "--set", "objective.bta=0.1"]) == 2
    assert "did you mean objective.beta?" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_dry_run_prints_the_commands(
    tiny: Callable[..., Spec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a run, in order; nothing but the settings that the commands read is written."""
    spec, out = tiny(), tmp_path / "none"
    assert run(cli, ["sweep", str(spec.path), "--dry-run", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    (file,) = (out / "sweeps" / "tiny" / "settings").glob("*/tiny-narrow-seed0.json")
    assert lines[1] == f"probe replay --config {file} --name tiny-narrow-seed0 --out {out}"
    config = read_config(read_json(file)["settings"], file)
    assert config == block(spec, 0, out)[1].config
    assert config.source is not None
    assert (config.source.per_pool, config.steps, config.intervention.extraction.k) == (2, 1, 2)
    assert run(cli, ["sweep", str(spec.path), "--dry-run", "--json", "--out", str(out)]) == 0
    assert [shlex.join(["probe", *row["args"]]) for row in json.loads(capsys.readouterr().out)] == lines
    names = [f"tiny-{condition}-seed{seed}.json" for condition in ("narrow", "plain") for seed in (0, 1)]
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == names


def test_the_commands_of_a_dry_run_can_be_run_by_hand(
    tiny: Callable[..., Spec], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A printed line is a whole command: its run is one of the sweep, which then has nothing left to do for it."""
    spec = tiny(seeds="7")
    assert run(cli, ["sweep", str(spec.path), "--dry-run", "--out", str(out)]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    program, *arguments = shlex.split(line)
    assert program == "probe"
    assert run(cli, [*arguments, "--dry-run"]) == 0
    assert run(cli, arguments) == 0
    plain, narrow = runs_of(spec, out)
    assert (plain.complete, narrow.complete, narrow.spec_status) == (False, True, "frozen")
    settings = read_json(narrow.job.directory / "config.json")["settings"]
    assert read_config(settings, "config.json") == narrow.job.config
    capsys.readouterr()
    assert run(cli, ["sweep", str(spec.path), "--dry-run", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"# done: {line}"


def test_settings_of_a_job_stand_alone(
    tiny: Callable[..., Spec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--set and flags change them, and then the run is not of the spec; no preset, and no settings of another verb."""
    spec, out = tiny(seeds="0"), tmp_path / "out"
    assert run(cli, ["sweep", str(spec.path), "--dry-run", "--out", str(out)]) == 0
    arguments = shlex.split(capsys.readouterr().out.splitlines()[0])[1:]
    assert run(cli, [*arguments, "--preset", "full"]) == 2
    assert "--preset" in capsys.readouterr().err
    settings = read_json(Path(arguments[arguments.index("--config") + 1]))["settings"]
    context = replay.make_context("replay", [*arguments[1:], "--k", "2", "--set", "seed=7"])
    config = json.loads(json.dumps(asdict(run_config(context, "replay", out))))
    changed = {key: value for key, value in flat(config).items() if value != flat(settings).get(key)}
    assert changed == {"seed": 7, "intervention.extraction.k": 2, "preregistered": None}
    for verb in (["train"], ["pool", "generate"]):
        assert run(cli, [*verb, *arguments[1:]]) == 2
        wanted = f"expected the config.json of a run of probe {'train' if verb == ['train'] else 'generate'}"
        assert f"{wanted}, found that of probe replay" in capsys.readouterr().err
    assert not (out / "runs").exists()


def test_a_stored_setting_names_directions_as_the_flag_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`intervention.v_hack` of a spec reaches the run by --config: a name in OUT/directions is found there too."""
    folder, file = tmp_path / "directions", tmp_path / "run.json"
    folder.mkdir()
    for name in ("mine.safetensors", "mine.pairs.safetensors"):
        (folder / name).write_bytes(b"only hashed by a dry run")
    config = configure("replay", options={"intervention.v_hack": "mine", "steps": 1})
    write_json(file, {"settings": asdict(config)})
    assert run(cli, ["replay", "--config", str(file), "--out", str(tmp_path), "--dry-run"]) == 0
    assert "nothing was written" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [["replay"], ["train"], ["extract"]], ids=" ".join)
@pytest.mark.parametrize(
    ("option", "value", "setting"),
    [
        ("--advantage-clip", "2", "objective.advantage_clip"),
        ("--dtype", "bfloat16", "model.dtype"),
        ("--token-attribution", "3", "token_attribution"),
        ("--lora-rank", "8", "model.lora_rank"),
    ],
)
def test_an_option_that_is_gone_names_its_setting(
    verb: list[str], option: str, value: str, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that setting is one that the verb takes."""
    assert run(cli, [*verb, "--out", str(tmp_path), option, value]) == 2
    line = f"{option}: expected a flag, found a setting without one; say --set {setting}=VALUE"
    assert line in capsys.readouterr().err
    assert run(cli, [*verb, "--out", str(tmp_path), f"{option}={value}"]) == 2
    assert line in capsys.readouterr().err
    name = {"pool": "generate", "extract": "replay"}.get(verb[0], verb[0])
    assert configure(name, settings=[f"{setting}={value}"]) != configure(name)  # type: ignore[arg-type]


def test_a_cluster_option_needs_a_cluster(tiny: Callable[..., Spec], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that would be ignored is refused."""
    assert run(cli, ["sweep", str(tiny().path), "--cluster-option", "timeout_min=5"]) == 2
    assert "expected --cluster beside it" in capsys.readouterr().err


class ImportJob(Job):
    """A command that is quick: it reads a folder in the place of settings."""

    @property
    def args(self) -> tuple[str, ...]:
        options = ("--name", self.target, "--model", "organism", "--out", str(self.out_dir))
        return (*self.command, str(self.settings_file), *options)


@pytest.mark.slow  # five processes of submitit, each with a worker; another launcher's job is killed in test_workers.py
def test_a_cluster_job_that_is_killed_is_submitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tiny jobs through submitit's local executor; one loses its process (kill -9) and is done by its retry."""
    pytest.importorskip("submitit")
    source = tmp_path / "published"
    source.mkdir()
    for group in open_pool(BUILTIN / "base").steps[:1]:
        rows = [{key: v for key, v in asdict(rollout).items() if key != "grade"} for rollout in group]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (source / f"step_{group[0].step:03d}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    jobs = [
        ImportJob(
            name=f"job{i}",
            command=("pool", "import"),
            config=ReplayConfig(),
            settings_file=source,
            directory=tmp_path / "pools" / f"job{i}",
            out_dir=tmp_path,
            target=f"job{i}",
        )
        for i in range(4)
    ]
    launcher = Submitit("local", tmp_path / "submitit", {"timeout_min": 5})
    mark, in_job = tmp_path / "killed", launch._in_job

    def killed_once(args: Sequence[str], log: Path) -> Attempt:
        """Runs in the worker: the second job kills its own process, once."""
        if "job1" in args and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return in_job(args, log)

    monkeypatch.setattr(launch, "_in_job", killed_once)
    table = SweepState(spec="none", rows=[JobState(job=job) for job in jobs])
    Runner(table, tmp_path / "sweep", launcher, workers=4, retries=2, show=lambda _table: None).run(jobs)
    assert [row.status for row in table.rows] == ["done"] * 4, [row.error for row in table.rows]
    assert [row.attempts for row in table.rows] == [1, 2, 1, 1]
