"""What one isolated execution is asked to do, what it is given and what it leaves."""

from dataclasses import dataclass
from typing import Any, Literal

from replay_pools.grading.oracle import AnswerStream

MAX_CAPTURE = 1 << 16  # bytes kept of stdout and of a marker file


class InfrastructureError(RuntimeError):
    """An execution that says nothing about the submission: the worker could not start, confine itself or clean up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one execution treats a submission."""

    action: Literal["answer", "evaluate", "call_run_tests", "call_run_tests_on_stub", "drive"]
    module: str = "submission"  # its __name__; "__main__" runs it as a script
    read_stdout: bool = False
    read_file: bool = False  # the marker file, which every execution may write in its own directory
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What is executed: a submission and the inputs of its problem. No expected value."""

    setup: str
    source: str
    func_name: str
    inputs: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one execution left, read after its process tree was dead."""

    answers: AnswerStream
    timed_out: bool
    stdout: str  # "" unless read; at most MAX_CAPTURE bytes
    file: str  # "" unless read and a regular file; at most MAX_CAPTURE bytes
