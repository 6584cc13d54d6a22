"""The corpus of attacks on the grader, and the sources that ask the kernel for what it must refuse."""

import errno
import platform
import tomllib
from pathlib import Path
from typing import Any

from replay_pools.environments.base import Case, Problem
from replay_pools.grading import wire

CORPUS = tomllib.loads((Path(__file__).parents[1] / "replay_pools" / "grading" / "attacks.toml").read_text())
REFUSED = """
import ctypes, os, resource, signal, socket, time
HOST_FILE, null = {host_file!r}, None
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    function = getattr(libc, name)
    if function(*(ctypes.c_long(a) if type(a) is int else a for a in arguments)) < 0:
        raise OSError(ctypes.get_errno(), name)
class Solution:
    def f(self, statement, accepted):
        try: exec(statement, globals())
        except OSError as error: return "refused" if error.errno in accepted else error.errno
        return "done"
"""
ECHO = "class Solution:\n    def f(self, x):\n        return x\n"
SOURCE = REFUSED.format(host_file=__file__)
TOGETHER = 12  # refusals that one submission asks for: what is refused changes nothing for the next


def refusals() -> list[dict[str, Any]]:
    """The rows of the corpus that are refusals on this machine."""
    return [row for row in CORPUS["refusals"] if row.get("machine", platform.machine()) == platform.machine()]


def refusal_cases(rows: list[dict[str, Any]]) -> list[list[tuple[str, list[int]]]]:
    """Arguments of the method in SOURCE, which then returns "refused": by submission, (statement, accepted errnos)."""
    asked = []
    for row in rows:
        # Namespaces hide files, or make them read-only.
        hidden = ["ENOENT", "EROFS"] if row["expected"] == "EACCES" else []
        asked.append((row["statement"], [int(getattr(errno, name)) for name in (row["expected"], *hidden)]))
    return [asked[i : i + TOGETHER] for i in range(0, len(asked), TOGETHER)]


def job(source: str, *inputs: tuple[Any, ...], **fields: Any) -> dict[str, Any]:
    """What a worker is sent (`executor.Worker.execute`): a submission whose method f is called on the inputs."""
    asked = {"action": "answer", "module": "submission", "setup": "", "source": source, "func_name": "f"}
    return asked | {"inputs": [wire.encode(list(each)) for each in inputs], "listed": [False] * len(inputs)} | fields


def problem(problem_id: str, cases: list[tuple[tuple[Any, ...], Any]], canonical: str = ECHO) -> Problem:
    """A problem of the environment `test` whose method f has these (arguments, expected value)."""
    fields = {"messages": (), "func_name": "f", "setup_code": "from typing import *"}
    tests = tuple(Case(args=args, expected=expected) for args, expected in cases)
    starter = "class Solution:\n    def f(self, x):"
    return Problem(problem_id=problem_id, env="test", starter=starter, canonical=canonical, cases=tests, **fields)
