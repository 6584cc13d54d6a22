"""The software that made a file: package versions, and the commit of this package."""

import shutil
import subprocess
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("gradient-probe", "torch", "transformers", "peft")


@lru_cache  # every pool and every start of a run asks
def versions() -> dict[str, str]:
    """Return {package: installed version} of PACKAGES."""
    return {name: version(name) for name in PACKAGES}


@lru_cache
def git_commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None outside a checkout."""
    # A package installed below another project's checkout is not part of it.
    if git("ls-files", "--error-unmatch", str(Path(__file__).resolve())) is None:
        return None
    return git("rev-parse", "HEAD")


def git(*arguments: str) -> str | None:
    """Return git's output in this package's folder; None if it fails or is not installed."""
    if shutil.which("git") is None:
        return None
    folder = Path(__file__).resolve().parent
    answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
