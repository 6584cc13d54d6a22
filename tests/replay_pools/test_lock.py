"""One writer at a time, and nothing left of writers that were killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from replay_pools.base import files
from replay_pools.base.errors import InputError
from replay_pools.base.files import locked
from replay_pools.base.terminal import on_progress
from replay_pools.grading.folders import PREFIX, grading_folder

HOLD = """
import sys, time
from pathlib import Path
from replay_pools.grading.folders import grading_folder
from replay_pools.base.files import locked
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
        with (
            pytest.raises(InputError, match=rf"found process {holder.pid} on .* since 20.*grading_folder.*; wait"),
            locked(path),
        ):
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


ELSEWHERE = "filelock/2\npid=1\nhost=elsewhere\nmode=lease\ntoken=0\nduration=0.4\n"


@pytest.mark.parametrize("lives", [True, False])
def test_a_holder_on_another_machine_has_to_refresh_its_lock(
    lives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its process lives cannot be asked, and `flock` does nothing on some file systems that both see."""
    monkeypatch.setattr(files, "LEASE_S", 0.4)
    marker, waits = tmp_path / ".a.lock", list[str]()

    def hear(what: str, done: int, total: int) -> None:
        waits.append(what)
        if lives and marker.exists():
            os.utime(marker)

    marker.write_text(ELSEWHERE)
    with on_progress(hear):
        if lives:
            expected = "nobody else who writes it, found process 1 on elsewhere"
            with pytest.raises(InputError, match=expected), locked(tmp_path / "a"):
                pass
            assert marker.read_text() == ELSEWHERE
        else:
            with locked(tmp_path / "a"):
                assert f"pid={os.getpid()}" in marker.read_text()
            assert not marker.exists()
    assert waits[0] == f"waiting for {tmp_path / 'a'}, of process 1 on elsewhere: seconds"


def test_who_has_lost_its_lock_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a silence of minutes in which another machine has taken it."""
    monkeypatch.setattr(files, "LEASE_S", 0.2)

    def lose() -> None:
        with locked(tmp_path / "a"):
            (tmp_path / ".a.lock").unlink()
            time.sleep(60)

    with pytest.raises(InputError, match="to keep its lock, found marker-missing"):
        lose()


def test_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link among the leftovers is not followed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "kept")
    (tmp_path / f"{PREFIX}old").mkdir()
    with grading_folder() as folder:
        assert {path.name for path in tmp_path.iterdir()} == {"kept", f"{PREFIX}link", folder.name}
    assert not folder.exists()
