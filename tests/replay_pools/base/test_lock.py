"""One writer at a time, and no lock left of writers that were killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from replay_pools.base.errors import InputError
from replay_pools.base.files import locked

HOLD = """
import sys, time
from pathlib import Path
from replay_pools.base.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_hears_who_the_first_is(tmp_path: Path) -> None:
    """Its process and since when; then the lock goes with it, by SIGKILL too."""
    path = tmp_path / "pools" / "mine"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with (
            pytest.raises(InputError, match=rf"found process {holder.pid} on .* since 20.*; wait"),
            locked(path),
        ):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with locked(path):
        pass
    assert [*path.parent.iterdir()] == [], "the lock's file stays behind"


@pytest.mark.parametrize("content", [b"", b"process 1 on elsewhere", b"\xff\x00"])
def test_what_a_dead_process_left_is_no_lock(content: bytes, tmp_path: Path) -> None:
    """An empty or half-written file, days old: the lock is that of the operating system."""
    marker = tmp_path / ".a.lock"
    marker.write_bytes(content)
    os.utime(marker, (0, 0))
    with locked(tmp_path / "a"), pytest.raises(InputError, match=f"process {os.getpid()} "), locked(tmp_path / "a"):
        pass
    assert not marker.exists()
