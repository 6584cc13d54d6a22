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
from probe.experiments.spec import Spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE
from probe.settings.arms import ARMS
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

Cell = tuple[str, str]  # (condition, arm)
ONE_THING = {"control": "objective", "planning_phrases": "objective"}  # tables that change one thing together
# The arm decides `intervention`; the other keys do not change a run's numbers.
NOT_COMPARED = ("intervention", "checkpoints", "seed", "verb", "preregistered", "token_attribution")
MOST_NAMED = 3


def unmatched(spec: Spec) -> list[str]:
    """Return a sentence for each cell of a training spec that differs from the baseline in several things."""
    if spec.baseline is None or spec.settings["verb"] != "train":
        return []
    cells = [(entry.name, arm) for entry in spec.conditions for arm in entry.arms]
    idle = [cell for cell in cells if _does(spec, cell) is None]
    sentences = []
    for cell in cells:
        different = _things(spec, cell, spec.baseline)
        if len(different) < 2 or any(_things(spec, cell, other) == {"arm": []} for other in idle):
            continue
        listed = "; ".join(f"{name} ({_named(keys)})" if keys else name for name, keys in different.items())
        named = f"{cell[1]} ({cell[0]}) differs from {spec.baseline[1]} ({spec.baseline[0]})"
        sentences.append(f"UNMATCHED: {named} in several things: {listed}; change one at a time")
    return sentences


def cautions(spec: Spec, runs: Sequence[Job]) -> list[str]:
    """Return the cautions of `unmatched` and those about the runs of a spec."""
    done = [run for run in runs if run.complete]
    manifests = {run.name: read_json(run.directory / MANIFEST_FILE) for run in done}
    sentences = [*unmatched(spec), *_uneven(spec, done, manifests)]
    for run in done:
        if stopped := manifests[run.name].get("stopped"):
            sentences.append(f"STOPPED: {run.name}, by a tripwire ({stopped}): its final numbers are of that step")
    for condition in spec.conditions:
        trained = []
        # The hash of the spec does not cover its preset, so an edit of the preset between two runs shows only here.
        if spec.settings["verb"] == "train":
            configs = [read_json(run.directory / CONFIG_FILE) for run in done if condition.name in run.conditions]
            trained = [flat(shared_settings(config)) for config in configs]
        if different := {key for table in trained for key in table if table[key] != trained[0].get(key)}:
            keys = ", ".join(sorted(different))
            sentences.append(f"MIXED: the runs of {condition.name} differ in {keys}: arms cannot be compared")
    if missing := [run.name for run in runs if not run.complete]:
        sentences.append(f"{len(missing)} of {len(runs)} runs are not complete: {_named(missing)}")
    if edited := [run.name for run in runs if run.spec_status not in (None, "frozen")]:
        why = "these criteria are younger than the data and confirm nothing"
        sentences.append(f"EDITED: {', '.join(edited)} ran under another version of {spec.path.name}; {why}")
    return sentences


def _uneven(spec: Spec, done: Sequence[Job], manifests: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each training arm with another number of parameters than the baseline."""
    if spec.baseline is None or spec.settings["verb"] != "train":
        return []
    counted = {(run.conditions[0], run.arms[0]): manifests[run.name].get("num_coordinates") for run in done}
    texts = {
        cell: ", ".join(f"{n:,} parameters ({basis})" for basis, n in (counted[cell] or {}).items()) for cell in counted
    }
    (condition, arm), expected = spec.baseline, texts.get(spec.baseline)
    return [
        f"CAPACITY: {cell[1]} ({cell[0]}) trains {text}, {arm} ({condition}) {expected}"
        for cell, text in texts.items()
        if expected and text not in ("", expected)
    ]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _things(spec: Spec, cell: Cell, other: Cell) -> dict[str, list[str]]:
    """Return {thing: its keys} for everything in which two cells differ."""
    basis, other_basis = (ARMS[arm].basis for _, arm in (cell, other))
    things: dict[str, list[str]] = {} if _does(spec, cell) == _does(spec, other) else {"arm": []}
    if basis != other_basis:
        things["basis"] = [basis]
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
