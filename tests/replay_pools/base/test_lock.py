"""One writer at a time, and no lock left of writers that were killed."""

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


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    """By SIGKILL too: the lock goes with its process."""
    path = tmp_path / "pools" / "mine"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()  # type: ignore[union-attr]
        with pytest.raises(InputError, match="no other process writing to it"), locked(path):
            pass
        holder.kill()
    with locked(path):
        pass
    assert [*path.parent.iterdir()] == [], "the lock's file stays behind"
    (path.parent / ".mine.lock").write_bytes(b"\xff\x00")  # half-written, by a process that is gone
    with locked(path), pytest.raises(InputError), locked(path):
        pass
