"""The folder of a grader: its workers write there, and its submissions may read a copy of Python's library there."""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from replay_pools.grading.sandbox import FOREIGN

# Installed packages, and what takes half of the space of a library: its tests, and files for a C compiler.
_LEFT_OUT = (*FOREIGN, "test", "tests", "config-*", "*.a", "*.opt-?.pyc")


def passable_folder(directory: Path | None = None) -> Path:
    """Make a temporary folder that every user may pass through and only this one may list."""
    path = Path(tempfile.mkdtemp(prefix="probe-grader-", dir=directory))
    path.chmod(0o711)
    return path


def closed_folder() -> Path | None:
    """Return a folder above Python's library that keeps other users out, such as /root; None without one."""
    return next((folder for folder in (_library(), *_library().parents) if not folder.stat().st_mode & 0o001), None)


def copied_library(directory: Path) -> Path:
    """Copy the library to a prefix (PYTHONHOME) in `directory`, where every user can read it.

    In tier B a submission of root becomes another user, which has no way to a library below a closed folder.
    """
    library, prefix = _library(), directory / "python"
    ignored = shutil.ignore_patterns(*_LEFT_OUT)
    # With the times of the files, or Python would not trust the compiled ones among them.
    shutil.copytree(library, prefix / sys.platlibdir / library.name, ignore=ignored, ignore_dangling_symlinks=True)
    # Neither the umask of this process nor the modes of the library matter.
    for folder, _, names in os.walk(prefix):
        Path(folder).chmod(0o755)
        for name in names:
            Path(folder, name).chmod(0o644)
    return prefix


def _library() -> Path:
    """Return the folder of the library's modules, also in a virtual environment the base interpreter's."""
    return Path(sysconfig.get_path("stdlib")).resolve()
