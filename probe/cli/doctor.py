"""probe doctor: check that this machine can run probe, with a fix for every failed check.

Every check is a function `check_NAME(out)` that returns one line, or raises an InputError. To add a check, write such a
function and add it to CHECKS at the end of this file.
"""

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from probe.cli._frame import Checked, Text
from probe.cli._settings import verb
from replay_pools.base.errors import InputError
from replay_pools.environments.registry import get_environment
from replay_pools.grading.folders import closed_folder
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import CHANGES, available_tiers, choose_tier
from replay_pools.pool import BUILTIN, open_pool

REINSTALL = "install gradient-probe again, in a fresh environment"
GIB = 1 << 30
NUM_CANARIES = 3  # problems


@verb()
def doctor(out: Path) -> Text:
    """Check Python, devices, isolation, the grader and the built-in data, with a fix for what fails.

    Exit code 1 on a failure. Completion in the shell is click's: eval "$(_PROBE_COMPLETE=bash_source probe)". Example:

      probe doctor --out /data/probe
    """
    results = diagnose(out)
    failed = any(row["status"] == "fail" for row in results)
    for row in results:
        fix = f"; fix: {row['fix']}" if row["fix"] else ""
        yield f"{row['status']:<5} {row['name']:<10} {' '.join(row['found'].split())}{fix}"
    return Checked({"ok": not failed, "checks": results}, failed)


def diagnose(out: Path) -> list[dict[str, str]]:
    """Run every check of CHECKS; return its name, `status` (ok, fail), what was found, and a fix ("" for ok)."""
    rows = []
    for name, check in CHECKS.items():
        status, fix = "ok", ""
        try:
            found = check(out)
        except InputError as error:
            status, fix = "fail", error.fix or REINSTALL
            found = f"{error.where}: expected {error.expected}, found {error.found}"
        except Exception as error:  # later checks still run
            status, found, fix = "fail", f"{type(error).__name__}: {error}", REINSTALL
        rows.append({"name": name, "status": status, "found": found, "fix": fix})
    return rows


def check_device(out: Path) -> str:
    """Report Python, CPU cores, and the GPUs that torch can use."""
    import torch  # takes seconds, too slow for `probe doctor --help`

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    names = [f"{gpu.name} ({gpu.total_memory / GIB:.0f} GiB)" for gpu in gpus]
    devices = f"{cores} CPU cores, GPU: {', '.join(names) or 'none (the organism needs none)'}"
    devices += f"; Python {platform.python_version()} at {sys.executable}"
    if not gpus and shutil.which("nvidia-smi"):
        devices += "; a GPU's driver is installed: install torch with CUDA to use it"
    return devices


def check_isolation(out: Path) -> str:
    """Check that an isolation tier is available; report it, what the others lack, and the user of submissions."""
    chosen = choose_tier()
    states = []
    for tier, lacking in available_tiers().items():
        states.append(f"tier {tier} lacks {', '.join(lacking)}" if lacking else f"tier {tier} available")
    changes = f": {CHANGES[chosen]}" if chosen in CHANGES else ""
    is_root = os.geteuid() == 0
    user = f"submissions run as {'another' if is_root else 'this'} user"
    if chosen == "B" and is_root and (closed := closed_folder()):
        user += f" with a copy of Python's library, since {closed} is closed to other users"
    return "; ".join([*states, f"tier {chosen} is used{changes}", user])


def check_grader(out: Path) -> str:
    """Check that canonical solutions pass and stubs fail in the grader's isolation tier."""
    problems = get_environment("minicode").problems("eval")[:NUM_CANARIES]
    with Grader(workers=1) as grader:
        start = time.monotonic()
        canary(grader, problems)
        each = (time.monotonic() - start) / (2 * len(problems))
    return f"{2 * len(problems)} canaries right under isolation {grader.isolation}, {1000 * each:.0f} ms each"


def check_pools(out: Path) -> str:
    """Verify every built-in pool."""
    pools = sorted(path for path in BUILTIN.iterdir() if (path / "manifest.json").is_file())
    if not pools:
        raise InputError(BUILTIN, expected="the built-in pools", found="no pool")
    for path in pools:
        if faults := open_pool(path).verify():
            raise InputError(path, expected="a sound pool", found=faults[0])
    return f"{', '.join(path.name for path in pools)} verified"


def check_organism(out: Path) -> str:
    """Check that the bundled model and its hacking policy load."""
    from replay_pools.policy.load import ORGANISM, load_policy  # torch and transformers

    policy = load_policy(ORGANISM, adapter="teacher", device="cpu")
    return f"loads with its teacher; weights {policy.base_weights_sha[:16]}"


CHECKS: dict[str, Callable[[Path], str]] = {
    "device": check_device,
    "isolation": check_isolation,
    "grader": check_grader,
    "pools": check_pools,
    "organism": check_organism,
}
