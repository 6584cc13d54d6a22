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
from probe.records.timings import starts_of
from probe.settings.arms import ARMS
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

Cell = tuple[str, str]  # (condition, arm)
ARM, BASIS = "arm", "basis"
ONE_THING = {"control": "objective", "planning_phrases": "objective"}  # tables that change one thing together
# The arm decides `intervention`; the other keys do not change a run's numbers.
NOT_COMPARED = ("intervention", "checkpoints", "seed", "verb", "preregistered", "token_attribution")
MOST_NAMED = 3


def unmatched(spec: Spec) -> list[str]:
    """Return a sentence for each cell of a training spec that differs from the baseline in several things."""
    if spec.baseline is None or spec.settings["verb"] != "train":
        return []
    cells = [(entry.name, arm) for entry in spec.conditions for arm in spec.arms_of(entry)]
    idle = [cell for cell in cells if not _acts(cell[1])]
    sentences = []
    for cell in cells:
        different = _things(spec, cell, spec.baseline)
        if len(different) < 2 or any(_things(spec, cell, other) == {ARM: ""} for other in idle):
            continue
        fix = "change one at a time"
        if _acts(cell[1]):
            same_basis = [name for name, arm in ARMS.items() if arm.basis == ARMS[cell[1]].basis and not _acts(name)]
            fix = f"{same_basis[0]} under {cell[0]} would say what the rest does" if same_basis else fix
        listed = "; ".join(f"{name}{keys}" for name, keys in different.items())
        named = f"{cell[1]} ({cell[0]}) differs from {spec.baseline[1]} ({spec.baseline[0]})"
        sentences.append(f"UNMATCHED: {named} in several things: {listed}; {fix}")
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
    """Return sentences on trainings with unequal parameter counts, and on seeds trained by several commits."""
    if spec.baseline is None or spec.settings["verb"] != "train":
        return []
    capacities: dict[Cell, str] = {}
    commits: dict[int | None, dict[str, list[str]]] = {}  # {seed: {commit: runs}}
    for run in done:
        if (capacity := manifests[run.name].get("num_coordinates")) is not None:
            counts = (f"{count:,} parameters ({basis})" for basis, count in capacity.items())
            capacities[run.conditions[0], run.arms[0]] = ", ".join(counts)
        for commit in dict.fromkeys(start.commit for start in starts_of(run.directory) if start.commit):
            commits.setdefault(run.seed, {}).setdefault(commit, []).append(f"{run.arms[0]} ({run.conditions[0]})")
    sentences, expected = [], capacities.get(spec.baseline)
    for (condition, arm), capacity in capacities.items():
        if expected is not None and capacity != expected:
            baseline = f"{spec.baseline[1]} ({spec.baseline[0]})"
            sentences.append(f"CAPACITY: {arm} ({condition}) trains {capacity}, {baseline} {expected}")
    for seed, runs_of in commits.items():
        if len(runs_of) > 1:
            parts = "; ".join(f"{commit[:7]} {_named(names)}" for commit, names in runs_of.items())
            sentences.append(f"CODE: the runs of seed {seed} were made by {len(runs_of)} versions: {parts}")
    return sentences


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


def _acts(arm: str) -> bool:
    """Return whether an arm changes updates."""
    return ARMS[arm].projects or ARMS[arm].routes


def _things(spec: Spec, cell: Cell, other: Cell) -> dict[str, str]:
    """Return {thing: its keys} for everything in which two cells differ."""
    arms = [ARMS[arm] for _, arm in (cell, other)]
    things: dict[str, str] = {}
    if _does(spec, cell) != _does(spec, other):
        things[ARM] = ""
    if arms[0].basis != arms[1].basis:
        things[BASIS] = f" {arms[0].basis}"
    here, there = (flat(asdict(spec.resolved[condition].config)) for condition, _ in (cell, other))
    keys: dict[str, list[str]] = {}
    for key in {**here, **there}:
        table = key.partition(".")[0]
        if table not in NOT_COMPARED and here.get(key) != there.get(key):
            keys.setdefault(ONE_THING.get(table, table), []).append(key)
    for table, different in keys.items():
        more = ", ..." if len(different) > MOST_NAMED else ""
        things[table] = f" ({', '.join(different[:MOST_NAMED])}{more})" if different != [table] else ""
    return things


def _does(spec: Spec, cell: Cell) -> Any:
    """Return how a cell changes updates; None for an arm that does not."""
    if not _acts(cell[1]):
        return None
    arm, intervention = ARMS[cell[1]], spec.resolved[cell[0]].config.intervention
    return replace(arm, name="", basis="svd"), replace(intervention, arms=("vanilla",))
