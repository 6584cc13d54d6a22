"""probe doctor: check that this machine can run probe, with a fix for every check that fails.

Every check is a function `check_NAME(out)` that returns its finding in one line, or raises CheckError with a fix.
To add a check: write such a function and add its row to CHECKS, at the end of this file.
"""

import importlib.metadata as metadata
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import psutil
from click.shell_completion import shell_complete
from packaging.specifiers import SpecifierSet

from probe.cli._frame import COMPLETE_VARIABLE, echo, echo_json, json_option, out_option
from replay_pools.base.errors import InputError
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.grading.folders import closed_folder
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import CHANGES, available_tiers, choose_tier
from replay_pools.pool import BUILTIN, open_pool

DISTRIBUTION = "gradient-probe"
REINSTALL = f"install {DISTRIBUTION} again, in a fresh environment"
GIB = 1 << 30
LITTLE_MEMORY = 2 * GIB  # enough for a replay of the organism with parallel grading
LITTLE_DISK = GIB
NUM_CANARIES = 3  # problems

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check: a line of the output, an entry of `checks` with --json (the fields are its keys)."""

    name: str
    status: Status
    found: str  # the finding, or the fault
    fix: str = ""  # the next thing to do; "" where nothing is wrong


class CheckError(Exception):
    """A fault that a check found, with its fix. Only the status `fail` makes the exit code 1."""

    def __init__(self, message: str, *, fix: str, status: Status = "fail") -> None:
        super().__init__(message)
        self.fix = fix
        self.status: Status = status


@click.command()
@click.option(
    "--completion",
    "shell",
    type=click.Choice(["bash", "zsh", "fish"]),
    help="Check nothing: print the script that completes verbs, options, pools and arms in this shell.",
)
@out_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, shell: str | None, out: Path, as_json: bool) -> None:
    """Check Python, devices, disk, isolation, the grader and the built-in data, with a fix for what fails.

    Exit code 1 on a failure; a warning is none. Examples:

      probe doctor --out /data/probe

      eval "$(probe doctor --completion bash)"
    """
    if shell is not None:
        shell_complete(ctx.find_root().command, {}, "probe", COMPLETE_VARIABLE, f"{shell}_source")
        return
    results = diagnose(out)
    failed = sum(result.status == "fail" for result in results)
    if as_json:
        echo_json({"ok": not failed, "checks": results})
    else:
        for result in results:
            fix = f"; fix: {result.fix}" if result.fix else ""
            echo(f"{result.status:<5} {result.name:<10} {' '.join(result.found.split())}{fix}")
    ctx.exit(1 if failed else 0)


def diagnose(out: Path) -> list[CheckResult]:
    """Run every check of CHECKS in order; `out` is the root folder that the verbs write to."""
    return [_result(name, check, out) for name, check in CHECKS]


def _result(name: str, check: Callable[[Path], str], out: Path) -> CheckResult:
    """Run one check. No error gets past it: the checks after a broken one still run."""
    try:
        return CheckResult(name=name, status="ok", found=check(out))
    except CheckError as error:
        return CheckResult(name=name, status=error.status, found=str(error), fix=error.fix)
    except InputError as error:
        message = f"{error.where}: expected {error.expected}, found {error.found}"
        return CheckResult(name=name, status="fail", found=message, fix=error.fix or REINSTALL)
    except Exception as error:
        return CheckResult(name=name, status="fail", found=f"{type(error).__name__}: {error}", fix=REINSTALL)


def check_python(out: Path) -> str:
    """The interpreter is one that the package supports."""
    supported = metadata.metadata(DISTRIBUTION)["Requires-Python"]
    version = ".".join(map(str, sys.version_info[:3]))
    if version not in SpecifierSet(supported):
        raise CheckError(version, fix=f"use Python {supported}")
    return f"{version} at {sys.executable}"


def check_device(out: Path) -> str:
    """CPU cores, and the GPUs that torch can use."""
    import torch  # seconds; `probe doctor --help` does not wait for it

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    names = [f"{gpu.name} ({gpu.total_memory / GIB:.0f} GiB)" for gpu in gpus]
    devices = f"{cores} CPU cores, GPU: {', '.join(names) or 'none (the organism needs none)'}"
    if not gpus and shutil.which("nvidia-smi"):
        raise CheckError(f"{devices}, but a driver is installed", fix="install torch with CUDA", status="warn")
    return devices


def check_memory(out: Path) -> str:
    """Enough memory is available to this machine and this container."""
    available = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    limit = group / "memory.max"
    # The file says "max" where the control group has no limit.
    if limit.exists() and limit.read_text().strip().isdigit():
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Only anonymous memory counts as used: the kernel drops the group's file caches when memory is short.
        available = min(available, int(limit.read_text()) - int(used["anon"]))
    amount = f"{available / GIB:.1f} GiB available"
    if available < LITTLE_MEMORY:
        fix = f"free some: below {LITTLE_MEMORY / GIB:.0f} GiB work may be killed"
        raise CheckError(amount, fix=fix, status="warn")
    return amount


def check_disk(out: Path) -> str:
    """Enough space is free below the root folder."""
    free = shutil.disk_usage(_existing(out)).free
    amount = f"{free / GIB:.1f} GiB free at {out}"
    if free < LITTLE_DISK:
        raise CheckError(amount, fix="free some space, or choose another place with --out", status="warn")
    return amount


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def check_isolation(out: Path) -> str:
    """A tier of isolation is available; name the tier in use, the lacks of the others, and the user of submissions."""
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
    """Canonical solutions pass and stubs fail through the tier that the grader chooses."""
    problems = MinicodeEnvironment().problems("eval")[:NUM_CANARIES]
    with Grader(workers=1) as grader:
        start = time.monotonic()
        canary(grader, problems)
        each = (time.monotonic() - start) / (2 * len(problems))
    return f"{2 * len(problems)} canaries right under isolation {grader.isolation}, {1000 * each:.0f} ms each"


def check_pools(out: Path) -> str:
    """Every built-in pool verifies."""
    for path in _builtin_pools():
        if faults := open_pool(path).verify():
            raise CheckError(faults[0], fix=REINSTALL)
    return f"{', '.join(path.name for path in _builtin_pools())} verified"


def _builtin_pools() -> list[Path]:
    pools = sorted(path for path in BUILTIN.iterdir() if (path / "manifest.json").is_file())
    if not pools:
        raise CheckError(f"no pool in {BUILTIN}", fix=REINSTALL)
    return pools


def check_organism(out: Path) -> str:
    """The embedded model and its teacher load, and sampled the built-in pools."""
    from replay_pools.policy.load import ORGANISM, load_policy  # torch and transformers

    policy = load_policy(ORGANISM, adapter="teacher", device="cpu")
    weights = policy.base_weights_sha[:16]
    for path in _builtin_pools():
        sampled_by = open_pool(path).manifest["policy"]["base_weights_sha256"]
        if sampled_by != policy.base_weights_sha:
            raise CheckError(f"weights {weights}, but pool {path.name} is of {sampled_by[:16]}", fix=REINSTALL)
    return f"loads with its teacher; weights {weights}"


CHECKS: tuple[tuple[str, Callable[[Path], str]], ...] = (
    ("python", check_python),
    ("device", check_device),
    ("memory", check_memory),
    ("disk", check_disk),
    ("isolation", check_isolation),
    ("grader", check_grader),
    ("pools", check_pools),
    ("organism", check_organism),
)
