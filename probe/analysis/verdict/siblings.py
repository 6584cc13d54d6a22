"""Training runs side by side: which runs differ in arm and seed alone, and what rules see in all of them together."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.analysis.outcome import deployed
from probe.analysis.verdict.evidence import Update
from probe.records.records import StepRecord
from probe.records.run import Run, settings_of


def is_training(run: Run) -> bool:
    """Whether it is a run of `probe train`."""
    return run.verb == "train"


def siblings(run: Run, others: Iterable[Run]) -> list[Run]:
    """The run first, then those of `others` with the same settings but for arm and seed; itself alone in a replay."""
    if not is_training(run):
        return [run]
    trained = [other for other in others if is_training(other) and other.path != run.path]
    return [run, *(one for one in trained if shared_settings(one.config) == shared_settings(run.config))]


def realised_update(runs: Sequence[Run]) -> Update | None:
    """What the updates of sibling runs did; None without runs that were evaluated on the frozen probe batch."""
    margins: dict[str, dict[str, float]] = {}
    hackward: dict[str, dict[str, float]] = {"hackward_frac": {}, "hackward_q95": {}}
    for run in runs:
        evaluations = deployed(run.evals)
        frozen = evaluations[-1]["frozen"] if evaluations else None
        if frozen is None or frozen["hackward_frac_moved"] is None:
            continue
        arm, seed = _place(run)
        margins.setdefault(arm, {})[seed] = frozen["margin"]
        if arm == "projected" and frozen.get("hackward_q95") is not None:
            hackward["hackward_frac"][seed] = frozen["hackward_frac_moved"]
            hackward["hackward_q95"][seed] = frozen["hackward_q95"]
    return Update(margins=margins, **hackward) if margins else None


def starts(runs: Sequence[Run]) -> list[StepRecord]:
    """The first steps of the runs that have the first one's seed: before any update, all arms are one policy."""
    same = [run for run in runs if run is runs[0] or _place(run)[1] == _place(runs[0])[1]]
    first = [min((step.step for step in run.steps), default=0) for run in same]
    return [step for run, start in zip(same, first, strict=True) for step in run.steps if step.step == start]


def _place(run: Run) -> tuple[str, str]:
    """(arm, seed) of a run of `probe train`."""
    return str(run.settings["intervention"]["arms"][0]), str(run.settings["seed"])


def shared_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Everything that shapes the numbers of a run of `probe train` but its arm and seed, from its `config.json`."""
    own, weights, directions = settings_of(config), config["base_weights_sha256"], config.get("directions")
    intervention = {**own["intervention"], "arms": None}
    fixed = {"seed": None, "preregistered": None, "weights": weights, "directions": directions}
    return {**own, "intervention": intervention, **fixed}
