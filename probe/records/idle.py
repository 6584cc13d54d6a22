"""Settings of the loss that changed nothing in a run, so that nobody takes the run for a test of them."""

from collections.abc import Sequence
from typing import Any

from probe.records.records import StepRecord
from probe.records.run import Run

WITHOUT_GTPO = "it acts through gtpo_beta, which is 0"


def idle_settings(run: Run) -> list[str]:
    """Return a sentence for every such setting and its loss variant."""
    objective: dict[str, Any] = {"sepa_lambda": 0.0, "gtpo_beta": 0.0, "hicra_alpha": 0.0, "advantage_clip": None}
    objective |= run.settings.get("objective") or {}
    changes = {row["name"]: row["changes"] for row in run.settings.get("conditions") or []}
    sentences = []
    for condition in dict.fromkeys(step.condition for step in run.steps):
        steps = [step for step in run.steps if step.condition == condition]
        where = f" (loss variant {condition})" if changes else ""
        for setting, why in _idle(objective | changes.get(condition, {}), steps).items():
            sentences.append(f"objective.{setting} changes nothing{where}: {why}")
    return sentences


def _idle(objective: dict[str, Any], steps: Sequence[StepRecord]) -> dict[str, str]:
    """Return {setting: why it changed nothing in these steps}."""
    idle = {}
    if objective["sepa_lambda"] and not objective["gtpo_beta"]:
        idle["sepa_lambda"] = WITHOUT_GTPO
    if objective["hicra_alpha"] and not any(step.frac_planning for step in steps):
        idle["hicra_alpha"] = "no completion has a planning phrase"
    if all(step.advantage["adv_cap_vacuous"] is True for step in steps):
        clip = objective["advantage_clip"]
        idle["advantage_clip"] = f"no advantage can exceed the cap of {clip:g} (adv_cap_vacuous)"
    return idle
