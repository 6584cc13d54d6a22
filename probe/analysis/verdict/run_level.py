"""What is known of a run as a whole: how its data were made, which runs it can be compared with, one number a metric.

Steps of training are autocorrelated, so that the run is the unit of everything that was measured in its steps. Over
runs the seed is the unit, and, secondary, the held-out problem: its interval holds for other problems, not for other
seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from probe.analysis.metric_table import Estimate, MetricKey, Metrics, estimate, mean_by_unit
from probe.analysis.training_outcome import deployed
from probe.analysis.verdict.evidence import Evidence, GateFacts, PoolFacts, RealisedUpdate
from probe.records.records import StepRecord
from probe.records.run import ROLLOUTS_DIR, Run
from replay_pools.files import dump_json, sha256
from replay_pools.pool import MANIFEST_NAME


def pool_facts(run: Run) -> list[PoolFacts]:
    """The pools of a run, a training run's own rollouts and its teacher's. A pool that has moved or changed since says
    nothing: its facts are None.
    """
    pools = run.config.get("pools", ())
    facts = [_facts(pool["name"], Path(pool["path"]), pool["manifest_sha256"]) for pool in pools]
    if own := run.manifest.get("files", {}).get(f"{ROLLOUTS_DIR}/{MANIFEST_NAME}"):
        facts.insert(0, _facts(ROLLOUTS_DIR, run.path / ROLLOUTS_DIR, own))
    return facts


def gate_facts(run: Run) -> GateFacts:
    """The gate options of a run."""
    settings = run.config.get(str(run.config.get("verb")), {})
    options = settings.get("intervention", settings).get("gate", {})
    return GateFacts(**{name: options[name] for name in ("gate", "overshoot", "target") if name in options})


def _facts(name: str, directory: Path, expected: str) -> PoolFacts:
    """What a pool's manifest says, if its hash (of its bytes, or of its JSON as `Pool.identity` has it) is this one."""
    path = directory / MANIFEST_NAME
    plain = path.read_bytes() if path.is_file() else b"{}"
    manifest = orjson.loads(plain)
    if expected not in (sha256(plain), sha256(dump_json(manifest))):
        manifest = {}
    grader = manifest.get("grader") or {}
    return PoolFacts(
        name=name,
        grader=grader.get("version"),
        isolation=grader.get("isolation"),
        prompt_tail=manifest.get("prompt_tail"),
    )


def is_training(run: Run) -> bool:
    """Whether it is a run of `probe train`."""
    return run.config.get("verb") == "train"


def siblings(run: Run, others: Iterable[Run]) -> list[Run]:
    """The run first, then those of `others` with the same settings but for arm and seed; itself alone in a replay."""
    if not is_training(run):
        return [run]
    trained = [other for other in others if is_training(other) and other.path != run.path]
    return [run, *(one for one in trained if shared_settings(one.config) == shared_settings(run.config))]


def realised_update(runs: Sequence[Run]) -> RealisedUpdate | None:
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
    return RealisedUpdate(margins=margins, **hackward) if margins else None


def starts(runs: Sequence[Run]) -> list[StepRecord]:
    """The first steps of the runs that have the first one's seed: before any update, all arms are one policy."""
    same = [run for run in runs if run is runs[0] or _place(run)[1] == _place(runs[0])[1]]
    first = [min((step.step for step in run.steps), default=0) for run in same]
    return [step for run, start in zip(same, first, strict=True) for step in run.steps if step.step == start]


def _place(run: Run) -> tuple[str, str]:
    """(arm, seed) of a run of `probe train`."""
    settings = run.config["train"]
    return str(settings["intervention"]["arm"]), str(settings["seed"])


def shared_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Everything that shapes the numbers of a run of `probe train` but its arm and seed, from its `config.json`."""
    own, weights, directions = config["train"], config["base_weights_sha256"], config.get("directions")
    intervention = {**own["intervention"], "arm": None}
    fixed = {"seed": None, "preregistered": None, "weights": weights, "directions": directions}
    return {**own, "intervention": intervention, **fixed}


def training_run_metrics(e: Evidence, table: Metrics) -> dict[MetricKey, Estimate]:
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
                found[MetricKey(name, "run", arm)] = Estimate(value=value, n=1, unit="run")
        if e.outcome is not None:
            for name, value in e.outcome.values.items():
                found[MetricKey(name, "run", arm)] = Estimate(value=value, n=1, unit="run")
            for name, by_problem in e.outcome.by_problem.items():
                found[MetricKey(name, "problem", arm)] = estimate(by_problem, "problem")
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


def over_runs(tables: Mapping[str, Metrics]) -> dict[MetricKey, Estimate]:
    """{seed: metrics of its training run} -> one table.

    The unit of what was one number a run is the seed. A held-out problem has its mean over the seeds that met it. Steps
    are autocorrelated: their extremes and their number remain.
    """
    found: dict[MetricKey, Estimate] = {}
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
