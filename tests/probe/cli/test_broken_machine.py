"""A folder that cannot be written, a disk that is full, a terminal that interrupts: one line, and nothing is lost."""

import os
import shutil
from pathlib import Path

import processes
import pytest
from directories import contents
from terminals import on_a_terminal

ROOT = Path(__file__).parents[3]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
WRITERS = {
    "replay": ["replay", "--arm", "vanilla", "--steps", "1"],
    "train": ["train", "--steps", "2"],
    "eval": ["policy", "eval", "--problems", "1"],
    "extract": ["extract", "--name", "x"],
    "pool generate": ["pool", "generate", "--name", "x", "--steps", "1", "--group", "2"],
    "pool regrade": ["pool", "regrade", "teacher", "--name", "x"],
    "sweep": ["spec", "sweep", str(ROOT / "spec" / "experiments" / "phase1.toml")],
}


@pytest.mark.parametrize("args", WRITERS.values(), ids=WRITERS)
def test_a_folder_that_cannot_be_written(args: list[str], refused) -> None:
    """Below a file, or where nobody may create anything, root or not."""
    place = "/dev/null/out" if args[0] == "train" else "/proc/out"
    assert place in refused(*args, root=place)


IN_A_SMALL_DISK = """
import ctypes, os, shutil, subprocess, sys
from pathlib import Path
disk, size, cache, copy, *options = sys.argv[1:]
who = {"uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
try:
    if ctypes.CDLL(None).unshare(0x10020000):  # CLONE_NEWUSER | CLONE_NEWNS
        raise OSError
    for name, text in {"setgroups": "deny", **who}.items():
        Path(f"/proc/self/{name}").write_text(text)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
except (OSError, subprocess.CalledProcessError):
    sys.exit(77)
from probe.cli import cli
from probe.cli._frame import run
shutil.copytree(cache, f"{disk}/out/cache")
command = ["replay", "--name", "x", *options, "--out", f"{disk}/out"]
print("exit code", run(cli, command), *sorted(os.listdir(f"{disk}/out/runs/x")), flush=True)
subprocess.run(["mount", "-o", "remount,size=1g", disk], check=True)
code = run(cli, command)
shutil.copytree(f"{disk}/out/runs/x", copy)
sys.exit(code)
"""


def test_a_full_disk_loses_nothing(out: Path, replay, quick: list[str], tmp_path: Path) -> None:
    """The run stops with one line; once there is room, the same command ends in the bytes of one that never stopped.

    In a mount namespace of its own, with a tmpfs for a disk.
    """
    options = ["--arm", "vanilla", "--steps", "6", *quick]
    whole = replay("never-full", *options)
    disk, copy, cache, log = (tmp_path / name for name in ("disk", "copy", "cache", "log"))
    disk.mkdir()
    shutil.copytree(out / "cache", cache, ignore=shutil.ignore_patterns("*.tmp"))
    size = pages(cache) + pages(whole) // 2
    arguments = [str(disk), f"{4 * size}k", str(cache), str(copy), *options]
    code = processes.finish(processes.start(IN_A_SMALL_DISK, *arguments, log=log))
    if code == 77:
        pytest.skip("this machine gives no mount namespace for a small disk")
    first, _, after = log.read_text().partition("exit code ")
    assert after.startswith("2 "), log.read_text()
    (line,) = [line for line in first.splitlines() if line.startswith("probe: error: ")]
    assert "No space left on device" in line
    assert "Traceback" not in first
    assert code == 0, after
    assert "step_000.cos.jsonl.gz" in after, "the disk was full at another time"
    assert contents(copy) == contents(whole)


def pages(directory: Path) -> int:
    """Memory pages of 4 KiB that a tmpfs needs for it."""
    return sum(-(-path.stat().st_size // 4096) for path in directory.rglob("*") if path.is_file())


AT_WORK = """
import sys, time, click
from pathlib import Path
import probe.cli
from replay_pools.base.terminal import report
def work():
    report("steps", 1, 3)
    Path(sys.argv[1]).touch()
    print(end=" ", flush=True)
    time.sleep(60)
command = click.Command("probe", params=[click.Argument(["place"], expose_value=False)], callback=work)
probe.cli.cli = command
sys.exit(probe.cli.main())
"""
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def test_an_interrupted_terminal_is_left_as_it_was(tmp_path: Path) -> None:
    """Exit code 130, one line, the cursor visible again; tests/probe/runs/test_resume.py goes on with such a run."""
    keys = iter([b"\x03"])

    def ctrl_c() -> bytes:
        return next(keys, b"") if (tmp_path / "at-work").exists() else b""

    code, shown = on_a_terminal(["-c", AT_WORK, str(tmp_path / "at-work")], ENVIRONMENT, ctrl_c)
    assert code == 130
    assert shown.count("probe: interrupted; repeat the command to continue") == 1
    assert "Traceback" not in shown
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)
