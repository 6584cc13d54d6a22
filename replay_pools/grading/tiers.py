"""The isolation ladder: which tiers this machine has, and which one a grader runs under.

A             bubblewrap namespaces around all of tier B (its Landlock part where the kernel has Landlock)
B             Landlock, seccomp, resource limits, as root another uid
unsafe-local  resource limits alone; only where nothing else is available, and only when asked for
"""

import sys

from replay_pools.errors import InputError
from replay_pools.grading import bubblewrap, landlock, seccomp

UNSAFE = "unsafe-local"


def available_tiers() -> dict[str, list[str]]:
    """Tier name -> what this machine lacks for it, in words; best tier first, [] for one that is available."""
    if not sys.platform.startswith("linux"):
        return {"A": ["Linux"], "B": ["Linux"]}
    filtering = [] if seccomp.seccomp_available() else ["seccomp"]
    return {
        "A": bubblewrap.lacking() + filtering,
        "B": ([] if landlock.landlock_abi() else ["Landlock"]) + filtering,
    }


def choose_tier(*, tier: str | None = None, unsafe_local: bool = False) -> str:
    """`tier` when this machine has it, by default the best that it has; "unsafe-local" where it has none.

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
