"""One writer at a time, and nothing left of writers that were killed."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from replay_pools.errors import InputError
from replay_pools.grading.folders import WORK, grading_folder
from replay_pools.storage.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from replay_pools.grading.folders import grading_folder
from replay_pools.storage.lock import locked
with locked(Path(sys.argv[1])), grading_folder() as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


def test_the_second_hears_who_the_first_is(tmp_path: Path) -> None:
    """Its process, since when, and its command; then the lock goes with it, by SIGKILL too, and so does its folder."""
    path = tmp_path / "pools" / "mine"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        with pytest.raises(InputError, match=rf"found process {holder.pid} on .* since 20.*{path}; wait"), locked(path):
            pass
        with grading_folder():
            assert folder.is_dir(), "the folder of a living grader was removed"
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert folder.is_dir(), "nothing was left to test with"
    with locked(path), grading_folder():
        assert not folder.exists()
    assert [*path.parent.iterdir()] == [], "the lock's file stays behind"


def test_a_lock_is_refused_within_one_process_too(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "a"),
        locked(tmp_path / "b"),
        pytest.raises(InputError, match=f"process {os.getpid()} "),
        locked(tmp_path / "a"),
    ):
        pass
    with locked(tmp_path / "a"):
        pass


def test_a_file_system_without_locks_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "a"):
        assert (tmp_path / ".a.lock").read_text().startswith(f"process {os.getpid()}")


def test_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link among the leftovers is not followed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / f"{WORK}link").symlink_to(tmp_path / "kept")
    (tmp_path / f"{WORK}old").mkdir()
    with grading_folder() as folder:
        assert {path.name for path in tmp_path.iterdir()} == {"kept", f"{WORK}link", folder.name}
    assert not folder.exists()


def test_a_child_ends_with_its_killed_parent(tmp_path: Path) -> None:
    """The launcher of a sweep is killed with SIGKILL while its command runs; the command ends at once."""
    code = (
        "import sys; from pathlib import Path; from probe.experiments.sweep import launch\n"
        "from worker_stand_in import STAND_IN\n"
        "launch.WORKER = STAND_IN\n"
        "launch.Processes(1)([sys.argv[1]], Path(sys.argv[2]))"
    )
    child = "print(os.getpid(), flush=True) or time.sleep(600)"
    log = tmp_path / "log"
    support = str(Path(__file__).parents[1] / "support")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])}
    parent = subprocess.Popen([sys.executable, "-c", code, child, str(log)], env=environment)
    deadline = time.monotonic() + 60
    while not (log.is_file() and log.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    pid = int(log.read_text())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid), "the command of a killed sweep runs on"


def _runs(pid: int) -> bool:
    """Whether a process is there and no zombie, which in a container may find nobody to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
