"""A folder that cannot be written, a terminal that interrupts: one line."""

import os
from pathlib import Path

import pytest
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
