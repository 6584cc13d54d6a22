"""The isolation tiers: which ones this machine can provide, and which one a grader uses.

A             bubblewrap namespaces around all of tier B (its Landlock part where the kernel has Landlock)
B             Landlock, seccomp, resource limits and, as root, another uid
unsafe-local  resource limits alone; only where A and B are missing, and only when the user asks for it

To add a tier: add its row to `available_tiers`, better tiers first, and its steps to `sandbox.Confinement.prepare` and
`executor.Worker`.
"""

import sys

from replay_pools.errors import InputError
from replay_pools.grading import bubblewrap, folders, landlock, seccomp
from replay_pools.rollout import UNSAFE

CHANGES = {  # beside tier A
    "B": "the same labels, but no namespaces around submissions",
    UNSAFE: "nothing but limits around submissions, which may write their own labels",
}


def available_tiers() -> dict[str, list[str]]:
    """What this machine lacks for each tier: {"A": [...], "B": [...]}, best first, [] for an available tier."""
    if not sys.platform.startswith("linux"):
        return {"A": ["Linux"], "B": ["Linux"]}
    lacks_seccomp = [] if seccomp.seccomp_available() else ["seccomp"]
    lacks_landlock = [] if landlock.landlock_abi() else ["Landlock"]
    lacks_library = []
    if folder := folders.closed_folder():
        lacks_library = [f"a folder for temporary files that other users can enter ({folder} is closed: set TMPDIR)"]
    return {"A": bubblewrap.lacking() + lacks_seccomp, "B": lacks_landlock + lacks_seccomp + lacks_library}


def describe_tier(tier: str) -> str:
    """The tier that grades, and where it is not the best one, why, and what that changes."""
    if tier == "A":
        return "isolation A"
    lacking = ", ".join(available_tiers()["A"])
    return f"isolation {tier}" + (f" (A lacks {lacking}; {CHANGES[tier]})" if lacking else f" ({CHANGES[tier]})")


def choose_tier(*, tier: str | None = None, unsafe_local: bool = False) -> str:
    """The tier to grade under.

    Args:
        tier: "A" or "B" to insist on it; None for the best that is available.
        unsafe_local: without a tier to insist on, accept "unsafe-local" where neither A nor B is available.

    Raises:
        InputError: the tier that was asked for is not available, or none is and `unsafe_local` is False.
    """
    lacks = available_tiers()
    if tier is not None and tier not in lacks:
        raise InputError("grader isolation", expected=" or ".join(lacks), found=tier)
    for name, lacking in lacks.items():
        if tier in (None, name) and not lacking:
            return name
    if tier is not None:
        raise InputError(
            "grader isolation",
            expected=f"all that tier {tier} needs",
            found=f"lacking: {', '.join(lacks[tier])}",
            fix="install or enable that, or let the best available tier be chosen",
        )
    if unsafe_local:
        return UNSAFE
    raise InputError(
        "grader isolation",
        expected="bubblewrap or Landlock, and seccomp, to confine model-written code",
        found="; ".join(f"tier {name} lacks {', '.join(lacking)}" for name, lacking in lacks.items()),
        fix="install bubblewrap, use a Linux kernel >= 5.13 with Landlock, or accept the risk with --unsafe-local",
    )
