"""An engine of sweeps that runs the real verbs in this process, where torch and the caches are warm."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from probe.cli import cli
from probe.cli._frame import run


@dataclass
class Ended:
    """A job of submitit that is over."""

    code: int
    text: str = ""
    cancelled: bool = False

    @property
    def paths(self) -> Any:
        return SimpleNamespace(stdout="the log")

    def done(self) -> bool:
        return True

    @property
    def state(self) -> str:
        return "FINISHED"

    def result(self) -> int:
        return self.code

    def stdout(self) -> str:
        return self.text

    def cancel(self, *, check: bool = True) -> None:
        self.cancelled = True


class InProcess:
    """Runs one command after the other; records what was launched."""

    def __init__(self) -> None:
        self.launched: list[Sequence[str]] = []

    def submit(self, function: object, command: Sequence[str]) -> Ended:
        self.launched.append(command)
        assert command[1:3] == ["-m", "probe"]
        return Ended(run(cli, [*command[3:]]))
