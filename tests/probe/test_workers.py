"""Workers of a sweep: several commands in one process, each as in a process of its own."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from worker_stand_in import STAND_IN

from probe.experiments.spec.jobs import Job
from probe.experiments.sweep import launch
from probe.experiments.sweep.blocks import JobState, Runner, SweepState
from probe.experiments.sweep.launch import Attempt, Processes
from probe.settings.presets import configure
from replay_pools.policy.last_model import forget, keeping, kept
from replay_pools.policy.load import load_policy, weights_sha


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Its commands are Python expressions."""
    monkeypatch.setattr(launch, "WORKER", STAND_IN)
    launcher = Processes(2)
    yield launcher
    launcher.stop()


def test_a_worker_says_how_a_command_ended(launcher: Processes, tmp_path: Path) -> None:
    """Success, the last line of an error without its prefix, a signal by name; all output is in the log."""
    log = tmp_path / "logs" / "run.log"
    assert launcher(["print('fine') or os.system('echo from a child')"], log).error == ""
    bad = launcher(["print('working') or print('probe: error: --steps: expected 3') or 2"], log)
    assert (bad.returncode, bad.error) == (2, "--steps: expected 3")
    assert launcher(["os._exit(7)"], log).error == "exit code 7"
    assert launcher(["os.kill(os.getpid(), 9)"], log).error == "killed by SIGKILL"
    lines = ["from a child", "fine", "working", "probe: error: --steps: expected 3"]
    assert sorted(log.read_text().splitlines()) == sorted(lines)


def test_a_worker_lives_until_a_command_fails(launcher: Processes, tmp_path: Path) -> None:
    """Also when the thread that asked for it has ended, as those of a block do; a dead one is replaced."""

    def pid() -> int:
        log = tmp_path / f"{time.monotonic_ns()}.log"
        thread = threading.Thread(target=launcher, args=(["print(os.getpid(), flush=True) or 0"], log))
        thread.start()
        thread.join()
        return int(log.read_text())

    first = pid()
    time.sleep(0.2)  # in which the kernel would have ended it
    assert pid() == first
    launcher(["1"], tmp_path / "failed.log")
    second = pid()
    assert second != first
    os.kill(second, signal.SIGKILL)
    while launcher._idle[0].process.poll() is None:
        time.sleep(0.01)
    assert pid() not in (first, second)


def test_stop_ends_the_workers(launcher: Processes, tmp_path: Path) -> None:
    """A running one gets SIGTERM at once; one that waits ends by itself."""
    launcher(["0"], tmp_path / "log")
    (waiting,) = launcher._idle
    ends: list[Attempt] = []
    log = tmp_path / "running.log"
    commands = [["print('here', flush=True) or time.sleep(60)"], ["0"]]
    threads = [threading.Thread(target=lambda: ends.append(launcher(commands[0], log)))]
    threads[0].start()
    while not (log.is_file() and log.read_text()):
        time.sleep(0.01)
    (running,) = launcher._running
    assert running is waiting
    launcher(["0"], tmp_path / "log")
    (waiting,) = launcher._idle
    launcher.stop()
    threads[0].join(10)
    assert ends[0].returncode == -signal.SIGTERM
    assert waiting.process.returncode == 0


class ExpressionJob(Job):
    """A job whose command is its name's expression."""

    @property
    def args(self) -> tuple[str, ...]:
        return self.command


def test_a_command_that_kills_its_worker_costs_no_other_one(launcher: Processes, tmp_path: Path) -> None:
    """It is tried again in a new worker and fails for good; those before, beside and after it are done."""
    done = "__import__('pathlib').Path({!r}).mkdir() or open({!r}, 'w').close() or 0"
    jobs = []
    for i, name in enumerate(["before", "crash", "beside", "after"]):
        folder = tmp_path / name
        expression = "os._exit(9)" if name == "crash" else done.format(str(folder), str(folder / "manifest.json"))
        job = ExpressionJob(
            name=name,
            command=(expression,),
            config=configure("replay"),
            settings_file=tmp_path / "none",
            directory=folder,
            out_dir=tmp_path,
            target=name,
            seed=i,
        )
        jobs.append(job)
    table = SweepState(spec="none", rows=[JobState(job=job) for job in jobs])
    Runner(table, tmp_path / "sweep", launcher, workers=2, retries=1, show=lambda _table: None).run(jobs)
    ends = {row.job.name: (row.status, row.attempts, row.error) for row in table.rows}
    assert ends == {
        "before": ("done", 1, ""),
        "crash": ("failed", 2, "exit code 9"),
        "beside": ("done", 1, ""),
        "after": ("done", 1, ""),
    }


def test_runs_of_one_worker_equal_those_of_processes(out: Path, quick: list[str], tmp_path: Path) -> None:
    """To the byte, in both bases and after one that moves its weights."""
    common = ["--steps", "1", *quick]
    commands = {
        "moved": ["replay", *common, "--arm", "projected", "--per-pool", "2", "--set", "optimizer.lr=0.1"],
        "lora": ["replay", *common, "--arm", "projected-lora", "--per-pool", "2"],
        "again": ["replay", *common, "--arm", "projected", "--per-pool", "2", "--seed", "3"],
    }
    launcher = Processes(os.cpu_count() or 1)  # a thread each, as in these tests
    for name, command in commands.items():
        end = launcher([*command, "--name", f"worker-{name}", "--out", str(out)], tmp_path / f"{name}.log")
        assert end.returncode == 0, end.error
    assert len(launcher._idle) == 1
    launcher.stop()
    for name, command in commands.items():
        alone = processes.command(*command, "--name", f"alone-{name}", "--out", str(out))
        assert processes.finish(processes.start(alone)) == 0
        runs = [_content(out / "runs" / f"{kind}-{name}") for kind in ("worker", "alone")]
        assert runs[0] == runs[1]
        assert len(runs[0]) >= 4


def _content(run: Path) -> dict[str, bytes]:
    """Every file of a run but the one of its times."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "timings.jsonl"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_ctrl_c_ends_sweep_and_worker(out: Path, tmp_path: Path) -> None:
    """Both get SIGINT, as from a terminal; the sweep says so, and no worker stays behind."""
    spec = tmp_path / "interrupted.toml"
    spec.write_text(SPEC)
    code = "import os; os.setsid()\n" + processes.command("sweep", str(spec), "--out", str(out))
    process = processes.start(code, log=tmp_path / "log")
    begun = out / "runs" / "interrupted-plain-seed0" / "config.json"
    while not begun.is_file():
        assert process.is_alive()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    ended, error = processes.finish(process, 60), (tmp_path / "log").read_text()
    assert (ended, error.splitlines()[-1][:18]) == (130, "probe: interrupted")
    deadline = time.monotonic() + 30
    while _group_runs(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _group_runs(process.pid)


def _group_runs(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(process_group) == group and state != "Z":
            return True
    return False


SPEC = """
arms = ["vanilla"]
seeds = [0]
[experiment]
name = "interrupted"  # of no other sweep in the shared `out`
question = "Does it end?"
hypotheses = ["It does."]
[settings]
verb = "replay"
[[conditions]]
name = "plain"
[[criteria]]
name = "aligned"
metric = "cos_in"
statistic = "mean"
comparison = ">"
threshold = 0.0
unit = "prompt"
role = "primary"
[[decisions]]
name = "MORE"
"""


def test_a_kept_model_is_not_what_its_users_make_of_it() -> None:
    """Weights share their memory, not their parameters: a merged adapter in one model is none in the next."""
    with keeping():
        first, second = load_policy("organism"), load_policy("organism")
        name, weight = next(iter(first.model.named_parameters()))
        same = second.model.get_parameter(name)
        assert same is not weight
        assert same.data_ptr() == weight.data_ptr()
        weight.data = weight.data + 1
        assert weights_sha(load_policy("organism").model) == second.base_weights_sha
        teacher = load_policy("organism", adapter="teacher")
        assert weights_sha(teacher.model) != second.base_weights_sha
    alone = load_policy("organism").model.get_parameter(name)
    assert alone.data_ptr() != same.data_ptr()


def test_one_value_is_kept_under_a_word() -> None:
    made = []

    def make(value: int) -> list[int]:
        made.append(value)
        return [value]

    def ask(value: int) -> list[int]:
        return kept("numbers", value, lambda: make(value), list)

    assert (ask(1), ask(1), made) == ([1], [1], [1, 1])
    made.clear()
    with keeping():
        ask(1).append(2)
        assert (ask(1), ask(2), ask(2), ask(1), made) == ([1], [2], [2], [1], [1, 2, 1])
        forget("numbers")
        assert (ask(1), made) == ([1], [1, 2, 1, 1])
