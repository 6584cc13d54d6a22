"""Checks of this machine and installation, one row each: what was found, and what to do where it will not do."""

import importlib.metadata as metadata
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import mock

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.errors import InputError
from replay_pools.files import write_atomic
from replay_pools.grading.grade import Grader, canary
from replay_pools.grading.tiers import available_tiers, choose_tier
from replay_pools.pool import BUILTIN, open_pool

DISTRIBUTION = "gradient-probe"
REINSTALL = f"install {DISTRIBUTION} again, in a fresh environment"
GIB = 1 << 30
LITTLE_MEMORY = 2 * GIB  # a replay of the organism with grading beside it fits
LITTLE_DISK = GIB
NUM_CANARIES = 3  # problems

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says."""

    name: str
    status: Status
    found: str
    fix: str = ""  # the next thing to do; "" where nothing is wrong


class CheckError(Exception):
    """Raised by a check: what is wrong and what to do."""

    def __init__(self, found: str, *, fix: str, status: Status = "fail") -> None:
        super().__init__(found)
        self.fix = fix
        self.status: Status = status


def diagnose(out: Path) -> list[Finding]:
    """Run every check; `out` is the root folder that verbs write to."""
    return [_finding(name, check, out) for name, check in CHECKS]


def _finding(name: str, check: Callable[[Path], str], out: Path) -> Finding:
    """The outcome of one check; no error gets past it, since the checks after it are wanted as well."""
    try:
        return Finding(name=name, status="ok", found=check(out))
    except CheckError as error:
        return Finding(name=name, status=error.status, found=str(error), fix=error.fix)
    except InputError as error:
        found = f"{error.where}: expected {error.expected}, found {error.found}"
        return Finding(name=name, status="fail", found=found, fix=error.fix or REINSTALL)
    except Exception as error:
        return Finding(name=name, status="fail", found=f"{type(error).__name__}: {error}", fix=REINSTALL)


def check_python(out: Path) -> str:
    """The interpreter is one that the package supports."""
    supported = metadata.metadata(DISTRIBUTION)["Requires-Python"]
    version = ".".join(map(str, sys.version_info[:3]))
    if version not in SpecifierSet(supported):
        raise CheckError(version, fix=f"use Python {supported}")
    return f"{version} at {sys.executable}"


def check_packages(out: Path) -> str:
    """Every required package is there in a version within its pins."""
    pins = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    pins = [pin for pin in pins if pin.marker is None]  # a marker: an extra, or not this platform's
    found = {pin.name: _version(pin.name) for pin in pins}
    if wrong := [pin for pin in pins if not _fits(found[pin.name], pin.specifier)]:
        texts = [f"{pin.name} {found[pin.name] or 'missing'} (needs {pin.specifier})" for pin in wrong]
        raise CheckError(", ".join(texts), fix="pip install " + " ".join(f"'{pin}'" for pin in wrong))
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fits(version: str | None, pins: SpecifierSet) -> bool:
    return version is not None and pins.contains(version, prereleases=True)


def check_device(out: Path) -> str:
    """CPU cores, and the GPUs that torch can use."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    names = [f"{gpu.name} ({gpu.total_memory / GIB:.0f} GiB)" for gpu in gpus]
    found = f"{cores} CPU cores, GPU: {', '.join(names) or 'none (the organism needs none)'}"
    if not gpus and shutil.which("nvidia-smi"):
        raise CheckError(f"{found}, but a driver is installed", fix="install torch with CUDA", status="warn")
    return found


def check_memory(out: Path) -> str:
    """Memory that is available, to this machine and to this container."""
    available = _available_memory()
    found = f"{available / GIB:.1f} GiB available"
    if available < LITTLE_MEMORY:
        raise CheckError(found, fix=f"free some: below {LITTLE_MEMORY / GIB:.0f} GiB work may be killed", status="warn")
    return found


def _available_memory() -> int:
    """Bytes: the least of what the kernel calls available and what the control group leaves (Linux), else all."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = dict(line.split(":") for line in meminfo.read_text().splitlines())
    amounts = [int(rows["MemAvailable"].split()[0]) << 10]
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.stat"))
    if limit.exists() and limit.read_text().strip().isdigit():  # "max": no limit
        anonymous = dict(line.split() for line in used.read_text().splitlines())["anon"]  # caches can be dropped
        amounts.append(int(limit.read_text()) - int(anonymous))
    return min(amounts)


def check_disk(out: Path) -> str:
    """Free space below the root folder."""
    free = shutil.disk_usage(_existing(out)).free
    found = f"{free / GIB:.1f} GiB free at {out}"
    if free < LITTLE_DISK:
        raise CheckError(found, fix="free some space, or choose another place with --out", status="warn")
    return found


def check_files(out: Path) -> str:
    """`out` and `out/cache` can be written, and a file is replaced whole; nothing is left behind."""
    for place in (out, out / "cache"):
        try:
            with tempfile.TemporaryDirectory(prefix=".doctor-", dir=_existing(place)) as directory:
                path = Path(directory) / "file"
                write_atomic(path, b"old")
                write_atomic(path, b"new")
                if path.read_bytes() != b"new" or len(list(path.parent.iterdir())) != 1:
                    raise OSError("a renamed file does not replace the old one")
        except OSError as error:
            raise CheckError(f"{place}: {error.strerror or error}", fix="choose a writable place with --out") from error
    return f"{out} and {out / 'cache'} are writable, files are replaced whole"


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def check_isolation(out: Path) -> str:
    """A tier of isolation is available: which one is chosen, and what the others lack."""
    chosen, tiers = choose_tier(), available_tiers().items()
    states = [f"tier {tier} " + (f"lacks {', '.join(lacking)}" if lacking else "available") for tier, lacking in tiers]
    return "; ".join([*states, f"tier {chosen} is used"])


def check_grader(out: Path) -> str:
    """Canonical solutions pass and stubs fail through the tier that the grader chooses."""
    problems = MinicodeEnvironment().problems("eval")[:NUM_CANARIES]
    with Grader(workers=1) as grader:
        start = time.monotonic()
        canary(grader, problems)
        each = (time.monotonic() - start) / (2 * len(problems))
    return f"{2 * len(problems)} canaries right under isolation {grader.isolation}, {1000 * each:.0f} ms each"


def check_organism(out: Path) -> str:
    """The embedded model and its teacher load while every connection is refused, and sampled the built-in pools."""
    from replay_pools.policy import ORGANISM, load_policy

    refusal = OSError("the network is blocked by this check")
    with (
        mock.patch.object(socket, "getaddrinfo", side_effect=refusal) as lookup,
        mock.patch.object(socket.socket, "connect", side_effect=refusal) as connect,
    ):
        policy = load_policy(ORGANISM, adapter="teacher", device="cpu")
    if lookup.called or connect.called:
        raise CheckError("loading the organism tried to reach the network", fix=REINSTALL)
    for path in _builtin_pools():
        sampled_by = open_pool(path).manifest["policy"]["base_weights_sha256"]
        if sampled_by != policy.base_weights_sha:
            found = f"weights {policy.base_weights_sha[:16]}, but pool {path.name} is of {sampled_by[:16]}"
            raise CheckError(found, fix=REINSTALL)
    return f"loads without network, with its teacher; weights {policy.base_weights_sha[:16]}"


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


CHECKS: tuple[tuple[str, Callable[[Path], str]], ...] = (
    ("python", check_python),
    ("packages", check_packages),
    ("device", check_device),
    ("memory", check_memory),
    ("disk", check_disk),
    ("files", check_files),
    ("isolation", check_isolation),
    ("grader", check_grader),
    ("pools", check_pools),
    ("organism", check_organism),
)
