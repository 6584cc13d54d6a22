"""`probe spec plan`: detectable effects, hours and money of a spec. Runs nothing and loads no weights.

    effect    minimum detectable effect of n seeds a side at 80% power
    hours     runs x (start + steps x seconds a step), timed in runs with equally large steps, the spec's own among
              them; for a condition without any, hours_per_run of the budget

The notes of a plan say why a number is missing.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Any

from probe.analysis.statistics.significance import mde
from probe.experiments.cautions import unmatched
from probe.experiments.jobs import Job, before_ceilings, input_faults, run_jobs, stored_groups
from probe.experiments.spec import Budget, Spec
from probe.records.idle import WITHOUT_GTPO
from probe.records.timings import mean_times, runs_alike
from probe.settings.verbs import ReplayConfig, TrainConfig
from replay_pools.base.errors import InputError

SEED_COUNTS = (2, 3, 4, 5, 8, 12, 20)  # rows of the table of effects, in addition to the planned number


def make_plan(spec: Spec, out_dir: Path) -> dict[str, Any]:
    """Plan a spec; `out_dir` is the root folder with its pools and finished runs.

    Returns:
        {spec, sha256, runs, effects, prices, vacuous, notes}: `effects` has {n, smallest, planned} by number of seeds a
        side, in the units of the metric; `prices` {what, runs, hours, money, currency, source} by set of runs;
        `vacuous` {where, why} for each key of the file that makes no difference.
    """
    notes = [*map(str, input_faults(spec, out_dir)), *unmatched(spec)]
    runs = run_jobs(spec, out_dir)
    return {
        "spec": spec.name,
        "sha256": spec.sha256,
        "runs": len(runs),
        "effects": _effects(spec, notes),
        "prices": _prices(spec, runs, out_dir, notes),
        "vacuous": vacuous_parts(spec),
        "notes": notes,
    }


def vacuous_parts(spec: Spec) -> list[dict[str, str]]:
    """Return {key of the file, why it has no effect} of a cap that never binds, and of SEPA without GTPO."""
    parts = []
    for condition in spec.conditions:
        key, objective = f"conditions.{condition.name}.settings.objective", condition.config.objective
        if why := _never_binds(condition.config):
            parts.append({"where": f"{key}.advantage_clip", "why": why})
        if objective.sepa_lambda and not objective.gtpo_beta:
            parts.append({"where": f"{key}.sepa_lambda", "why": WITHOUT_GTPO})
    return parts


def _never_binds(config: ReplayConfig | TrainConfig) -> str:
    loss = config.objective
    if isinstance(config, ReplayConfig):
        group, prompts_per_step = config.source.per_pool * len(config.source.replay_dirs), 1
    else:
        group, prompts_per_step = config.rollouts.group, config.rollouts.prompts_per_step
    # Advantages of single tokens have no bound, and a step's standard deviation has no lower bound.
    unbounded = loss.has_credit or (loss.scale_rewards == "batch" and prompts_per_step > 1)
    if loss.advantage_clip is None or loss.loss_type == "nll" or unbounded:
        return ""
    from probe.objective.advantages import advantage_bound  # imports torch, so only on demand

    scale, spread = "none" if loss.scale_rewards == "none" else "group", config.reward_range
    bound = advantage_bound(group, spread, replace(loss, scale_rewards=scale))
    if loss.advantage_clip < bound:
        return ""
    return (
        f"the cap {loss.advantage_clip:g} is not below {bound:.3g}, the largest |A| of a group of {group} "
        f"(estimator {loss.advantage_estimator}, scale {loss.scale_rewards}, rewards {spread:g} apart): it never binds"
    )


def _effects(spec: Spec, notes: list[str]) -> list[dict[str, Any]]:
    """Return the detectable effect by number of seeds; note whether the planned seeds detect the expected effect."""
    budget, planned = spec.budget, len(spec.seeds)
    if budget.sd is None:
        notes.append("no detectable effect: [budget] states no sd of the metric between units")
        return []
    # A single seed has no standard error.
    effects = {n: mde(budget.sd, n) for n in sorted({*SEED_COUNTS, planned}) if n > 1}
    if planned in effects and budget.expected_effect is not None:
        # Rates after training are compared with independent seeds on each side (`statistics.crossed`).
        word = "can" if effects[planned] <= budget.expected_effect else "CANNOT"
        effect = f"{budget.expected_effect:g} {budget.effect_unit}".rstrip()
        text = f"[budget] {planned} seeds {word} see the expected effect of {effect}"
        notes.append(f"{text}: the smallest detectable one is {effects[planned]:.3g}")
    return [{"n": n, "smallest": smallest, "planned": n == planned} for n, smallest in effects.items()]


def _prices(spec: Spec, planned: Sequence[Job], out_dir: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Price the spec's runs and the runs up to its ceiling, by measured step times or stated hours."""
    of_condition = {row.name: _hours(row.config, spec.budget, out_dir) for row in spec.conditions}
    if unknown := [name for name, hours in of_condition.items() if hours is None]:
        notes.append(
            f"no hours and no money for {', '.join(unknown)}: no run in {out_dir / 'runs'} has timed steps as large "
            "(or pools are missing); run 2 steps, or give hours_per_run in [budget]"
        )
    prices, per_hour = [], spec.budget.price_per_hour
    sets = {f"up to its ceiling {criterion.name}": jobs for criterion, jobs in before_ceilings(spec, planned)}
    for what, jobs in {**sets, "this spec": planned}.items():
        known = [priced for job in jobs if (priced := of_condition[job.conditions[0]]) is not None]
        if len(known) == len(jobs):
            hours = fsum(of_run for of_run, _ in known)
            price = {"what": what, "runs": len(jobs), "hours": hours, "currency": spec.budget.currency}
            price["money"] = None if per_hour is None else hours * per_hour
            prices.append({**price, "source": "; ".join(dict.fromkeys(source for _, source in known))})
    return prices


def _hours(config: ReplayConfig | TrainConfig, budget: Budget, out_dir: Path) -> tuple[float, str] | None:
    """Return the hours of one run and their source; None if neither measured nor stated."""
    alike, steps = runs_alike(config, out_dir), config.steps
    if isinstance(config, ReplayConfig) and steps is None:  # all groups; `input_faults` reports missing pools
        with suppress(InputError):
            steps = stored_groups(config, out_dir).num_steps
    times = mean_times(alike)
    if times is None or steps is None:
        hours = budget.hours_per_run
        return None if hours is None else (hours, "[budget] hours_per_run, as stated")
    shown = f"{times['step']:.3g} s a step, {times['start']:.3g} s before the first; one at a time"
    source = f"measured in {', '.join(path.name for path in alike)}: {shown}"
    return (times["start"] + steps * times["step"]) / 3600, source
