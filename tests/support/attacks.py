"""The corpus of attacks on the grader, and the sources that ask the kernel for what it must refuse."""

import errno
import platform
import tomllib
from pathlib import Path
from typing import Any

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
    def f(self):
        try: {statement}
        except OSError as error: return error.errno if error.errno not in {accepted} else "refused"
        return "done"
"""


def refusals() -> list[tuple[dict[str, Any], str]]:
    """(row of the corpus, source whose method returns "refused") of each refusal on this machine."""
    found = []
    for row in CORPUS["refusals"]:
        # Namespaces hide files, or make them read-only.
        hidden = ["ENOENT", "EROFS"] if row["expected"] == "EACCES" else []
        accepted = [int(getattr(errno, name)) for name in (row["expected"], *hidden)]
        source = REFUSED.format(statement=row["statement"], host_file=__file__, accepted=accepted)
        if row.get("machine", platform.machine()) == platform.machine():
            found.append((row, source))
    return found
