"""Cautions of a spec's verdict: what a reader has to know of the runs before believing the numbers.

To add a caution: a sentence that begins with a word in capitals, appended in `cautions`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from probe.analysis.training_runs import shared_settings
from probe.experiments.jobs import SweepRun
from probe.experiments.judge.invalidations import concerned_runs, read_invalidations
from probe.experiments.spec import Spec
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, settings_of
from replay_pools.storage.files import read_json
from replay_pools.storage.tables import flat

MOST_NAMED = 5  # of runs that are not complete


def cautions(spec: Spec, runs: Sequence[SweepRun]) -> list[str]:
    """Sentences on runs that are missing, were stopped early or made under different settings, are older than the
    criteria, or have a fault that was mended since.
    """
    sentences = []
    for run in runs:
        stopped = read_json(run.job.directory / MANIFEST_FILE).get("stopped") if run.complete else None
        if stopped:
            sentences.append(f"STOPPED: {run.job.name}, by a tripwire ({stopped}): its final numbers are of that step")
    for condition in spec.conditions:
        configs = []
        for run in runs:
            if run.complete and condition.name in run.job.conditions:
                configs.append(read_json(run.job.directory / CONFIG_FILE))
        sentences += _different_settings(configs, condition.name)
    missing = [run.job.name for run in runs if not run.complete]
    if missing:
        named = ", ".join(missing[:MOST_NAMED])
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        sentences.append(f"{len(missing)} of {len(runs)} runs are not complete: {named}{more}")
    edited = [run.job.name for run in runs if run.spec_status not in (None, "frozen")]
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


def _different_settings(configs: Sequence[Mapping[str, Any]], condition: str) -> list[str]:
    """A caution, if training runs of one condition differ in more than arm and seed.

    The hash of the spec does not cover a preset that it names: the preset may have been edited between two runs.
    """
    settings = [flat(shared_settings(config)) for config in configs if settings_of(config)["verb"] == "train"]
    different = set()
    for table in settings:
        different |= {key for key in table if table[key] != settings[0].get(key)}
    if not different:
        return []
    return [f"MIXED: the runs of {condition} differ in {', '.join(sorted(different))}: arms cannot be compared"]
