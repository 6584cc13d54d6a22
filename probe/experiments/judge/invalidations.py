"""Faults that runs were made with, and which runs they concern.

    spec/invalidations/NAME.toml    what was wrong, the settings under which it acted, and the commit that mended it

A run is concerned if it has those settings and was started by code without that commit; where a run does not say which
code, that is listed as unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from probe.experiments.jobs import SweepRun
from probe.records.run import CONFIG_FILE, settings_of
from probe.records.timings import starts_of
from probe.settings.run import KEYS
from replay_pools.errors import InputError
from replay_pools.software import has_commit
from replay_pools.storage.files import read_json
from replay_pools.storage.tables import decode, flat, read_toml

FOLDER = "invalidations"  # below that of the specs


class Invalidation(BaseModel):
    """A fault that runs were made with: the file NAME.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reason: str
    mended: str  # the commit from which on runs are sound
    settings: dict[str, Any] = Field(min_length=1)  # {key with dots: value, or one of a list's}


@dataclass(frozen=True, slots=True, kw_only=True)
class Concerned:
    """The runs of an experiment that have the settings of an invalidation."""

    invalidation: str
    reason: str
    runs: tuple[str, ...]  # started by code that had the fault
    unknown: tuple[str, ...]  # which code, they do not say


def read_invalidations(specs: Path) -> dict[str, Invalidation]:
    """{name: fault} of a folder of specs; none where it has no folder of faults.

    Raises:
        InputError: a file that is no invalidation, or names no settings of a run.
    """
    faults, known = {}, KEYS
    for path in sorted((specs / FOLDER).glob("*.toml")):
        fault = decode(Invalidation, read_toml(path, "an invalidation"), path)
        for key in fault.settings:
            if key not in known:
                raise InputError(f"{path} settings", expected="settings of a run, with dots in quotes", found=repr(key))
        faults[path.stem] = fault
    return faults


def concerned_runs(
    runs: Sequence[SweepRun], invalidations: Mapping[str, Invalidation], checkout: Path
) -> tuple[Concerned, ...]:
    """The faults that concern one of the runs.

    Args:
        checkout: a folder of the checkout whose history says which code has which mending.
    """
    concerned = []
    for name, fault in invalidations.items():
        of_fault = _concerned(runs, name, fault, checkout)
        if of_fault is not None:
            concerned.append(of_fault)
    return tuple(concerned)


def _concerned(runs: Sequence[SweepRun], name: str, fault: Invalidation, checkout: Path) -> Concerned | None:
    """The runs that have the settings of a fault and not its mending; None where no run has its settings."""
    with_fault, unknown = [], []
    for run in runs:
        if run.spec_status is None or not _matches(read_json(run.job.directory / CONFIG_FILE), fault.settings):
            continue
        # A run that was resumed holds what each of its starts made.
        mended = []
        for start in starts_of(run.job.directory):
            known = None if start.commit is None else has_commit(start.commit, fault.mended, checkout)
            mended.append(known)
        if False in mended:
            with_fault.append(run.job.name)
        elif not mended or None in mended:
            unknown.append(run.job.name)
    if not with_fault and not unknown:
        return None
    return Concerned(invalidation=name, reason=fault.reason, runs=tuple(with_fault), unknown=tuple(unknown))


def _matches(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether a run has all of these settings; of a list, one of its values."""
    stored = flat(settings_of(config))
    for key, value in settings.items():
        actual = stored.get(key)
        if value != actual and not (isinstance(actual, list) and value in actual):
            return False
    return True
