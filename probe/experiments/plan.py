"""`probe spec plan`: detectable effects of a spec, and its hours and money. Runs nothing, loads no weights.

    effect    the minimum detectable effect of n seeds a side at 80% power, paired and unpaired
    hours     runs x (start + steps x seconds a step), measured in a run that is named, in finished runs of the spec, or
              in runs with steps as large; or runs x hours as the budget states them

Where a number cannot be given, `SpecPlan.notes` says what is missing.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from probe.analysis.statistics.significance import mde
from probe.experiments.jobs import Job, input_faults, is_about, runs_of, stored_groups
from probe.experiments.matched import unmatched
from probe.experiments.spec import Cost, Criterion, ResolvedCondition, Spec
from probe.records.idle import WITHOUT_GTPO
from probe.records.timings import mean_times
from probe.runs.alike import runs_alike, step_size
from probe.step.groups import ReplaySource
from replay_pools.base.errors import InputError

SEED_COUNTS = (2, 3, 4, 5, 8, 12, 20)  # rows of the table of effects, with the planned number


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Minimum detectable effect of `n` units a side, in the units of the metric."""

    n: int
    paired: float | None  # None: no correlation of the arms is stated
    unpaired: float
    planned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Hours and money of a number of runs; `source` says where the hours come from."""

    what: str
    runs: int
    hours: float
    money: float | None
    currency: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecPlan:
    """All that can be known of a spec before its first run."""

    spec: str
    sha256: str
    runs: int
    effects: list[Effect]
    go_effects: list[Effect]  # of what a GO buys
    prices: list[Price]
    vacuous: dict[str, str]  # {key of the file: why it makes no difference, or cannot pass}
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and None."""
        return asdict(self) | {"vacuous": [{"where": where, "why": why} for where, why in self.vacuous.items()]}


def make_plan(
    spec: Spec,
    *,
    out_dir: Path,
    run: Path | None = None,
    price_per_hour: float | None = None,
) -> SpecPlan:
    """The plan of a spec.

    Args:
        out_dir: where pools, and finished runs of the spec, are looked up.
        run: its times give the hours; default: finished runs of the spec, else others like it.
        price_per_hour: of the spec's own runs; default: as its budget says.
    """
    notes = [*map(str, input_faults(spec, out_dir)), *unmatched(spec)]
    go, runs = spec.budget.go or Cost(), runs_of(spec, out_dir)
    effects = _effects(spec.budget, len(spec.seeds), "budget", notes, paired=spec.primary.paired)
    go_effects = _effects(go, go.seeds or 0, "budget.go", notes) if spec.budget.go else []
    prices = _prices(spec, runs, out_dir, run, notes)
    if price_per_hour is not None:
        prices = [replace(price, money=price.hours * price_per_hour) for price in prices]
    if go.seeds is not None and go.arms is not None and go.hours_per_run is not None:
        num_runs, source = go.seeds * go.arms, "[budget.go] hours_per_run, as stated"
        prices.append(_price("what a GO buys", go, num_runs, num_runs * go.hours_per_run, source))
    return SpecPlan(
        spec=spec.name,
        sha256=spec.sha256,
        runs=len(runs),
        effects=effects,
        go_effects=go_effects,
        prices=prices,
        vacuous=vacuous_parts(spec),
        notes=notes,
    )


def vacuous_parts(spec: Spec) -> dict[str, str]:
    """Return {key of the file: why it makes no difference}: a cap that never binds, SEPA without GTPO."""
    parts: dict[str, str] = {}
    for name, condition in spec.resolved.items():
        if why := _never_binds(condition):
            parts[f"conditions.{name}.settings.objective.advantage_clip"] = why
        objective = condition.config.objective
        if objective.sepa_lambda and not objective.gtpo_beta:
            parts[f"conditions.{name}.settings.objective.sepa_lambda"] = WITHOUT_GTPO
    return parts


def _never_binds(condition: ResolvedCondition) -> str:
    loss = condition.config.objective
    # Advantages of single tokens have no bound, and a step's standard deviation has no lower bound.
    unbounded = loss.has_credit or (loss.scale_rewards == "batch" and condition.prompts_per_step > 1)
    if loss.advantage_clip is None or loss.loss_type == "nll" or unbounded:
        return ""
    from probe.objective.advantages import advantage_bound  # brings torch, for those alone who ask

    scale = "none" if loss.scale_rewards == "none" else "group"
    spread = condition.config.reward_range
    bound = advantage_bound(condition.group, spread, estimator=loss.advantage_estimator, scale=scale)
    if loss.advantage_clip < bound:
        return ""
    return (
        f"the cap {loss.advantage_clip:g} is not below {bound:.3g}, the largest |A| of a group of {condition.group} "
        f"(estimator {loss.advantage_estimator}, scale {loss.scale_rewards}, rewards {spread:g} apart): it never binds"
    )


def _groups(condition: ResolvedCondition, out_dir: Path) -> ReplaySource | None:
    """Return the groups of the pools; None for unreadable pools, which `input_faults` explains."""
    try:
        return stored_groups(condition, out_dir)
    except InputError:
        return None


def _effects(cost: Cost, planned: int, key: str, notes: list[str], *, paired: bool | None = None) -> list[Effect]:
    """The detectable effect by number of units; `notes` gets whether the planned number can detect the expected one.

    Args:
        paired: whether the test is paired by seed; None: by the better of both.
    """
    if cost.sd is None:
        notes.append(f"no detectable effect: [{key}] states no sd of the metric between units")
        return []
    effects, correlation = [], cost.paired_correlation
    # A single unit has no standard error.
    for n in sorted({count for count in (*SEED_COUNTS, planned) if count > 1}):
        by_pair = None
        if correlation is not None:
            by_pair = mde(cost.sd, n, paired_correlation=correlation)
        unpaired = mde(cost.sd, n)
        effects.append(Effect(n=n, paired=by_pair, unpaired=unpaired, planned=n == planned))
        if n != planned or cost.expected_effect is None:
            continue
        # A paired test without a stated correlation is planned as an unpaired one.
        known = {"unpaired": unpaired} if paired is not True or by_pair is None else {}
        if by_pair is not None and paired is not False:
            known["paired"] = by_pair
        design = min(known, key=known.__getitem__)
        word = "can" if known[design] <= cost.expected_effect else "CANNOT"
        text = (
            f"[{key}] {n} seeds {word} see the expected effect of {cost.expected_effect:g} {cost.effect_unit}".rstrip()
        )
        notes.append(f"{text}: the smallest detectable one is {known[design]:.3g} ({design})")
    return effects


def _prices(spec: Spec, planned: Sequence[Job], out_dir: Path, run: Path | None, notes: list[str]) -> list[Price]:
    """The price of the spec's runs, and of those up to its ceiling: by measured step times, or hours that it states."""
    groups: dict[str, Sequence[Job]] = {}
    before: list[Criterion] = []
    for criterion in spec.ceilings:
        before.append(criterion)
        bought = [job for job in planned if any(is_about(job, earlier, spec) for earlier in before)]
        groups[f"up to its ceiling {criterion.name}"] = bought
    groups["this spec"] = planned
    times = mean_times([job.directory for job in planned if job.complete] if run is None else [run])
    where = str(run)
    if run is None:
        where = f"{times.runs if times else 0} finished runs of this spec"
        if times is None and (alike := _alike(spec, out_dir)):
            times = mean_times(alike)
            where = f"runs like it ({', '.join(path.name for path in alike)})"
    if times is None and run is not None:
        raise InputError(run / "timings.jsonl", expected="times of a run", found="none", fix="give one of out/runs/")
    steps: dict[str, int | None] = {}
    for name, condition in spec.resolved.items():
        steps[name] = condition.config.steps
        if steps[name] is None and (groups_of_pools := _groups(condition, out_dir)) is not None:
            steps[name] = groups_of_pools.num_steps
    if times is not None and None not in steps.values():
        source = f"measured in {where}: {times.step:.3g} s a step, {times.start:.3g} s before the first; one at a time"
        prices = []
        for what, priced in groups.items():
            seconds = sum(times.start + (steps[job.conditions[0]] or 0) * times.step for job in priced)
            prices.append(_price(what, spec.budget, len(priced), seconds / 3600, source))
        return prices
    if times is not None:
        notes.append("hours from step times: the number of steps is not known before the pools are generated")
    hours = spec.budget.hours_per_run
    if hours is None:
        notes.append(
            f"no hours and no money: no run in {out_dir / 'runs'} has timed steps as large; run 2 steps, or give "
            "--run RUN, or hours_per_run in [budget]"
        )
        return []
    source = "[budget] hours_per_run, as stated"
    return [_price(what, spec.budget, len(priced), len(priced) * hours, source) for what, priced in groups.items()]


def _alike(spec: Spec, out_dir: Path) -> list[Path]:
    """The runs in `out_dir` with steps as large as all of the spec's; none where its own differ."""
    settings = [asdict(condition.config) for condition in spec.resolved.values()]
    sizes = [*map(step_size, settings)]
    return runs_alike(settings[0], out_dir) if all(size == sizes[0] for size in sizes) else []


def _price(what: str, cost: Cost, runs: int, hours: float, source: str) -> Price:
    money = None if cost.price_per_hour is None else hours * cost.price_per_hour
    return Price(what=what, runs=runs, hours=hours, money=money, currency=cost.currency, source=source)
