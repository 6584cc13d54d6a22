"""The records of one isolated execution: `Execution` (the request), `Code` (its input), `Outcome`."""

from dataclasses import dataclass
from typing import Any

from replay_pools.grading.oracle import AnswerStream

MAX_CAPTURE = 1 << 16  # bytes kept of stdout and of a marker file


class InfrastructureError(RuntimeError):
    """An execution that says nothing about the submission: the worker could not start, confine itself or clean up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How one execution treats a submission."""

    action: str  # a key of `actions.ACTIONS`
    module: str = "submission"  # __name__ of the submission's module; "__main__" runs it as a script
    read_stdout: bool = False
    read_file: bool = False  # the marker file, which every execution may write in its own directory
    decoys: tuple[tuple[Any, ...], ...] = ()  # for `compare`: per input, values that no honest answer equals at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A submission and the inputs of its problem; no expected value."""

    setup: str  # source that runs before the submission, such as imports
    source: str  # the submission
    func_name: str  # method of class Solution
    inputs: tuple[tuple[Any, ...], ...]  # the arguments of each call
    listed: tuple[bool, ...] = ()  # per input: the answer is `list` of the returned value; () = never


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The remains of one execution, read after all its processes were dead."""

    answers: AnswerStream
    timed_out: bool  # it used up its CPU seconds, or slept (see `executor`)
    cpu_s: float  # CPU seconds of the submission's process, all threads, in steps of a millisecond
    exit_status: int | None  # of a submission's process that ended by itself; None when it was killed
    stdout: str  # "" unless read; at most MAX_CAPTURE bytes
    file: str  # the marker file; "" unless read and a regular file; at most MAX_CAPTURE bytes
