"""`probe spec plan`: detectable effects, hours and money of a spec. Runs nothing and loads no weights.

    effect    minimum detectable effect of n seeds a side at 80% power
    hours     runs x (start + steps x seconds a step), timed in finished runs of the spec or in runs with equally large
              steps; otherwise runs x hours from the budget

`SpecPlan.notes` says why a number is missing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.analysis.statistics.significance import mde
from probe.experiments.cautions import unmatched
from probe.experiments.jobs import Job, input_faults, is_about, runs_of, stored_groups
from probe.experiments.spec import ResolvedCondition, Spec
from probe.records.idle import WITHOUT_GTPO
from probe.records.timings import MeanTimes, mean_times
from probe.runs.alike import runs_alike, step_size
from replay_pools.base.errors import InputError

SEED_COUNTS = (2, 3, 4, 5, 8, 12, 20)  # rows of the table of effects, in addition to the planned number


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Minimum detectable effect of `n` seeds a side, in the units of the metric."""

    n: int
    smallest: float
    planned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Hours and money of a set of runs."""

    what: str
    runs: int
    hours: float
    money: float | None
    currency: str
    source: str  # where the hours come from


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecPlan:
    """Plan of a spec before its first run."""

    spec: str
    sha256: str
    runs: int
    effects: list[Effect]
    prices: list[Price]
    vacuous: dict[str, str]  # {key of the file: why it makes no difference}
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and None."""
        return asdict(self) | {"vacuous": [{"where": where, "why": why} for where, why in self.vacuous.items()]}


def make_plan(spec: Spec, out_dir: Path) -> SpecPlan:
    """Plan a spec; `out_dir` is the root folder with its pools and finished runs."""
    notes = [*map(str, input_faults(spec, out_dir)), *unmatched(spec)]
    runs = runs_of(spec, out_dir)
    return SpecPlan(
        spec=spec.name,
        sha256=spec.sha256,
        runs=len(runs),
        effects=_effects(spec, notes),
        prices=_prices(spec, runs, out_dir, notes),
        vacuous=vacuous_parts(spec),
        notes=notes,
    )


def vacuous_parts(spec: Spec) -> dict[str, str]:
    """Return {key of the file: why it has no effect}: a cap that never binds, SEPA without GTPO."""
    parts: dict[str, str] = {}
    for name, condition in spec.resolved.items():
        key, objective = f"conditions.{name}.settings.objective", condition.config.objective
        if why := _never_binds(condition):
            parts[f"{key}.advantage_clip"] = why
        if objective.sepa_lambda and not objective.gtpo_beta:
            parts[f"{key}.sepa_lambda"] = WITHOUT_GTPO
    return parts


def _never_binds(condition: ResolvedCondition) -> str:
    loss = condition.config.objective
    # Advantages of single tokens have no bound, and a step's standard deviation has no lower bound.
    unbounded = loss.has_credit or (loss.scale_rewards == "batch" and condition.prompts_per_step > 1)
    if loss.advantage_clip is None or loss.loss_type == "nll" or unbounded:
        return ""
    from probe.objective.advantages import advantage_bound  # imports torch, so only on demand

    scale = "none" if loss.scale_rewards == "none" else "group"
    spread = condition.config.reward_range
    bound = advantage_bound(condition.group, spread, estimator=loss.advantage_estimator, scale=scale)
    if loss.advantage_clip < bound:
        return ""
    return (
        f"the cap {loss.advantage_clip:g} is not below {bound:.3g}, the largest |A| of a group of {condition.group} "
        f"(estimator {loss.advantage_estimator}, scale {loss.scale_rewards}, rewards {spread:g} apart): it never binds"
    )


def _effects(spec: Spec, notes: list[str]) -> list[Effect]:
    """Return the detectable effect by number of seeds; note whether the planned seeds detect the expected effect."""
    budget, planned = spec.budget, len(spec.seeds)
    if budget.sd is None:
        notes.append("no detectable effect: [budget] states no sd of the metric between units")
        return []
    effects = []
    # A single seed has no standard error.
    for n in sorted({count for count in (*SEED_COUNTS, planned) if count > 1}):
        effects.append(Effect(n=n, smallest=mde(budget.sd, n), planned=n == planned))
    smallest = next((effect.smallest for effect in effects if effect.planned), None)
    if smallest is not None and budget.expected_effect is not None:
        # Rates after training are compared with independent seeds on each side (`statistics.crossed`).
        word = "can" if smallest <= budget.expected_effect else "CANNOT"
        effect = f"{budget.expected_effect:g} {budget.effect_unit}".rstrip()
        text = f"[budget] {planned} seeds {word} see the expected effect of {effect}"
        notes.append(f"{text}: the smallest detectable one is {smallest:.3g}")
    return effects


def _prices(spec: Spec, planned: Sequence[Job], out_dir: Path, notes: list[str]) -> list[Price]:
    """Price the spec's runs and the runs up to its ceiling, by measured step times or stated hours."""
    sets: dict[str, Sequence[Job]] = {}
    for number, criterion in enumerate(spec.ceilings, 1):
        until = spec.ceilings[:number]
        bought = [job for job in planned if any(is_about(job, earlier, spec) for earlier in until)]
        sets[f"up to its ceiling {criterion.name}"] = bought
    sets["this spec"] = planned
    times, where = _times(spec, planned, out_dir)
    steps = {name: _num_steps(condition, out_dir) for name, condition in spec.resolved.items()}
    if times is not None and None in steps.values():
        notes.append("hours from step times: the number of steps is not known before the pools are generated")
    elif times is not None:
        source = f"measured in {where}: {times.step:.3g} s a step, {times.start:.3g} s before the first; one at a time"
        prices = []
        for what, jobs in sets.items():
            seconds = sum(times.start + (steps[job.conditions[0]] or 0) * times.step for job in jobs)
            prices.append(_price(what, spec, len(jobs), seconds / 3600, source))
        return prices
    hours = spec.budget.hours_per_run
    if hours is None:
        notes.append(
            f"no hours and no money: no run in {out_dir / 'runs'} has timed steps as large; run 2 steps, or give "
            "hours_per_run in [budget]"
        )
        return []
    source = "[budget] hours_per_run, as stated"
    return [_price(what, spec, len(jobs), len(jobs) * hours, source) for what, jobs in sets.items()]


def _times(spec: Spec, planned: Sequence[Job], out_dir: Path) -> tuple[MeanTimes | None, str]:
    """Return mean times and a description of the runs that they come from."""
    if (times := mean_times([job.directory for job in planned if job.complete])) is not None:
        return times, f"{times.runs} finished runs of this spec"
    configs = [condition.config for condition in spec.resolved.values()]
    is_alike = all(step_size(config) == step_size(configs[0]) for config in configs)
    alike = runs_alike(configs[0], out_dir) if is_alike else []
    return mean_times(alike), f"runs like it ({', '.join(path.name for path in alike)})"


def _num_steps(condition: ResolvedCondition, out_dir: Path) -> int | None:
    """Return the steps of a run; None for all groups of missing pools, which `input_faults` reports."""
    if condition.config.steps is not None:
        return condition.config.steps
    try:
        groups = stored_groups(condition, out_dir)
    except InputError:
        return None
    return None if groups is None else groups.num_steps


def _price(what: str, spec: Spec, runs: int, hours: float, source: str) -> Price:
    per_hour, currency = spec.budget.price_per_hour, spec.budget.currency
    money = None if per_hour is None else hours * per_hour
    return Price(what=what, runs=runs, hours=hours, money=money, currency=currency, source=source)
