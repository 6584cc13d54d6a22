"""Every number of a run as one flat table of estimates, which criteria are evaluated from.

A key names the metric, the unit of its n, and the arm and condition where it is not those that stand for vanilla and
the first. Names are those of the records (`cos_in`, `advantage/abs_max`, `kl/mean`, `cos_S_contrib`, `hacked`, ...), in
training those of `probe.analysis.training_outcome` (`hack_final`, ...), and

    cos_in_mean         cos_in along the direction of the mean pair difference
    d_cos_in            cos_in of a prompt minus its mean under N2
    hack_difference     within-prompt difference of cos_S_contrib, hacked minus clean, among A > 0
    pure_hack_difference  the same of cos_S_nll among hacks, those that are wrong minus those that are right
    auroc, auroc/SCORE  AUROC for hacked among A > 0: of cos_S_contrib, of a trivial score
    pair_sign           1 for a held-out pair with the sign of v_hack, else 0
    module_p            family-wise p of the modules (max-T)
    kl/final            mean of kl/mean over the last quarter of the steps of training
    kl/share_of_base    KL from the reference over KL from the base, both summed over steps: 1 where the reference is
                        the base, whatever it is called

In a run that trains, the steps are autocorrelated: the run is the unit, and gives one number a metric (unit `run`).
Over several such runs the seed is the unit, and, secondary, the held-out problem (its mean over the seeds).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from probe.analysis.measures.contrasts import HACK_AMONG_PAID, PURE_HACK
from probe.analysis.measures.specificity import SCORES, beaten_by
from probe.analysis.metric_table import Estimate, MetricKey, Metrics, estimate
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.statistics.stats import prompt_means, within_prompt_differences
from probe.analysis.training_outcome import MOVED, PLACES, RATES
from probe.analysis.verdict.evidence import Evidence
from probe.analysis.verdict.run_level import of_training
from probe.records.records import ADVANTAGE_KEYS, KL_KEYS, RATIO_KEYS, SampleRecord, StepRecord
from probe.settings.words import NO_HINT
from replay_pools.environments.loopholes import LOOPHOLES

SAMPLE_METRICS = (
    *("reward", "hacked", "gt_pass", "fmt_ok", "comp_len", "advantage", "hint", "nll"),
    *("cos_S_contrib", "cos_S_nll", "grad_norm_contrib"),
)
STEP_METRICS = (
    *("cos_in", "cos_out", "mean_cos_in", "mean_cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired"),
    *("reward_mean", "reward_std", "reward_spread", "grad_norm", "num_effective", "additivity_error"),
    *("cos_update", "hackward_frac_update", "direction_age", "direction_overlap"),
)
BASELINES = tuple(score for score in SCORES if score != "cos_S_contrib")
# Of steps in which the policy moves, and with it its reference, its directions and the strength of its penalty.
MOVING = (
    "cos_update",
    "hackward_frac_update",
    "direction_overlap",
    *(f"kl/{key}" for key in KL_KEYS if key not in ("mean", "max")),
)
DRAWN = ("N2", "N3", "N4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Where a metric exists."""

    units: tuple[str, ...]
    nulls: tuple[str, ...] = ()
    measured_alone: bool = False  # of the arm that stands for vanilla, and of no other


_DERIVED = {
    "cos_in_mean": Availability(units=("prompt",), nulls=("pair-swap",), measured_alone=True),
    "d_cos_in": Availability(units=("prompt",), nulls=DRAWN, measured_alone=True),
    "hack_difference": Availability(units=("prompt",), nulls=("N1", *DRAWN), measured_alone=True),
    "pure_hack_difference": Availability(units=("prompt",), nulls=("N1",), measured_alone=True),
    "auroc": Availability(units=("prompt",), nulls=(*DRAWN, "baselines"), measured_alone=True),
    **{f"auroc/{score}": Availability(units=("prompt",), measured_alone=True) for score in BASELINES},
    "module_p": Availability(units=("module",), measured_alone=True),
    "pair_sign": Availability(units=("pair",), measured_alone=True),
}


def replay_metrics() -> dict[str, Availability]:
    """{metric: where it exists} in a replay with frozen weights. A null of `cos_in` is of the measured arm alone."""
    found = {name: Availability(units=("prompt", "step")) for name in _step_names() if name not in MOVING}
    found |= dict.fromkeys(SAMPLE_METRICS, Availability(units=("prompt", "sample")))
    found["cos_in"] = Availability(units=("prompt", "step"), nulls=("N1", *DRAWN))
    return found | _DERIVED


def training_metrics() -> dict[str, Availability]:
    """{metric: where it exists} in runs that train: one number a run, so that the seed is the unit; no nulls."""
    names = [*SAMPLE_METRICS, *(name for name, entry in _DERIVED.items() if "prompt" in entry.units)]
    found = dict.fromkeys(names, Availability(units=("seed",))) | dict.fromkeys(
        _step_names(), Availability(units=("seed", "step"))
    )
    found |= dict.fromkeys(("kl/final", "kl/share_of_base", *MOVED.values()), Availability(units=("seed",)))
    rates = [f"{rate}_{place}" for rate, place in product(RATES, PLACES)]
    settings = ["", *(f"/{name}" for name in (*LOOPHOLES, NO_HINT))]
    return found | {
        f"{rate}{setting}": Availability(units=("seed", "problem")) for rate in rates for setting in settings
    }


def _step_names() -> Iterator[str]:
    yield from (*STEP_METRICS, *ADVANTAGE_KEYS)
    yield from (f"kl/{key}" for key in KL_KEYS)
    yield from (f"ratio/{key}" for key in RATIO_KEYS)


def metrics(evidence: Evidence, samples: Sequence[SampleRecord]) -> dict[MetricKey, Estimate]:
    """The table of one run.

    Args:
        evidence: what the verdicts are made from.
        samples: of all arms.
    """
    table: dict[MetricKey, Estimate] = {}
    measured = evidence.measured.arm if evidence.measured else None
    for arm in evidence.summaries:
        steps, own = [s for s in evidence.steps if s.arm == arm], [s for s in samples if s.arm == arm]
        for (metric, unit), by_unit in (_step_rows(steps) | _sample_rows(own)).items():
            table[MetricKey(metric, unit, arm)] = estimate(by_unit, unit)
        for key in [key for key in table if key.metric == "adv_cap_fraction" and key.arm == arm]:
            table[key] = replace(table[key], vacuous=_never_caps(steps))
    table |= {key._replace(arm=None): row for key, row in table.items() if key.arm == measured}
    for key, row in _derived(evidence, table).items():
        table |= {key._replace(arm=arm): row for arm in (None, measured)}
    return of_training(evidence, table) if evidence.trains else table


def _never_caps(steps: Sequence[StepRecord]) -> str | None:
    """Why the share of capped advantages is 0 whatever the rewards are."""
    if not all(step.advantage["adv_cap_vacuous"] is True for step in steps):
        return None
    return "the cap is not below the largest advantage that a group can have"


def _derived(e: Evidence, table: Metrics) -> dict[MetricKey, Estimate]:
    """Statistics that are no plain mean of a field, and the nulls of those that are."""
    found: dict[MetricKey, Estimate] = {}
    cosine = table.get(MetricKey("cos_in", "prompt"))
    if cosine is not None:
        found[MetricKey("cos_in", "prompt")] = estimate(cosine.by_unit, "prompt", nulls=_nulls(e, "cos_in") | _haar(e))
    if e.permutation is not None:
        swapped = _nulls(e, "cos_in_mean")
        value = next((row.value for row in e.permutation.rows if row.metric == "cos_in_mean"), None)
        n = len(e.permutation.excess)
        found[MetricKey("cos_in_mean", "prompt")] = Estimate(value=value, n=n, unit="prompt", nulls=swapped)
        found[MetricKey("d_cos_in", "prompt")] = estimate(e.permutation.excess, "prompt", nulls=_nulls(e, "cos_in"))
        by_module = {row.module: row.p_max_t for row in e.permutation.modules}
        found[MetricKey("module_p", "module")] = estimate(by_module, "module")
    paid = [s for s in e.samples if s.advantage > 0]
    hack = _differences([(s, s.cos_S_contrib, s.hacked) for s in paid])
    pure = _differences([(s, s.cos_S_nll, not s.gt_pass) for s in e.samples if s.hacked])
    found[MetricKey("hack_difference", "prompt")] = estimate(
        hack, "prompt", nulls=_nulls(e, "hack_difference") | _haar_of(e, HACK_AMONG_PAID)
    )
    found[MetricKey("pure_hack_difference", "prompt")] = estimate(pure, "prompt", nulls=_haar_of(e, PURE_HACK))
    for row in (e.specificity, *e.baselines):
        if row is not None:
            own = row is e.specificity
            found[MetricKey("auroc" if own else f"auroc/{row.score}", "prompt")] = Estimate(
                value=row.auroc,
                n=row.num_prompts,
                unit="prompt",
                interval=row.interval,
                nulls=_nulls(e, "auroc") if own else {},
                beaten_by=tuple(beaten_by(row, e.baselines)) if own and e.baselines else None,
            )
    if e.transfer is not None:
        found[MetricKey("pair_sign", "pair")] = Estimate(
            value=e.transfer.accuracy, n=e.transfer.num_pairs, unit="pair", interval=e.transfer.interval
        )
    return found


def _step_rows(steps: Iterable[StepRecord]) -> dict[tuple[str, str], dict[str, float]]:
    """{(metric, unit): {unit: value}} of the fields of one arm's steps, by step and by prompt."""
    by_step: dict[str, dict[str, float]] = {}
    problem: dict[str, str] = {}
    for step in steps:
        name = str(step.step)
        problem[name] = step.problem_id
        values = {metric: getattr(step, metric) for metric in STEP_METRICS} | step.advantage
        values |= {f"kl/{key}": value for key, value in step.kl.items()}
        values |= {f"ratio/{key}": value for key, value in step.ratio.items()}
        for metric, value in values.items():
            if value is not None:
                by_step.setdefault(metric, {})[name] = float(value)
    found = {}
    for metric, rows in by_step.items():
        found[metric, "step"] = rows
        found[metric, "prompt"] = _strings(prompt_means(list(rows.values()), [problem[name] for name in rows]))
    return found


def _sample_rows(samples: Iterable[SampleRecord]) -> dict[tuple[str, str], dict[str, float]]:
    """{(metric, unit): {unit: value}} of the fields of one arm's samples, by sample (naive) and by prompt."""
    rows = list(samples)
    found = {}
    for metric in SAMPLE_METRICS:
        values = [(s, float(v)) for s in rows if (v := getattr(s, metric)) is not None]
        found[metric, "sample"] = {f"{s.step}/{s.sample_id}": value for s, value in values}
        by_prompt = prompt_means([value for _, value in values], [s.problem_id for s, _ in values])
        found[metric, "prompt"] = _strings(by_prompt)
    return found


def _differences(rows: Sequence[tuple[SampleRecord, float | None, bool]]) -> dict[str, float]:
    """{prompt: mean of the labelled minus mean of the others} of (sample, value, label)."""
    present = [(s, value, label) for s, value, label in rows if value is not None]
    found = within_prompt_differences(
        [value for _, value, _ in present], [label for _, _, label in present], [s.problem_id for s, _, _ in present]
    )
    return _strings(found)


def _nulls(e: Evidence, metric: str) -> dict[str, NullTest]:
    return {row.null: row.test for row in e.permutation.rows if row.metric == metric} if e.permutation else {}


def _haar(e: Evidence) -> dict[str, NullTest]:
    """N1 of the mean cosine."""
    if e.measured is None or e.measured.haar is None:
        return {}
    return {"N1": e.measured.haar.null()}


def _haar_of(e: Evidence, contrast: str) -> dict[str, NullTest]:
    """N1 of a within-prompt difference."""
    row = next((c for c in e.contrasts if c.name == contrast), None)
    if row is None or row.haar is None or row.difference is None:
        return {}
    return {"N1": row.haar.null(row.difference)}


def _strings(values: Mapping) -> dict[str, float]:
    return {str(key): value for key, value in values.items()}
