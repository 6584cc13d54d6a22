"""The system calls of honest code under the filter, by strace: `python tests/bench/trace_calls.py`.

Runs all of `honest.py` and the canonical solutions of minicode in tier B with the Python that runs this script, and
prints what the filter refused (libc's fallbacks and what is harmless to refuse), what it permitted, and which
permissions nothing used. Not part of `make bench`; to be run after a change of the tables of `seccomp.py`, and with a
new version of Python.
"""

import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]  # for interpreters that this project is not installed in

import honest  # noqa: E402

from replay_pools.environments.registry import get_environment  # noqa: E402
from replay_pools.grading import sandbox, seccomp  # noqa: E402
from replay_pools.grading.grade import Grader  # noqa: E402

# "1234 read(3, ...) = 0", and the two halves of a call that another process interrupted
CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*?)(?:= (-?\d+|0x[0-9a-f]+|\?)(?: (E\w+))?.*)?$")
INSTALLED = "PR_SET_SECCOMP"


def trace(folder: Path) -> dict[str, str]:
    """Run the honest corpus with every worker under strace, its output in `folder`; returns what failed."""
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec strace -f -qq -o {folder}/$$.trace {sandbox.INTERPRETER} "$@"\n')
    wrapper.chmod(0o755)
    asked = [*honest.problems(honest.library_modules()), *get_environment("minicode").problems("eval")]
    sandbox.INTERPRETER = str(wrapper)
    # Tracing makes code slow, so that the limit is not to matter.
    with Grader(tier="B", workers=2, cpu_s=60) as grader:
        return honest.refused(grader.grade, asked)


def count(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Calls by name, permitted and refused (with their arguments), of the processes that installed a filter."""
    permitted, refused = Counter(), Counter()
    for path in folder.glob("*.trace"):
        filtered: set[str] = set()
        for line in path.read_text(errors="replace").splitlines():
            if not (match := CALL.match(line)):
                continue
            pid, name, rest, result, error = match.groups()
            if INSTALLED in rest:
                filtered.add(pid)
            elif pid in filtered:
                if name == "clone" and result and result.isdigit():
                    filtered.add(result)  # a thread
                if error in ("EPERM", "ENOSYS"):
                    refused[f"{name}({rest[:60].strip()} {error}"] += 1
                else:
                    permitted[name] += 1
    return permitted, refused


def main() -> None:
    if shutil.which("strace") is None:
        sys.exit("trace_calls: expected strace on PATH, found none; apt-get install strace")
    with tempfile.TemporaryDirectory() as name:
        failures = trace(Path(name))
        permitted, refused = count(Path(name))
    for what, error in failures.items():
        print(f"FAILED {what}: {error}")
    print(f"Python {sys.version.split()[0]}: {len(permitted)} calls used:", *sorted(permitted))
    for call, times in refused.most_common():
        print(f"refused {times:6} {call}")
    print("permitted and not used:", *sorted({*seccomp._PERMITTED, *seccomp._CONDITIONAL} - permitted.keys()))


if __name__ == "__main__":
    main()
