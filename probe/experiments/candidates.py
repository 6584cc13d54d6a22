"""Read the remedies of `probe screen --remedies FILE` from the conditions of a spec."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from probe.experiments.spec import SpecCondition
from probe.settings.remedy import LENGTH, TRAINED_ARMS, TRAINING_STEPS, arm_of
from replay_pools.base.errors import InputError
from replay_pools.base.tables import decode, flat, read_toml

PLAIN_ARM = "vanilla"


class _Conditions(BaseModel):
    """The conditions of a spec; other tables are ignored."""

    conditions: tuple[SpecCondition, ...] = ()
    arms: tuple[str, ...] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)


def read_candidates(path: Path) -> dict[str, dict[str, Any]]:
    """Return {remedy: settings}, one for each arm of each condition in a TOML file, except plain vanilla.

    A condition that changes the loss keeps the shared loss settings. One that changes the number of steps scales
    TRAINING_STEPS by the same factor.

    Raises:
        InputError: the file cannot be read, has no such conditions, or has a faulty one.
    """
    table = decode(_Conditions, read_toml(path, "a spec, or the conditions of one"), path, extra="allow")
    common = flat(table.settings)
    shared = {key: value for key, value in common.items() if key.startswith("objective.")}
    candidates: dict[str, dict[str, Any]] = {}
    for condition in table.conditions:
        settings = flat(condition.settings)
        steps, of_spec = settings.get(LENGTH), common.get(LENGTH, TRAINING_STEPS)
        if isinstance(steps, int) and isinstance(of_spec, int) and of_spec > 0:
            settings[LENGTH] = max(1, round(steps / of_spec * TRAINING_STEPS))
        arms = condition.arms or table.arms or (arm_of(settings),)
        for arm in arms:
            if settings or arm != PLAIN_ARM:
                loss = shared if any(key.startswith("objective.") for key in settings) else {}
                name = condition.name if len(arms) == 1 else f"{condition.name}-{arm}"
                candidates[name] = loss | settings | {TRAINED_ARMS: [arm]}
    if not candidates:
        raise InputError(path, expected="[[conditions]] that differ from plain vanilla", found="none")
    return candidates
