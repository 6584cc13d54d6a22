"""Settings of the loss that changed nothing in a run, so that nobody takes the run for a test of them."""

from collections.abc import Sequence

from probe.records.records import StepRecord
from probe.records.run import Run
from probe.settings.loss import LossSettings

WITHOUT_GTPO = "it acts through gtpo_beta, which is 0"


def idle_settings(run: Run) -> list[str]:
    """Return a sentence for every such setting and its loss variant."""
    sentences = []
    for condition, objective in run.settings.objectives().items():
        steps = [step for step in run.steps if step.condition == condition]
        where = f" (loss variant {condition})" if run.settings.conditions else ""
        for setting, why in _idle(objective, steps).items():
            sentences.append(f"objective.{setting} changes nothing{where}: {why}")
    return sentences


def _idle(objective: LossSettings, steps: Sequence[StepRecord]) -> dict[str, str]:
    """Return {setting: why it changed nothing in these steps}."""
    idle = {}
    if objective.sepa_lambda and not objective.gtpo_beta:
        idle["sepa_lambda"] = WITHOUT_GTPO
    if objective.hicra_alpha and not any(step.frac_planning for step in steps):
        idle["hicra_alpha"] = "no completion has a planning phrase"
    if objective.advantage_clip is not None and all(step.advantage["adv_cap_vacuous"] is True for step in steps):
        idle["advantage_clip"] = f"no advantage can exceed the cap of {objective.advantage_clip:g} (adv_cap_vacuous)"
    return idle
