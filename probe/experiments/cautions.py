"""Cautions about a spec and its runs: sentences that a reader needs before believing the numbers.

    unmatched    before the runs: arms that differ from vanilla in settings or basis as well
    cautions     the same, plus runs that are stopped, mixed, missing or older than the criteria

To add a caution, add a sentence to `cautions` that begins with a word in capitals.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from probe.analysis.training_runs import shared_settings
from probe.experiments.jobs import Job
from probe.experiments.spec import Spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE
from probe.settings.arms import ARMS
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

# An arm decides `intervention`; the other tables and keys do not change a run's numbers.
NOT_COMPARED = ("intervention", "checkpoints", "seed", "verb", "preregistered", "token_attribution")
MOST_NAMED = 3


def unmatched(spec: Spec) -> list[str]:
    """Return a sentence for each arm of a training spec that changes updates and has no vanilla like it.

    A vanilla like it has the arm's basis, and every setting but `intervention` in common.
    """
    vanillas, treated = list[tuple[str, dict[str, Any]]](), dict[str, tuple[str, dict[str, Any]]]()
    for condition, name in spec.cells if spec.trains and spec.baseline is not None else ():
        settings = flat(asdict(spec.condition(condition).config)).items()
        compared = {key: value for key, value in settings if key.partition(".")[0] not in NOT_COMPARED}
        if replace(ARMS[name], name="vanilla", basis="svd") == ARMS["vanilla"]:
            vanillas.append((ARMS[name].basis, compared))
        else:
            treated[f"{name} ({condition})"] = ARMS[name].basis, compared
    sentences = []
    for name, (basis, compared) in treated.items():
        if (basis, compared) not in vanillas:
            like = next((other for of, other in vanillas if of == basis), compared)
            keys = [key for key in compared if like.get(key) != compared[key]]
            what = f"with its {_named(keys)}" if keys else f"in the basis {basis}"
            sentences.append(f"UNMATCHED: {name} has no vanilla {what}: a difference is not the arm's alone")
    return sentences


def cautions(spec: Spec, runs: Sequence[Job]) -> list[str]:
    """Return the cautions of `unmatched` and those about the runs of a spec."""
    done, sentences = [run for run in runs if run.complete], unmatched(spec)
    for run in done:
        if stopped := read_json(run.directory / MANIFEST_FILE).get("stopped"):
            sentences.append(f"STOPPED: {run.name}, by a tripwire ({stopped}): its final numbers are of that step")
    # The hash of the spec does not cover its preset, so an edit of the preset between two runs shows only here.
    for row in spec.conditions if spec.trains else ():
        configs = [read_json(run.directory / CONFIG_FILE) for run in done if row.name in run.conditions]
        tables = [flat(shared_settings(config)) for config in configs]
        if different := {key for table in tables for key in table if table[key] != tables[0].get(key)}:
            differ = f"the runs of {row.name} differ in {', '.join(sorted(different))}"
            sentences.append(f"MIXED: {differ}: arms cannot be compared")
    if missing := [run.name for run in runs if not run.complete]:
        sentences.append(f"{len(missing)} of {len(runs)} runs are not complete: {_named(missing)}")
    if edited := [run.name for run in runs if run.made_under not in (None, spec.mark)]:
        why = "these criteria are younger than the data and confirm nothing"
        sentences.append(f"EDITED: {', '.join(edited)} ran under another version of {spec.path.name}; {why}")
    return sentences


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
