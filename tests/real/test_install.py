"""From nothing, as a new user does: `pip install .` and every verb in an empty folder; `make demo`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
MOST_LINES = 40  # of `make demo`, with what pip and make say
VERBS = (
    "doctor",
    "extract --name v_hack",
    "replay --replay-dirs teacher,base --arm projected --steps 2 --name first",
    "replay --v-hack v_hack --steps 1 --name second",
    "analyze first --full",
    "report first",
    "show --json",
    "pool verify teacher",
    "docs check",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A fresh clone of what is in the working tree."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        target = tmp_path / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    return tmp_path / "tree"


def output(command: list[str], folder: Path) -> str:
    """What a command prints, which must succeed; outside of the make that may run the tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_installed_copy_works_in_an_empty_folder(tree: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    output([sys.executable, "-m", "venv", str(tmp_path / "venv")], here)
    output([str(tmp_path / "venv" / "bin" / "pip"), "install", "--quiet", str(tree)], here)
    for verb in VERBS:
        output([str(tmp_path / "venv" / "bin" / "probe"), *verb.split()], here)
    assert sorted(path.name for path in here.iterdir()) == ["out"]


def test_the_demo_fits_on_a_screen(tree: Path) -> None:
    """It ends with the verdict, and with the place of the page."""
    lines = output(["make", "demo"], tree).splitlines()
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert any(line.startswith("VERDICT: ") for line in lines)
    assert lines[-1].startswith("report out/reports/demo.html")
