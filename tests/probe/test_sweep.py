"""Sweeps: every run of a spec, in blocks, resumed, retried, never dropped; and where the commands run."""

import gzip
import json
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.cli.train import configured
from probe.experiments import launch
from probe.experiments.checks import open_spec, pool_faults, resolved
from probe.experiments.jobs import Job, block, runs_of
from probe.experiments.launch import Attempt, Processes, Submitit
from probe.experiments.prereg import load_spec, preregistered, spec_status
from probe.experiments.spec import Spec
from probe.experiments.sweep import JobState, Runner, SweepState, sweep
from probe.experiments.vacuity import read_foreseen
from replay_pools.errors import InputError
from replay_pools.files import read_json, write_json
from replay_pools.pool import Pool

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
statistic = "mean"
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


class InProcess:
    """The real verbs in this process, so that torch and the caches are warm; records what was launched."""

    def __init__(self) -> None:
        self.launched: list[Sequence[str]] = []

    def __call__(self, args: Sequence[str], log: Path) -> Attempt:
        self.launched.append(args)
        return Attempt(returncode=run(cli, list(args)), seconds=0.0, error="")

    def stop(self) -> None:
        raise AssertionError("nothing interrupts this sweep")


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
            config = {"verb": "replay", "replay": {"preregistered": preregistered(self.spec)}}
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
    config = read_json(runs[1].job.directory / "config.json")
    assert config["replay"]["preregistered"] == preregistered(spec)
    assert config["replay"]["arms"] == ["vanilla", "random"]
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


def test_one_sweep_at_a_time(tiny: Callable[..., Spec], tmp_path: Path) -> None:
    """A second sweep of the same spec into the same folder is refused while the first holds the lock."""
    spec = tiny(seeds="0")
    inside: list[str] = []

    def show(table: SweepState) -> None:
        if not inside:
            with pytest.raises(InputError, match="no sweep that is running") as error:
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
    jobs = block(tiny(base="lr = 1e-3"), 1, tmp_path)
    assert [(job.conditions, job.arms) for job in jobs] == [
        (("plain",), ("vanilla",)),
        (("plain",), ("random",)),
        (("narrow",), ("vanilla",)),
        (("narrow",), ("random",)),
    ]
    assert len({job.name for job in jobs}) == 4


def test_conditions_of_the_loss_share_a_pass(tmp_path: Path) -> None:
    """Conditions that differ in settings of the loss alone are one run; base settings go to each of them."""
    text = TINY.format(seeds="0", base='scale_rewards = "group"', threshold=0.0)
    (tmp_path / "tiny.toml").write_text(text.replace("k = 2", "advantage_clip = 2.0\ngtpo_beta = 0.1"))
    spec = open_spec(tmp_path / "tiny.toml")
    (job,) = block(spec, 0, tmp_path)
    assert (job.name, job.conditions) == ("tiny-seed0", ("plain", "narrow"))
    own = [job.args[i + 1] for i, part in enumerate(job.args) if part == "--condition"]
    assert own == ["plain:scale_rewards=group", "narrow:scale_rewards=group,advantage_clip=2.0,gtpo_beta=0.1"]
    assert "--scale-rewards" not in job.args


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
[settings.set]
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
    """Conditions lay their tables over the base's, and the parser of `probe train` reads the same settings back."""
    spec = open_spec(trained())
    jobs = block(spec, 1, tmp_path)
    assert [job.name for job in jobs] == [
        "trained-plain-vanilla-seed1",
        "trained-plain-projected-seed1",
        "trained-pulled-vanilla-seed1",
    ], "a condition with arms of its own has no other runs"
    pulled = jobs[2].args
    settings = [pulled[i + 1] for i, part in enumerate(pulled) if part == "--set"]
    assert {*settings} == {
        "rollouts.group=6",
        'objective.reference="base"',
        "objective.beta=0.05",
        'evaluation.modes=["run_tests","sentinel"]',
    }
    config = configured(
        "smoke",
        settings,
        arm="vanilla",
        seed=1,
        steps=2,
        hint=None,
        token_attribution=0,
        preregistered=preregistered(spec),
    )
    assert (config.rollouts.group, config.objective.beta, config.evaluation.modes) == (
        6,
        0.05,
        ("run_tests", "sentinel"),
    )
    assert (config.intervention.arm, config.seed, config.steps) == ("vanilla", 1, 2)
    assert spec_status({"verb": "train", "train": asdict(config)}, spec) == "frozen"
    assert "--condition" not in pulled


REFUSED = [
    ("set.objective.beta = 0.05", "set.objective.bta = 0.05", "--set objective: expected fields out of .*unknown: bta"),
    ("set.objective.beta = 0.05", 'set.objective.beta = "x"', "--set objective beta: expected float, found 'x'"),
    ("set.objective.beta = 0.05", "set.control.target_kl = 0.1", "conditions.pulled"),
    ("set.objective.beta = 0.05", "hint = false", "conditions.pulled.hint: expected true, or the setting itself"),
    ("set.objective.beta = 0.05\nset.rollouts.group = 6", "set = 3", "conditions.pulled.set: expected a table"),
    ("set.objective.beta = 0.05", "per_pool = 3", "per_pool: expected an option of probe train"),
    ('preset = "smoke"', 'preset = "smok"', "--preset: expected fast, full, smoke"),
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
    with pytest.raises(InputError, match=line) as error:
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
    spec = tiny(base='replay_dirs = ["tacher", "./gone", "base"]')
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
    long = tiny(base='replay_dirs = ["teacher", "base"]').path
    long.write_text(long.read_text().replace("steps = 1", "steps = 21"))
    assert run(cli, ["sweep", str(long), "--out", str(tmp_path / "out")]) == 2
    assert "conditions.plain.steps: expected at most 20, the steps of pool teacher, found 21" in capsys.readouterr().err
    made = tiny(base='replay_dirs = ["tacher", "base"]').path
    made.write_text(made.read_text().replace("[base]", '[[pools]]\nname = "tacher"\n[base]'))
    assert pool_faults(load_spec(made), resolved(load_spec(made)), tmp_path / "out") == []


def test_set_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that is not TOML says how to quote; an unknown table names those that are there."""
    options = ["train", "--out", str(tmp_path)]
    assert run(cli, [*options, "--set", "objective.reference=base"]) == 2
    assert "a text needs quotes" in capsys.readouterr().err
    assert run(cli, [*options, "--set", "loss.beta=0.1"]) == 2
    assert "--set: expected fields out of model, rollouts" in capsys.readouterr().err


def test_dry_run_prints_the_commands(
    tiny: Callable[..., Spec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line a run, in order, and nothing is written."""
    spec = tiny()
    assert run(cli, ["sweep", str(spec.path), "--dry-run", "--out", str(tmp_path / "none")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("probe replay --name tiny-narrow-seed0 ")
    assert " --per-pool 2 --steps 1 --k 2" in lines[1]
    assert run(cli, ["sweep", str(spec.path), "--dry-run", "--json", "--out", str(tmp_path / "none")]) == 0
    assert [shlex.join(["probe", *row["args"]]) for row in json.loads(capsys.readouterr().out)] == lines
    assert not (tmp_path / "none").exists()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers run `sh -c ARGS[0]` in the place of `probe ARGS`."""
    monkeypatch.setattr(launch, "command", lambda args: ["sh", "-c", args[0]])


def test_processes_say_how_a_command_ended(shell: None, tmp_path: Path) -> None:
    """Success, the last line of an error without its prefix, a signal by name; all output is in the log."""
    log = tmp_path / "logs" / "run.log"
    launcher = Processes(1)
    assert launcher(["echo fine"], log).error == ""
    bad = launcher(["echo working; echo 'probe: error: --steps: expected 3' >&2; exit 2"], log)
    assert (bad.returncode, bad.error) == (2, "--steps: expected 3")
    assert launcher(["exit 7"], log).error == "exit code 7"
    assert launcher(["kill -9 $$"], log).error == "killed by SIGKILL"
    assert log.read_text().splitlines() == ["fine", "working", "probe: error: --steps: expected 3"]


def test_stop_ends_the_children(shell: None, tmp_path: Path) -> None:
    """A running child gets SIGTERM at once."""
    launcher = Processes(1)
    ends: list[Attempt] = []
    thread = threading.Thread(target=lambda: ends.append(launcher(["sleep 60"], tmp_path / "log")))
    thread.start()
    while not launcher._running:
        time.sleep(0.01)
    launcher.stop()
    thread.join(10)
    assert ends[0].returncode == -signal.SIGTERM


def test_a_cluster_option_needs_a_cluster(tiny: Callable[..., Spec], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that would be ignored is refused."""
    assert run(cli, ["sweep", str(tiny().path), "--cluster-option", "timeout_min=5"]) == 2
    assert "expected --cluster beside it" in capsys.readouterr().err


def test_a_cluster_job_that_is_killed_is_submitted_again(
    tmp_path: Path, fake_pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four tiny jobs through submitit's local executor; one loses its process (kill -9) and is done by its retry."""
    pytest.importorskip("submitit")
    source = tmp_path / "published"
    source.mkdir()
    for group in fake_pool.steps:
        rows = [{key: v for key, v in rollout.to_json().items() if key != "grade"} for rollout in group]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (source / f"step_{group[0].step:03d}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    jobs = [
        Job(
            name=f"job{i}",
            args=("pool", "import", str(source), "--name", f"job{i}", "--out", str(tmp_path)),
            directory=tmp_path / "pools" / f"job{i}",
        )
        for i in range(4)
    ]
    launcher = Submitit("local", tmp_path / "submitit", {"timeout_min": 5})
    mark = tmp_path / "killed"

    def killed_once(args: Sequence[str], log: Path) -> Attempt:
        """Runs in the worker: the second job kills its own process, once."""
        if "job1" in args and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Processes(1)(args, log)

    monkeypatch.setattr(launch, "_in_job", killed_once)
    table = SweepState(spec="none", rows=[JobState(job=job) for job in jobs])
    Runner(table, tmp_path / "sweep", launcher, workers=4, retries=2, show=lambda _table: None).run(jobs)
    assert [row.status for row in table.rows] == ["done"] * 4, [row.error for row in table.rows]
    assert [row.attempts for row in table.rows] == [1, 2, 1, 1]
