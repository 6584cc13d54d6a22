"""`make demo` where something is missing, and how much it says."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A Debian without python3-venv makes the folder before it finds that ensurepip is missing.
NO_VENV = f"""#!/bin/sh
if [ "$1 $2" != "-m venv" ]; then exec {sys.executable} "$@"; fi
mkdir -p "$3/bin" && ln -s {sys.executable} "$3/bin/python"
echo "{{said}}"
exit 1
"""
DEBIAN = """The virtual environment was not created successfully because ensurepip is not
available.  On Debian/Ubuntu systems, you need to install the python3-venv package.

Failing command: .venv/bin/python"""


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`make ARGUMENTS` in a folder, outside of the make that may run the tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-C", str(folder), "--no-print-directory", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what make reads, and a Python that cannot make virtual environments."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (DEBIAN, "lacks ensurepip, without which nothing can be installed into .venv: apt install python3-venv"),
        ("Error: [Errno 28] No space left", "cannot make .venv: Error: [Errno 28] No space left"),
    ],
)
def test_what_a_virtual_environment_lacks_is_one_line(folder: Path, said: str, line: str) -> None:
    """And nothing half-made is left, which the next make would take for whole; what was there before stays."""
    python = folder / "python"
    python.write_text(NO_VENV.format(said=said))
    python.chmod(0o755)
    done = make(folder, "demo", f"PYTHON={python}")
    assert done.returncode == 2
    ours = [text for text in done.stderr.splitlines() if not text.startswith("make: ***")]
    assert len(ours) == 1
    assert line in ours[0]
    assert done.stdout == ""
    assert not (folder / ".venv").exists()
    (folder / ".venv").mkdir()
    (folder / ".venv" / "mine").touch()
    assert make(folder, "demo", f"PYTHON={python}").returncode == 2
    assert (folder / ".venv" / "mine").exists()


def test_what_a_marker_keeps_out_of_make_test_has_a_target() -> None:
    """Otherwise nobody would run it."""
    pytest_settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    markers = [line.partition(":")[0] for line in pytest_settings["markers"]]
    recipes = (ROOT / "Makefile").read_text()
    left_out = " and ".join(f"not {marker}" for marker in markers)
    assert f'-m "{left_out}"' in recipes
    assert [marker for marker in markers if not re.search(rf"^test-{marker}:.*\n.*-m {marker}$", recipes, re.M)] == []
    assert "--ignore=tests/bench" in pytest_settings["addopts"], "benchmarks are no tests"
