"""What a reader has to know of the runs of a spec before believing the numbers.

`cautions` are sentences of its verdict. An invalidation is a fault that runs were made with:

    spec/invalidations/NAME.toml    what was wrong, the settings under which it acted, and the commit that mended it

A run is concerned if it has those settings and was started by code without that commit; where a run does not say which
code, that is listed as unknown. To add a caution: a sentence that begins with a word in capitals, in `cautions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from probe.analysis.training_runs import shared_settings
from probe.experiments.jobs import Job
from probe.experiments.matched import uneven, unmatched
from probe.experiments.spec import Spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, settings_of
from probe.records.timings import starts_of
from probe.settings.run import KEYS
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json
from replay_pools.base.software import has_commit
from replay_pools.base.tables import decode, flat, read_toml

FOLDER = "invalidations"  # below that of the specs
MOST_NAMED = 5  # of runs that are not complete


def cautions(spec: Spec, runs: Sequence[Job]) -> list[str]:
    """Sentences on runs that are missing, were stopped early or made under different settings, are older than the
    criteria, or have a fault that was mended since; on sides that differ in more than one thing.
    """
    sentences = [*unmatched(spec), *uneven(spec, runs)]
    for run in runs:
        stopped = read_json(run.directory / MANIFEST_FILE).get("stopped") if run.complete else None
        if stopped:
            sentences.append(f"STOPPED: {run.name}, by a tripwire ({stopped}): its final numbers are of that step")
    for condition in spec.conditions:
        configs = []
        for run in runs:
            if run.complete and condition.name in run.conditions:
                configs.append(read_json(run.directory / CONFIG_FILE))
        # The hash of the spec does not cover a preset that it names, which may have been edited between two runs.
        trained = [flat(shared_settings(config)) for config in configs if settings_of(config)["verb"] == "train"]
        different = {key for table in trained for key in table if table[key] != trained[0].get(key)}
        if different:
            keys = ", ".join(sorted(different))
            sentences.append(f"MIXED: the runs of {condition.name} differ in {keys}: arms cannot be compared")
    missing = [run.name for run in runs if not run.complete]
    if missing:
        named = ", ".join(missing[:MOST_NAMED])
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        sentences.append(f"{len(missing)} of {len(runs)} runs are not complete: {named}{more}")
    edited = [run.name for run in runs if run.spec_status not in (None, "frozen")]
    if edited:
        sentences.append(
            f"EDITED: {', '.join(edited)} ran under another version of {spec.path.name}; these criteria are younger "
            "than the data and confirm nothing"
        )
    specs = spec.path.parent
    for fault in concerned_runs(runs, read_invalidations(specs), specs):
        if fault.runs:
            named = ", ".join(fault.runs)
            sentences.append(f"INVALIDATED: {named} ran with a fault ({fault.invalidation}): {fault.reason}")
    return sentences


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
    faults = {}
    for path in sorted((specs / FOLDER).glob("*.toml")):
        fault = decode(Invalidation, read_toml(path, "an invalidation"), path)
        for key in fault.settings:
            if key not in KEYS:
                raise InputError(f"{path} settings", expected="settings of a run, with dots in quotes", found=repr(key))
        faults[path.stem] = fault
    return faults


def concerned_runs(
    runs: Sequence[Job], invalidations: Mapping[str, Invalidation], checkout: Path
) -> tuple[Concerned, ...]:
    """The faults that concern one of the runs.

    Args:
        checkout: a folder of the checkout whose history says which code has which mending.
    """
    concerned = []
    for name, fault in invalidations.items():
        with_fault, unknown = [], []
        for run in runs:
            if run.spec_status is None or not _matches(read_json(run.directory / CONFIG_FILE), fault.settings):
                continue
            # A run that was resumed holds what each of its starts made.
            mended = []
            for start in starts_of(run.directory):
                mended.append(None if start.commit is None else has_commit(start.commit, fault.mended, checkout))
            if False in mended:
                with_fault.append(run.name)
            elif not mended or None in mended:
                unknown.append(run.name)
        if with_fault or unknown:
            runs_of_fault = Concerned(
                invalidation=name, reason=fault.reason, runs=tuple(with_fault), unknown=tuple(unknown)
            )
            concerned.append(runs_of_fault)
    return tuple(concerned)


def _matches(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether a run has all of these settings; of a list, one of its values."""
    stored = flat(settings_of(config))
    for key, value in settings.items():
        actual = stored.get(key)
        if value != actual and not (isinstance(actual, list) and value in actual):
            return False
    return True
