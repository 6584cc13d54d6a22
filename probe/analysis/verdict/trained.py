"""The metrics of runs that train: one number a run, then one table over the seeds.

Steps of training are autocorrelated, so that the run is the unit of everything that was measured in its steps. Over
runs the seed is the unit, and, secondary, the held-out problem: its interval holds for other problems, not for other
seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from probe.analysis.estimates import Estimate, Key, Metrics, estimate, mean_by_unit
from probe.analysis.verdict.evidence import Evidence
from probe.records.records import StepRecord


def of_training(e: Evidence, table: Metrics) -> dict[Key, Estimate]:
    """The table of a run that trains: one number a metric (of a field of the steps its mean over them), the extremes of
    its steps, its held-out problems.
    """
    found = {
        key._replace(unit="run"): Estimate(value=row.value, n=1, unit="run", vacuous=row.vacuous)
        for key, row in table.items()
        if key.unit == "prompt"
    }
    for key, row in table.items():
        if key.unit == "step":
            found[key._replace(unit="run")] = Estimate(value=row.value, n=1, unit="run", vacuous=row.vacuous)
            found[key] = _extremes(row.by_unit)
    measured = e.measured.arm if e.measured else None
    for arm in dict.fromkeys([*e.summaries, None] if measured else e.summaries):
        steps = [s for s in e.steps if s.arm == (arm or measured)]
        for name, value in (("kl/share_of_base", _share_of_base(steps)), ("kl/final", _final_kl(steps))):
            if value is not None:
                found[Key(name, "run", arm)] = Estimate(value=value, n=1, unit="run")
        if e.outcome is not None:
            for name, value in e.outcome.values.items():
                found[Key(name, "run", arm)] = Estimate(value=value, n=1, unit="run")
            for name, by_problem in e.outcome.by_problem.items():
                found[Key(name, "problem", arm)] = estimate(by_problem, "problem")
    return found


def _share_of_base(steps: Iterable[StepRecord]) -> float | None:
    """KL from the reference over KL from the base; None while the policy is the base, or where neither is known."""
    own = base = 0.0
    for step in steps:
        mean = step.kl.get("mean")
        from_base = mean if step.reference == "base" else step.kl.get("from_base")
        if mean is not None and from_base is not None:
            own, base = own + mean, base + from_base
    return own / base if base > 0 else None


def _final_kl(steps: Sequence[StepRecord]) -> float | None:
    """Mean of the KL over the last quarter of the steps, at least one: on-policy, where a teacher has left by then."""
    values = [mean for step in steps if (mean := step.kl.get("mean")) is not None]
    last = values[-max(1, len(values) // 4) :]
    return sum(last) / len(last) if last else None


def over_runs(tables: Mapping[str, Metrics]) -> dict[Key, Estimate]:
    """{seed: metrics of its training run} -> one table.

    The unit of what was one number a run is the seed. A held-out problem has its mean over the seeds that met it. Steps
    are autocorrelated: their extremes and their number remain.
    """
    found: dict[Key, Estimate] = {}
    for key in sorted({key for table in tables.values() for key in table}, key=str):
        rows = {seed: table[key] for seed, table in tables.items() if key in table}
        if key.unit == "run":
            by_seed = {seed: row.value for seed, row in rows.items() if row.value is not None}
            vacuous = next((row.vacuous for row in rows.values() if row.vacuous), None)
            found[key._replace(unit="seed")] = replace(estimate(by_seed, "seed"), vacuous=vacuous)
        elif key.unit == "problem":
            found[key] = estimate(mean_by_unit([row.by_unit for row in rows.values()]), "problem")
        elif key.unit == "step":
            found[key] = _extremes({f"{s}/{step}": v for s, row in rows.items() for step, v in row.by_unit.items()})
    return found


def _extremes(by_step: Mapping[str, float]) -> Estimate:
    """Steps of training: no mean with an interval, because they are not independent."""
    values = list(by_step.values())
    return Estimate(value=None, n=len(values), unit="step", minimum=min(values), maximum=max(values), by_unit=by_step)
