"""Whether what a training spec compares differs in one thing: `unmatched` before its runs, `uneven` on them.

A cell is an arm under a condition. Two cells differ in their arm (what it does to updates, along which directions), in
their basis, and in tables of settings; a loss and its controllers are one thing. A cell that differs from the baseline
in several is matched by a cell that changes no update and differs from it in the arm alone: that one says what the
other things do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from probe.experiments.jobs import Job
from probe.experiments.spec import Spec
from probe.records.run import MANIFEST_FILE
from probe.records.timings import starts_of
from probe.settings.arms import ARMS
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

Cell = tuple[str, str]  # (condition, arm)
ARM, BASIS = "arm", "basis"
ONE_THING = {"control": "objective", "planning_phrases": "objective"}  # tables that change one thing together
# `intervention` is the arm's; what was seen on the way and the words of a run change no number of it.
NOT_COMPARED = ("intervention", "checkpoints", "seed", "verb", "preregistered", "token_attribution")
MOST_NAMED = 3


def unmatched(spec: Spec) -> list[str]:
    """A sentence for every cell of a training spec that differs from the baseline in several things, unmatched."""
    if spec.baseline is None or spec.settings["verb"] != "train":
        return []
    cells = [(entry.name, arm) for entry in spec.conditions for arm in spec.arms_of(entry)]
    sentences = []
    for cell in cells:
        different = _things(spec, cell, spec.baseline)
        if len(different) < 2:
            continue
        idle = [other for other in cells if not _acts(other) and other != cell]
        if any(_things(spec, cell, other) == {ARM: ""} for other in idle):
            continue
        listed = "; ".join(f"{name}{what}" for name, what in different.items())
        idle_arm = next(
            (arm.name for arm in ARMS.values() if arm.basis == ARMS[cell[1]].basis and not _acts(("", arm.name))), ""
        )
        fix = (
            f"{idle_arm} under {cell[0]} would say what the rest does"
            if idle_arm and _acts(cell)
            else "change one at a time"
        )
        named = f"{cell[1]} ({cell[0]}) differs from {spec.baseline[1]} ({spec.baseline[0]}) in several things"
        sentences.append(f"UNMATCHED: {named}: {listed}; {fix}")
    return sentences


def uneven(spec: Spec, runs: Sequence[Job]) -> list[str]:
    """Sentences on finished trainings of one seed that trained other numbers of parameters, or by other code."""
    if spec.baseline is None or spec.settings["verb"] != "train":
        return []
    capacities: dict[Cell, Mapping[str, int]] = {}
    commits: dict[int | None, dict[str, list[str]]] = {}  # {seed: {commit: runs}}
    for run in runs:
        if run.complete:
            manifest = read_json(run.directory / MANIFEST_FILE)
            if (capacity := manifest.get("num_coordinates")) is not None:
                capacities[run.conditions[0], run.arms[0]] = capacity
            for commit in dict.fromkeys(start.commit for start in starts_of(run.directory) if start.commit):
                commits.setdefault(run.seed, {}).setdefault(commit, []).append(f"{run.arms[0]} ({run.conditions[0]})")
    sentences = []
    expected = capacities.get(spec.baseline)
    for (condition, arm), capacity in capacities.items():
        if expected is not None and capacity != expected:
            numbers = f"{_capacity(capacity)}, {spec.baseline[1]} ({spec.baseline[0]}) {_capacity(expected)}"
            sentences.append(f"CAPACITY: {arm} ({condition}) trains {numbers}")
    for seed, by_commit in commits.items():
        if len(by_commit) > 1:
            parts = []
            for commit, names in by_commit.items():
                more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
                parts.append(f"{commit[:7]} {', '.join(names[:MOST_NAMED])}{more}")
            sentences.append(
                f"CODE: the runs of seed {seed} were made by {len(by_commit)} versions: {'; '.join(parts)}"
            )
    return sentences


def _capacity(by_basis: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} parameters ({basis})" for basis, count in by_basis.items())


def _acts(cell: Cell) -> bool:
    """Whether the arm changes an update."""
    return ARMS[cell[1]].projects or ARMS[cell[1]].routes


def _things(spec: Spec, cell: Cell, other: Cell) -> dict[str, str]:
    """{thing: its keys} in which two cells differ."""
    configs = [spec.resolved[condition].config for condition, _ in (cell, other)]
    arms = [ARMS[arm] for _, arm in (cell, other)]
    things: dict[str, str] = {}
    if _does(spec, cell) != _does(spec, other):
        things[ARM] = ""
    if arms[0].basis != arms[1].basis:
        things[BASIS] = f" {arms[0].basis}"
    here, there = (flat(asdict(config)) for config in configs)
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
    """What an arm does to updates; nothing of an arm that leaves them alone."""
    if not _acts(cell):
        return None
    arm, intervention = ARMS[cell[1]], spec.resolved[cell[0]].config.intervention
    return replace(arm, name="", basis="svd"), replace(intervention, arms=("vanilla",))
