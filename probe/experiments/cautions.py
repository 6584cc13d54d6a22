"""Cautions about a spec and its runs: sentences that a reader needs before believing the numbers.

    unmatched    before the runs: cells that differ from the baseline in several things
    cautions     the same, plus runs that are stopped, mixed, uneven, missing or older than the criteria

A cell is an arm under a condition. Two cells can differ in their arm (how it changes updates, and along which
directions), in their basis and in tables of settings; a loss and its controllers count as one thing. A cell that
differs from the baseline in several things needs a matching cell: one that changes no update and differs from it only
in the arm.

To add a caution, add a sentence to `cautions` that begins with a word in capitals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from probe.analysis.training_runs import shared_settings
from probe.experiments.jobs import Job
from probe.experiments.spec import Cell, Spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE
from probe.settings.arms import ARMS
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

ONE_THING = {"control": "objective", "planning_phrases": "objective"}  # tables that change one thing together
# The arm decides `intervention`; the other keys do not change a run's numbers.
NOT_COMPARED = ("intervention", "checkpoints", "seed", "verb", "preregistered", "token_attribution")
MOST_NAMED = 3


def unmatched(spec: Spec) -> list[str]:
    """Return a sentence for each cell of a training spec that differs from the baseline in several things."""
    baseline, sentences = spec.baseline, list[str]()
    if not spec.trains or baseline is None:
        return []
    idle = [cell for cell in spec.cells if _does(spec, cell) is None]
    for cell in spec.cells:
        different = _things(spec, cell, baseline)
        if len(different) > 1 and not any(_things(spec, cell, other) == {"arm": []} for other in idle):
            listed = "; ".join(f"{name} ({_named(keys)})" if keys else name for name, keys in different.items())
            named = f"{_text(cell)} differs from {_text(baseline)}"
            sentences.append(f"UNMATCHED: {named} in several things: {listed}; change one at a time")
    return sentences


def cautions(spec: Spec, runs: Sequence[Job]) -> list[str]:
    """Return the cautions of `unmatched` and those about the runs of a spec."""
    done = [run for run in runs if run.complete]
    manifests = {run.name: read_json(run.directory / MANIFEST_FILE) for run in done}
    sentences = unmatched(spec)
    if spec.trains:
        trained = {(run.conditions[0], run.arms[0]): manifests[run.name].get("num_coordinates") or {} for run in done}
        counts = {
            cell: ", ".join(f"{n:,} parameters ({basis})" for basis, n in counted.items())
            for cell, counted in trained.items()
        }
        if spec.baseline is not None and (expected := counts.get(spec.baseline)):
            ours = f"{_text(spec.baseline)} {expected}"
            uneven = {cell: text for cell, text in counts.items() if text not in ("", expected)}
            sentences += [f"CAPACITY: {_text(cell)} trains {text}, {ours}" for cell, text in uneven.items()]
    for run in done:
        if stopped := manifests[run.name].get("stopped"):
            sentences.append(f"STOPPED: {run.name}, by a tripwire ({stopped}): its final numbers are of that step")
    # The hash of the spec does not cover its preset, so an edit of the preset between two runs shows only here.
    for row in spec.conditions if spec.trains else ():
        configs = [read_json(run.directory / CONFIG_FILE) for run in done if row.name in run.conditions]
        tables = [flat(shared_settings(config)) for config in configs]
        if different := {key for table in tables for key in table if table[key] != tables[0].get(key)}:
            keys = ", ".join(sorted(different))
            sentences.append(f"MIXED: the runs of {row.name} differ in {keys}: arms cannot be compared")
    if missing := [run.name for run in runs if not run.complete]:
        sentences.append(f"{len(missing)} of {len(runs)} runs are not complete: {_named(missing)}")
    if edited := [run.name for run in runs if run.spec_status not in (None, "frozen")]:
        why = "these criteria are younger than the data and confirm nothing"
        sentences.append(f"EDITED: {', '.join(edited)} ran under another version of {spec.path.name}; {why}")
    return sentences


def _text(cell: Cell) -> str:
    return f"{cell[1]} ({cell[0]})"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _things(spec: Spec, cell: Cell, other: Cell) -> Mapping[str, list[str]]:
    """Return {thing: its keys} for everything in which two cells differ."""
    things: dict[str, list[str]] = {} if _does(spec, cell) == _does(spec, other) else {"arm": []}
    if ARMS[cell[1]].basis != ARMS[other[1]].basis:
        things["basis"] = [ARMS[cell[1]].basis]
    here, there = (flat(asdict(spec.condition(condition).config)) for condition, _ in (cell, other))
    for key in {**here, **there}:
        table = key.partition(".")[0]
        if table not in NOT_COMPARED and here.get(key) != there.get(key):
            things.setdefault(ONE_THING.get(table, table), []).append(key)
    return things


def _does(spec: Spec, cell: Cell) -> Any:
    """Return how a cell changes updates; None for an arm that does not."""
    arm, intervention = ARMS[cell[1]], spec.condition(cell[0]).config.intervention
    if not (arm.projects or arm.at_deployment):
        return None
    return replace(arm, name="", basis="svd"), replace(intervention, arms=("vanilla",))
