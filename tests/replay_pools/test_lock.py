"""One writer at a time, and nothing left of writers that were killed."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from replay_pools.errors import InputError
from replay_pools.grading.folders import WORK, grading_folder
from replay_pools.storage.files import locked

HOLD = """
import sys, time
from pathlib import Path
from replay_pools.grading.folders import grading_folder
from replay_pools.storage.files import locked
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
