"""`probe plan`: what a spec can detect, what it costs in hours, money and memory. Nothing is run, no weights loaded.

    effect    the minimum detectable effect of n units a side at 80% power, paired and unpaired (probe.analysis.power)
    hours     runs x steps x seconds a step (measured in a run that is named), or as the budget states
    memory    exact sizes of what the probe holds beside activations (probe.memory)

What cannot be said is said to be so: `Plan.notes`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from extraction.pairs import load_pairs
from probe.analysis.power import mde
from probe.arms import ARMS
from probe.jobs import block
from probe.memory import Memory, memory
from probe.spec import Cost, Spec
from probe.vacuity import Resolved, Vacuous, vacuous_parts
from replay_pools.errors import InputError
from replay_pools.files import decode_jsonl, read_json
from replay_pools.policy import load_skeleton
from replay_pools.pool import MANIFEST_NAME, resolve_pool

SEED_COUNTS = (2, 3, 4, 5, 8, 12, 20)
POWER, ALPHA = 0.8, 0.05


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
class Plan:
    """Everything that can be known before the first run."""

    spec: str
    sha256: str
    runs: int
    effects: list[Effect]
    go_effects: list[Effect]  # of what a GO buys
    prices: list[Price]
    memory: list[Memory]
    vacuous: list[Vacuous]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and None."""
        return asdict(self)


def make_plan(spec: Spec, resolved: Resolved, *, out_dir: Path, run: Path | None = None) -> Plan:
    """The plan of a spec.

    Args:
        resolved: {condition: {option: value}}, defaults included.
        out_dir: where pools are looked up.
        run: a run whose step times are taken.
    """
    notes: list[str] = []
    go = spec.budget.go or Cost()
    return Plan(
        spec=spec.name,
        sha256=spec.sha256,
        runs=sum(len(block(spec, seed, out_dir)) for seed in spec.seeds),
        effects=_effects(spec.budget, len(spec.seeds), "budget", notes),
        go_effects=_effects(go, go.seeds or 0, "budget.go", notes) if spec.budget.go else [],
        prices=[*_own_price(spec, resolved, out_dir, run, notes), *_go_price(go)],
        memory=_memory_of(spec, resolved, out_dir, notes),
        vacuous=vacuous_parts(spec, resolved),
        notes=notes,
    )


def _effects(cost: Cost, planned: int, key: str, notes: list[str]) -> list[Effect]:
    """The detectable effect by number of units, and whether the planned number sees the expected one."""
    if cost.sd is None:
        notes.append(f"no detectable effect: [{key}] states no sd of the metric between units")
        return []
    found = [
        Effect(
            n=n,
            paired=None
            if cost.paired_correlation is None
            else mde(cost.sd, n, paired_correlation=cost.paired_correlation, alpha=ALPHA, power=POWER),
            unpaired=mde(cost.sd, n, alpha=ALPHA, power=POWER),
            planned=n == planned,
        )
        for n in sorted({*SEED_COUNTS, planned})
        if n >= 2
    ]
    if cost.expected_effect is not None:
        notes += [_compare(e, cost.expected_effect, cost.effect_unit, key) for e in found if e.planned]
    return found


def _compare(effect: Effect, expected: float, unit: str, key: str) -> str:
    smallest = min(value for value in (effect.paired, effect.unpaired) if value is not None)
    word = "can" if smallest <= expected else "CANNOT"
    return (
        f"[{key}] {effect.n} seeds {word} see the expected effect of {expected:g} {unit}".rstrip()
        + f": the smallest detectable one is {smallest:.3g}"
    )


def _own_price(spec: Spec, resolved: Resolved, out_dir: Path, run: Path | None, notes: list[str]) -> list[Price]:
    """What the spec's own runs cost."""
    names = [job.conditions[0] for seed in spec.seeds for job in block(spec, seed, out_dir)]
    stated = spec.budget.hours_per_run
    if run is not None:
        seconds = seconds_per_step(run)
        steps = {name: _num_steps(options, out_dir) for name, options in resolved.items()}
        if None not in steps.values():
            hours = sum(steps[name] or 0 for name in names) * seconds / 3600
            source = f"median step of {run}: {seconds:.3g} s; loading and extraction come on top"
            return [_price("this spec", spec.budget, len(names), hours, source)]
        notes.append("hours from step times: the number of steps is not known before the pools are generated")
    if stated is None:
        notes.append("no hours: give --run RUN (a measured run), or hours_per_run in [budget]")
        return []
    return [_price("this spec", spec.budget, len(names), len(names) * stated, "[budget] hours_per_run, as stated")]


def _go_price(go: Cost) -> list[Price]:
    """What a GO buys, where the budget says how much that is."""
    if go.seeds is None or go.arms is None or go.hours_per_run is None:
        return []
    runs = go.seeds * go.arms
    return [_price("what a GO buys", go, runs, runs * go.hours_per_run, "[budget.go] hours_per_run, as stated")]


def _price(what: str, cost: Cost, runs: int, hours: float, source: str) -> Price:
    money = None if cost.price_per_hour is None else hours * cost.price_per_hour
    return Price(what=what, runs=runs, hours=hours, money=money, currency=cost.currency, source=source)


def seconds_per_step(run: Path) -> float:
    """Median seconds of a step of a run, from its `timings.jsonl`; InputError when there are none."""
    path = run / "timings.jsonl"
    rows = decode_jsonl(path.read_bytes(), path) if path.is_file() else []
    if not rows:
        raise InputError(path, expected="timings of a run", found="none", fix="give a directory of out/runs/")
    seconds = sorted(float(row["seconds"]) for row in rows)
    return seconds[len(seconds) // 2]


def _num_steps(options: Mapping[str, Any], out_dir: Path) -> int | None:
    """Steps of a run: as asked for, or as many as the smallest pool holds; None for a pool that is not there."""
    if options.get("steps") is not None:
        return int(options["steps"])
    manifests = [_pool_manifest(name, out_dir) for name in options["replay_dirs"]]
    return min((m["counts"]["steps"] for m in manifests if m), default=None) if None not in manifests else None


def _pool_manifest(name: str, out_dir: Path) -> dict[str, Any] | None:
    try:
        path = resolve_pool(name, out_dir) / MANIFEST_NAME
    except InputError:
        return None
    return read_json(path) if path.is_file() else None


def _memory_of(spec: Spec, resolved: Resolved, out_dir: Path, notes: list[str]) -> list[Memory]:
    """Memory of the condition that needs most."""
    found: list[list[Memory]] = []
    for name, options in resolved.items():
        model = options.get("model") or _base_model(options["replay_dirs"], out_dir)
        if model is None:
            notes.append(f"no memory of condition {name}: its pools name no model yet, and it gives none")
            continue
        arms = [ARMS[arm] for arm in spec.arms]
        found.append(
            memory(
                load_skeleton(model),
                dtype=options["dtype"],
                bases={arm.basis for arm in arms},
                lora_rank=options["lora_rank"],
                svd_rank=options["svd_rank"],
                svd_storage=options["svd_storage"],
                num_samples=options["per_pool"] * len(options["replay_dirs"]),
                k=options["k"],
                num_direction_sets=len({arm.directions for arm in arms}),
                num_pairs=len(load_pairs(options["pairs"])),
            )
        )
    return max(found, key=lambda rows: sum(row.num_bytes for row in rows), default=[])


def _base_model(pools: tuple[str, ...], out_dir: Path) -> str | None:
    manifests = [_pool_manifest(name, out_dir) for name in pools]
    names = {m["policy"]["base_model"] for m in manifests if m}
    return names.pop() if len(names) == 1 else None
