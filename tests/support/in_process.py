"""Engines of sweeps: the real verbs in this process, where torch and the caches are warm, or none at all."""

from collections.abc import Callable, Sequence
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


class Scripted:
    """Calls `act` with the name of each run, which leaves what it wants on disk and returns the exit code."""

    def __init__(self, act: Callable[[str], int]) -> None:
        self.act = act
        self.launched: list[str] = []
        self.jobs: list[Ended] = []
        self.gpus: list[str | None] = []

    def submit(self, function: object, command: Sequence[str]) -> Ended:
        self.gpus.append(command[1].partition("=")[2] if command[0] == "env" else None)
        self.launched.append(command[command.index("--name") + 1])
        code = self.act(self.launched[-1])
        self.jobs.append(Ended(code, f"working\nprobe: error: ended with {code}\nsubmitit INFO - done"))
        return self.jobs[-1]
