"""Cautions about the runs of a spec: what a reader has to know before believing the numbers.

`cautions` are sentences of its verdict. To add one: a sentence that begins with a word in capitals, in `cautions`.
"""

from collections.abc import Sequence

from probe.analysis.training_runs import shared_settings
from probe.experiments.jobs import Job
from probe.experiments.matched import uneven, unmatched
from probe.experiments.spec import Spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, settings_of
from replay_pools.base.files import read_json
from replay_pools.base.tables import flat

MOST_NAMED = 5  # of runs that are not complete


def cautions(spec: Spec, runs: Sequence[Job]) -> list[str]:
    """Return sentences on runs that are missing, stopped early, of mixed settings or older than the criteria, and on
    sides that differ in more than one thing.
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
    return sentences
