"""`probe plan`: detectable effects of a spec, and its cost in hours, money and memory. Runs nothing, loads no weights.

    effect    the minimum detectable effect of n seeds a side at 80% power, paired and unpaired (statistics.power)
    contrast  the same of sign flips over the prompts of a replay, or the held-out problems of a training
    hours     runs x (start + steps x seconds a step), measured in a run that is named, in finished runs of the spec, or
              in trainings of its model; or runs x hours as the budget states them
    modules   which part of the model is adapted (probe.runs.footprint)
    memory    exact sizes of what the probe holds beside activations (probe.runs.footprint)

Where a number cannot be given, `SpecPlan.notes` says what is missing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.analysis.statistics.power import mde, pairing_pays_above, sign_flip_mde
from probe.analysis.statistics.thresholds import ALPHA, POWER
from probe.experiments.planning.checks import environment_faults, input_faults
from probe.experiments.spec.floors import num_units, sign_flip_floor
from probe.experiments.spec.jobs import is_compared, runs_of
from probe.experiments.spec.stored import stored_if_readable
from probe.experiments.spec.types import Cost, ResolvedCondition, Spec
from probe.experiments.spec.vacuity import Vacuous, vacuous_parts
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, settings_of
from probe.records.timings import MeanTimes, mean_times
from replay_pools.errors import InputError
from replay_pools.pool import MANIFEST_NAME, resolve_pool
from replay_pools.storage.files import read_json

# footprint brings torch, which the help text of `probe plan` must not wait for.
if TYPE_CHECKING:
    from probe.runs.footprint import Footprint

SEED_COUNTS = (2, 3, 4, 5, 8, 12, 20)  # rows of the table of effects, beside the planned number


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Minimum detectable effect of `n` units a side, in the units of the metric."""

    n: int
    paired: float | None  # None: no correlation of the arms is stated
    unpaired: float
    planned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastEffect:
    """Minimum detectable mean over `n` prompts or problems, in standard deviations of the contrast between them."""

    condition: str
    unit: str
    n: int
    effect: float

    @property
    def text(self) -> str:
        """A sentence."""
        what = f"Over the {self.n} {self.unit}s of {self.condition}"
        if math.isinf(self.effect):
            return f"{what} sign flips see nothing at {ALPHA:.0%}: their smallest p is {sign_flip_floor(self.n):.3g}"
        seen = f"{what} sign flips see a mean of {self.effect:.2f} sd between {self.unit}s"
        return f"{seen}, with {POWER:.0%} power at {ALPHA:.0%}"


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
    contrasts: list[ContrastEffect]  # of the units that criteria are about beside seeds
    prices: list[Price]
    footprint: "Footprint | None"  # None: no model is known
    vacuous: list[Vacuous]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None; the footprint's fields beside the others."""
        row = asdict(self)
        footprint = row.pop("footprint")
        return row | (footprint or {"model": None, "modules": [], "memory": []})


def make_plan(spec: Spec, *, out_dir: Path, run: Path | None = None, model: str | None = None) -> SpecPlan:
    """The plan of a spec.

    Args:
        out_dir: where pools, and finished runs of the spec, are looked up.
        run: the run whose times give the hours; default: finished runs of the spec.
        model: the model whose modules and memory are shown; default: that of the condition that needs most.
    """
    notes = [str(error) for error in (*input_faults(spec, out_dir), *environment_faults(spec))]
    go = spec.budget.go or Cost()
    needed = _most(spec, out_dir, model, notes)
    return SpecPlan(
        spec=spec.name,
        sha256=spec.sha256,
        runs=len(runs_of(spec, out_dir)),
        effects=_effects(spec.budget, len(spec.seeds), _designs(spec), "budget", notes),
        go_effects=_effects(go, go.seeds or 0, ("paired", "unpaired"), "budget.go", notes) if spec.budget.go else [],
        contrasts=_contrasts(spec, out_dir),
        prices=[*_own_price(spec, out_dir, run, notes), *_go_price(go)],
        footprint=needed,
        vacuous=vacuous_parts(spec, out_dir),
        notes=notes,
    )


def _contrasts(spec: Spec, out_dir: Path) -> list[ContrastEffect]:
    """What a mean over prompts or problems can show, a row for each condition and unit that a criterion is about."""
    rows = []
    asked = [(spec.condition_of(criterion).name, criterion.unit) for criterion in spec.criteria]
    for condition, unit in dict.fromkeys(asked):
        n = num_units(spec, spec.resolved[condition], unit, out_dir) if unit in ("prompt", "problem") else None
        if n is not None:
            effect = sign_flip_mde(1.0, n, alpha=ALPHA, power=POWER)
            rows.append(ContrastEffect(condition=condition, unit=unit, n=n, effect=effect))
    return rows


def _designs(spec: Spec) -> tuple[str, ...]:
    """The design (paired by seed or not) that the primary criterion is tested in."""
    return ("paired",) if spec.primary.paired else ("unpaired",)


def _effects(cost: Cost, planned: int, designs: Sequence[str], key: str, notes: list[str]) -> list[Effect]:
    """The detectable effect by number of units; `notes` gets whether the planned number can detect the expected one."""
    if cost.sd is None:
        notes.append(f"no detectable effect: [{key}] states no sd of the metric between units")
        return []
    effects = []
    for n in sorted({*SEED_COUNTS, planned}):
        # A single unit has no standard error.
        if n < 2:
            continue
        paired = None
        if cost.paired_correlation is not None:
            paired = mde(cost.sd, n, paired_correlation=cost.paired_correlation, alpha=ALPHA, power=POWER)
        unpaired = mde(cost.sd, n, alpha=ALPHA, power=POWER)
        effect = Effect(n=n, paired=paired, unpaired=unpaired, planned=n == planned)
        effects.append(effect)
        if effect.planned and cost.expected_effect is not None:
            notes.append(_compare(effect, cost, cost.expected_effect, designs, key))
    return effects


def _compare(effect: Effect, cost: Cost, expected: float, designs: Sequence[str], key: str) -> str:
    """A sentence: whether the best of `designs` detects the expected effect, and from what correlation pairing pays."""
    known: dict[str, float] = {}
    if "paired" in designs and effect.paired is not None:
        known["paired"] = effect.paired
    # A paired test of which no correlation is stated is planned as an unpaired one.
    if "unpaired" in designs or not known:
        known["unpaired"] = effect.unpaired
    design = min(known, key=known.__getitem__)
    word = "can" if known[design] <= expected else "CANNOT"
    text = f"[{key}] {effect.n} seeds {word} see the expected effect of {expected:g} {cost.effect_unit}".rstrip()
    text += f": the smallest detectable one is {known[design]:.3g} ({design})"
    if effect.paired is not None and effect.paired > effect.unpaired:
        text += (
            f"; pairing by seed halves the degrees of freedom and pays above a correlation of "
            f"{pairing_pays_above(effect.n, alpha=ALPHA, power=POWER):.2f} with {effect.n} seeds, "
            f"{cost.paired_correlation:g} is stated"
        )
    return text


def _own_price(spec: Spec, out_dir: Path, run: Path | None, notes: list[str]) -> list[Price]:
    """The price of the spec's runs, and of those up to its ceiling: by measured step times, or hours that it states."""
    planned = runs_of(spec, out_dir)
    jobs = [entry.job for entry in planned]
    groups = {"this spec": jobs}
    if spec.ceiling is not None:
        groups = {"up to its ceiling": [job for job in jobs if is_compared(job, spec)], **groups}
    stated = spec.budget.hours_per_run
    measured_runs = [entry.job.directory for entry in planned if entry.complete]
    if run is not None:
        measured_runs = [run]
    like = ""
    if not measured_runs:
        measured_runs, like = _trainings_like(spec, out_dir)
    times = mean_times(measured_runs) if measured_runs else None
    if times is not None:
        steps = {name: _num_steps(condition, out_dir) for name, condition in spec.resolved.items()}
        if None not in steps.values():
            prices = []
            for what, priced in groups.items():
                seconds = [times.start + (steps[job.conditions[0]] or 0) * times.step for job in priced]
                prices.append(_price(what, spec.budget, len(priced), sum(seconds) / 3600, _source(times, run, like)))
            return prices
        notes.append("hours from step times: the number of steps is not known before the pools are generated")
    elif run is not None:
        raise InputError(run / "timings.jsonl", expected="times of a run", found="none", fix="give one of out/runs/")
    if stated is None:
        notes.append("no hours: give --run RUN (a measured run), or hours_per_run in [budget]")
        return []
    source = "[budget] hours_per_run, as stated"
    return [_price(what, spec.budget, len(priced), len(priced) * stated, source) for what, priced in groups.items()]


def _trainings_like(spec: Spec, out_dir: Path) -> tuple[list[Path], str]:
    """Finished trainings whose steps are as large, by the same model; and what to call them."""
    kinds = {_step_kind(asdict(condition.config)) for condition in spec.resolved.values() if not condition.frozen}
    if len(kinds) != 1 or any(condition.frozen for condition in spec.resolved.values()):
        return [], ""
    trainings = []
    for manifest in sorted((out_dir / "runs").glob(f"*/{MANIFEST_FILE}")):
        config = manifest.parent / CONFIG_FILE
        if config.is_file() and _step_kind(settings_of(read_json(config))) in kinds:
            trainings.append(manifest.parent)
    (model, *_), *_ = kinds
    return trainings, f"finished trainings of {model} with steps of that size"


def _step_kind(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the time of a training step depends on most."""
    rollouts = settings.get("rollouts") or {}
    sampler = rollouts.get("sampler") or {}
    name = (settings.get("model") or {}).get("name")
    sizes = (rollouts.get("prompts_per_step"), rollouts.get("group"), sampler.get("max_new_tokens"))
    return name, settings.get("verb"), *sizes


def _source(times: MeanTimes, run: Path | None, like: str) -> str:
    """Where the hours of a price come from."""
    where = f"measured in {times.runs} {like or 'finished runs of this spec'}" if run is None else f"measured in {run}"
    return f"{where}: {times.step:.3g} s a step, {times.start:.3g} s before the first; one at a time"


def _go_price(go: Cost) -> list[Price]:
    """The price of the training that a GO leads to; nothing where the budget does not state its size and hours."""
    if go.seeds is None or go.arms is None or go.hours_per_run is None:
        return []
    runs = go.seeds * go.arms
    return [_price("what a GO buys", go, runs, runs * go.hours_per_run, "[budget.go] hours_per_run, as stated")]


def _price(what: str, cost: Cost, runs: int, hours: float, source: str) -> Price:
    money = None if cost.price_per_hour is None else hours * cost.price_per_hour
    return Price(what=what, runs=runs, hours=hours, money=money, currency=cost.currency, source=source)


def _num_steps(condition: ResolvedCondition, out_dir: Path) -> int | None:
    """Steps of a run: as its settings say, else a group each that its pools give; None where a pool is not there."""
    if condition.config.steps is not None:
        return condition.config.steps
    groups = stored_if_readable(condition, out_dir)
    return None if groups is None else len(groups.rewards)


def _pool_manifest(name: str, out_dir: Path) -> dict[str, Any] | None:
    """The manifest of a pool; None where the pool is not there or not complete."""
    try:
        path = resolve_pool(name, out_dir) / MANIFEST_NAME
    except InputError:
        return None
    return read_json(path) if path.is_file() else None


def _most(spec: Spec, out_dir: Path, model: str | None, notes: list[str]) -> "Footprint | None":
    """The footprint of the run that needs most memory; None where no condition names a model."""
    from probe.runs.footprint import missing_for_prompts, run_footprint  # brings torch and transformers

    footprints: list[Footprint] = []
    for name, condition in spec.resolved.items():
        config = condition.config
        policy = model or config.model.name or _base_model(condition.pools, out_dir)
        if policy is None:
            notes.append(f"no memory of condition {name}: its pools name no model yet, and it gives none")
            continue
        if _is_to_be_made(policy):
            notes.append(f"no memory of condition {name}: there is no {policy} yet")
            continue
        num_samples = condition.group * condition.prompts_per_step
        missing = missing_for_prompts(config, policy)
        for error in missing:
            # Files of problems that are not there have been noted already, and conditions lack the same ones.
            if not any(str(error) in note for note in notes):
                notes.append(f"the memory is without prompts: {error}")
        # A run that trains has one arm: each is another footprint.
        runs_arms = [(arm,) for arm in condition.arms] if config.trains else [condition.arms]
        for arms in runs_arms:
            run = replace(config, intervention=replace(config.intervention, arms=arms))
            footprints.append(run_footprint(run, policy, num_samples=num_samples, with_prompts=not missing))
    return max(footprints, key=lambda footprint: footprint.num_bytes, default=None)


def _is_to_be_made(model: str) -> bool:
    """Whether a model is a directory that is not there: no hub id has more than one slash."""
    return model.count("/") > 1 and not Path(model).exists()


def _base_model(pools: tuple[str, ...], out_dir: Path) -> str | None:
    """The base model that the pools name; None where they name none, or several."""
    manifests = [_pool_manifest(name, out_dir) for name in pools]
    names = {manifest["policy"]["base_model"] for manifest in manifests if manifest}
    return names.pop() if len(names) == 1 else None
