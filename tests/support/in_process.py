"""A launcher of sweeps that runs the real verbs in this process, where torch and the caches are warm."""

from collections.abc import Sequence
from pathlib import Path

from probe.cli import cli
from probe.cli._frame import run
from probe.experiments.sweep.launch import Attempt


class InProcess:
    """Runs one command after the other; records what was launched."""

    def __init__(self) -> None:
        self.launched: list[Sequence[str]] = []

    def __call__(self, args: Sequence[str], log: Path) -> Attempt:
        self.launched.append(args)
        return Attempt(returncode=run(cli, list(args)), seconds=0.0, error="")

    def stop(self) -> None:
        """Nothing is left that runs."""
