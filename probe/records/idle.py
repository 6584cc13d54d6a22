"""Settings of the loss that changed nothing in a run, so that nobody takes the run for a test of them."""

from probe.records.run import Run

WITHOUT_GTPO = "it acts through gtpo_beta, which is 0"


def idle_settings(run: Run) -> list[str]:
    """Return a sentence for every such setting and its loss variant."""
    sentences = []
    for condition, loss in run.settings.objectives().items():
        steps = [step for step in run.steps if step.condition == condition]
        never_caps = all(step.advantage["adv_cap_vacuous"] is True for step in steps)
        cap = f"no advantage can exceed the cap of {loss.advantage_clip or 0:g} (adv_cap_vacuous)"
        plans = any(step.frac_planning for step in steps)
        where = f" (loss variant {condition})" if run.settings.conditions else ""
        for setting, is_idle, why in (
            ("sepa_lambda", loss.sepa_lambda and not loss.gtpo_beta, WITHOUT_GTPO),
            ("hicra_alpha", loss.hicra_alpha and not plans, "no completion has a planning phrase"),
            ("advantage_clip", loss.advantage_clip is not None and never_caps, cap),
        ):
            if is_idle:
                sentences.append(f"objective.{setting} changes nothing{where}: {why}")
    return sentences
