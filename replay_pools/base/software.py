"""What made a file: versions of the packages behind it, and the commit of this one."""

import shutil
import subprocess
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("gradient-probe", "torch", "transformers", "peft")
FOLDERS = ("probe", "extraction", "replay_pools")  # of this package, beside this one


@lru_cache  # every pool and every start of a run names its versions
def versions() -> dict[str, str]:
    """{package: installed version} of PACKAGES."""
    return {name: version(name) for name in PACKAGES}


@lru_cache
def git_commit() -> str | None:
    """The commit of the checkout that this package runs from; None outside one."""
    # A package that is installed below somebody else's checkout is not part of it.
    if _git("ls-files", "--error-unmatch", str(Path(__file__).resolve())) is None:
        return None
    return _git("rev-parse", "HEAD")


def is_edited() -> bool | None:
    """Whether the code of the checkout differs from its commit; None outside a checkout."""
    if git_commit() is None:
        return None
    root = Path(__file__).resolve().parents[2]
    return _git("status", "--porcelain", "--", *(str(root / name) for name in FOLDERS)) != ""


def _git(*arguments: str) -> str | None:
    """What git prints in this package's folder; None where it fails or is not installed."""
    if shutil.which("git") is None:
        return None
    folder = Path(__file__).resolve().parent
    answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
