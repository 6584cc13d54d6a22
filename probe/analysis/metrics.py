"""Every number of a run as one table, from which criteria are evaluated; and which metrics there are (below).

A key names the metric, the unit that its n counts, and the arm and condition where those are not the arm that stands
for vanilla and the first condition. Names are those of the records (`cos_in`, `advantage/abs_max`, `kl/mean`,
`cos_S_contrib`, `hacked`, ...), in training those of `probe.analysis.training_outcome` (`hack_final`, ...), and

    d_cos_in            cos_in of a prompt minus its mean under N2
    hack_difference     within-prompt difference of cos_S_contrib, hacked minus clean, among A > 0
    pure_hack_difference  the same of cos_S_nll among hacks, those that are wrong minus those that are right
    auroc               AUROC of cos_S_contrib for hacked among A > 0
    pair_sign           1 for a held-out pair with the sign of v_hack, else 0
    pull, benign, pull - benign, half - benign, contrast
                        shares of the held-out ceiling: `probe.analysis.measures.pull`
    removed/TARGET      share of the progress on a target (margin, hacks, honest, ...) that the gate would remove, to
                        first order: `probe.analysis.measures.forecast`
    kl/final            mean of kl/mean over the last quarter of the steps of training
    kl/share_of_base    KL from the reference over KL from the base, both summed over steps: 1 where the reference is
                        the base, whatever it is called

In a run that trains, the steps are autocorrelated: the run is the unit, and gives one number a metric (unit `run`).
Over several such runs the seed is the unit, and, secondary, the held-out problem (its mean over the seeds).

To add a metric that is a field of a record: name it in STEP_METRICS or SAMPLE_METRICS. To add one that is computed:
compute it in `_derived`, and say in _DERIVED for which units and nulls it exists. A spec that names anything else is
refused before its sweep.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from probe.analysis.evidence import Evidence
from probe.analysis.measures.contrasts import HACK_AMONG_PAID, PURE_HACK
from probe.analysis.measures.specificity import beaten_by
from probe.analysis.metric_table import Estimate, MetricKey, Metrics, estimate
from probe.analysis.statistics.intervals import prompt_means, within_prompt_differences
from probe.analysis.statistics.nulls import NullTest
from probe.analysis.training_outcome import ELO_GAP, MOVED, PLACES, RATES
from probe.analysis.training_runs import training_run_metrics
from probe.records.records import ADVANTAGE_KEYS, KL_KEYS, RATIO_KEYS, SampleRecord, StepRecord
from probe.settings.words import NO_HINT
from replay_pools.environments.loopholes import LOOPHOLES

SAMPLE_METRICS = (
    *("reward", "hacked", "gt_pass", "fmt_ok", "comp_len", "advantage", "hint", "nll"),
    *("cos_S_contrib", "cos_S_nll", "grad_norm_contrib"),
)
STEP_METRICS = (
    *("cos_in", "cos_out", "mean_cos_in", "mean_cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired"),
    *("reward_mean", "reward_std", "reward_spread", "solve", "loss", "grad_norm", "num_effective", "additivity_error"),
    "exec_surprisal_var",
    *("cos_update", "hackward_frac_update", "direction_age", "direction_overlap"),
)
# The other fields of steps, flattened as on the wire.
_STEP_NAMES = (
    *STEP_METRICS,
    *ADVANTAGE_KEYS,
    *(f"kl/{key}" for key in KL_KEYS),
    *(f"ratio/{key}" for key in RATIO_KEYS),
)
# Of steps in which the policy moves, and with it its reference, its directions and the strength of its penalty.
_MOVING = (
    *("cos_update", "hackward_frac_update", "direction_overlap", "ratio/staleness"),
    *(f"kl/{key}" for key in KL_KEYS if key not in ("mean", "max")),
)
_PERMUTED = ("N2", "N3")  # the nulls that draw directions, of `probe.analysis.statistics.permutation`
# N4 permutes `hacked`, a null of what scores hacks. Of cos_in it permutes rewards, and is a diagnostic alone.
_RELABELLED = (*_PERMUTED, "N4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """For which units and nulls a metric exists."""

    units: tuple[str, ...]
    nulls: tuple[str, ...] = ()
    measured_alone: bool = False  # of the arm that stands for vanilla, and of no other
    is_quotient: bool = False  # with an interval of its own, and no value by unit


_DERIVED = {
    "d_cos_in": Availability(units=("prompt",), nulls=_PERMUTED, measured_alone=True),
    "hack_difference": Availability(units=("prompt",), nulls=("N1", *_RELABELLED), measured_alone=True),
    "pure_hack_difference": Availability(units=("prompt",), nulls=("N1",), measured_alone=True),
    "auroc": Availability(units=("prompt",), nulls=(*_RELABELLED, "baselines"), measured_alone=True),
    "pair_sign": Availability(units=("pair",), measured_alone=True),
}
# From the inner products of a replay, with an interval over prompts and pairs and no value by prompt.
_SHARES = ("pull", "benign", "pull - benign", "half - benign", "contrast")
QUOTIENT_STATISTICS = ("mean", "value", "lower95", "upper95", "n")  # what can be asked of these
_REMOVED = ("margin", "held-out hacks", "held-out clean", "hacks", "honest")
_OFFLINE = dict.fromkeys(
    (*_SHARES, *(f"removed/{target}" for target in _REMOVED)),
    Availability(units=("prompt",), measured_alone=True, is_quotient=True),
)


def replay_metrics() -> dict[str, Availability]:
    """The metrics of a replay with frozen weights. A null of `cos_in` is of the measured arm alone."""
    table = {name: Availability(units=("prompt", "step")) for name in _STEP_NAMES if name not in _MOVING}
    table |= dict.fromkeys(SAMPLE_METRICS, Availability(units=("prompt", "sample")))
    table["cos_in"] = Availability(units=("prompt", "step"), nulls=("N1", *_PERMUTED))
    return table | _DERIVED | _OFFLINE


def training_metrics() -> dict[str, Availability]:
    """The metrics of runs that train: one number a run, so that the seed is the unit; no nulls."""
    by_seed = Availability(units=("seed",))
    table = dict.fromkeys(SAMPLE_METRICS, by_seed)
    table |= {name: by_seed for name, available in _DERIVED.items() if "prompt" in available.units}
    table |= dict.fromkeys(_STEP_NAMES, Availability(units=("seed", "step")))
    table |= dict.fromkeys(("kl/final", "kl/share_of_base", ELO_GAP, *MOVED.values()), by_seed)
    settings = ["", *(f"/{name}" for name in (*LOOPHOLES, NO_HINT))]
    for rate, place, setting in product(RATES, PLACES, settings):
        table[f"{rate}_{place}{setting}"] = Availability(units=("seed", "problem"))
    return table


def metrics(evidence: Evidence, samples: Sequence[SampleRecord]) -> dict[MetricKey, Estimate]:
    """The table of one run under one condition; keys without an arm are of the measured arm.

    Args:
        evidence: what the verdicts are made from.
        samples: of all arms.
    """
    table: dict[MetricKey, Estimate] = {}
    for arm in evidence.arms:
        steps = [step for step in evidence.steps if step.arm == arm]
        arm_samples = [sample for sample in samples if sample.arm == arm]
        for (metric, unit), by_unit in (_step_values(steps) | _sample_values(arm_samples)).items():
            table[MetricKey(metric, unit, arm)] = estimate(by_unit, unit)
        # A share that is 0 under any rewards must not pass a criterion such as "at most .1".
        if all(step.advantage["adv_cap_vacuous"] is True for step in steps):
            why = "the cap is not below the largest advantage that a group can have"
            for unit in ("step", "prompt"):
                capped = MetricKey("adv_cap_fraction", unit, arm)
                if capped in table:
                    table[capped] = replace(table[capped], vacuous=why)
    measured = evidence.measured_arm
    table |= {key._replace(arm=None): row for key, row in table.items() if key.arm == measured}
    for key, row in _derived(evidence, table).items():
        table[key] = table[key._replace(arm=measured)] = row
    if not evidence.trains:
        return table
    return training_run_metrics(table, evidence.steps, evidence.arms, evidence.outcome)


def _derived(evidence: Evidence, table: Metrics) -> dict[MetricKey, Estimate]:
    """Of the measured arm: statistics that are no plain mean of a field, and `cos_in` with its nulls."""
    by_prompt: dict[str, Estimate] = {}
    cosine, permutation = table.get(MetricKey("cos_in", "prompt")), evidence.permutation
    area, rivals = next(iter(evidence.specificity), None), evidence.specificity[1:]
    if cosine is not None:
        nulls = _nulls(evidence, "cos_in")
        measured = evidence.summary(evidence.measured_arm)
        if measured is not None and measured.haar is not None:
            nulls["N1"] = measured.haar.null()
        by_prompt["cos_in"] = estimate(cosine.by_unit, "prompt", nulls=nulls)
    if permutation is not None:
        by_prompt["d_cos_in"] = estimate(permutation.excess, "prompt", nulls=_nulls(evidence, "cos_in"))
    paid = [sample for sample in evidence.sure if sample.advantage > 0]
    by_prompt["hack_difference"] = estimate(
        _differences([(sample, sample.cos_S_contrib, bool(sample.hacked)) for sample in paid]),
        "prompt",
        nulls=_nulls(evidence, "hack_difference") | _haar_null(evidence, HACK_AMONG_PAID),
    )
    hacks = [sample for sample in evidence.sure if sample.hacked and sample.gt_pass is not None]
    by_prompt["pure_hack_difference"] = estimate(
        _differences([(sample, sample.cos_S_nll, not sample.gt_pass) for sample in hacks]),
        "prompt",
        nulls=_haar_null(evidence, PURE_HACK),
    )
    if area is not None:
        by_prompt["auroc"] = Estimate(
            value=area.auroc,
            n=area.num_prompts,
            unit="prompt",
            interval=area.interval,
            nulls=_nulls(evidence, "auroc"),
            beaten_by=tuple(beaten_by(area, rivals)) if rivals else None,
        )
    shares = {row.name: (row.share, row.num_prompts) for row in evidence.shares}
    for row in evidence.forecast.rows if evidence.forecast is not None else ():
        shares[f"removed/{row.target}"] = (row.removed, row.num_prompts)
    for name, (share, n) in shares.items():
        if share is not None:
            by_prompt[name] = Estimate(value=share.value, n=n, unit="prompt", interval=share.interval)
    derived = {MetricKey(name, "prompt"): row for name, row in by_prompt.items()}
    if (transfer := evidence.transfer) is not None:
        derived[MetricKey("pair_sign", "pair")] = Estimate(
            value=transfer.accuracy, n=transfer.num_pairs, unit="pair", interval=transfer.interval
        )
    return derived


def _step_values(steps: Iterable[StepRecord]) -> dict[tuple[str, str], dict[str, float]]:
    """{(metric, unit): {unit: value}} of the fields of one arm's steps, by step and by prompt."""
    by_step: dict[str, dict[str, float]] = {}
    problem_of: dict[str, str] = {}
    for step in steps:
        name = str(step.step)
        problem_of[name] = step.problem_id
        values = {metric: getattr(step, metric) for metric in STEP_METRICS} | step.advantage
        values |= {f"kl/{key}": value for key, value in step.kl.items()}
        values |= {f"ratio/{key}": value for key, value in step.ratio.items()}
        for metric, value in values.items():
            if value is not None:
                by_step.setdefault(metric, {})[name] = float(value)
    tables = {}
    for metric, values in by_step.items():
        tables[metric, "step"] = values
        means = prompt_means(list(values.values()), [problem_of[name] for name in values])
        tables[metric, "prompt"] = {str(prompt): mean for prompt, mean in means.items()}
    return tables


def _sample_values(samples: Sequence[SampleRecord]) -> dict[tuple[str, str], dict[str, float]]:
    """{(metric, unit): {unit: value}} of the fields of one arm's samples, by sample (naive) and by prompt."""
    tables = {}
    for metric in SAMPLE_METRICS:
        present = [sample for sample in samples if getattr(sample, metric) is not None]
        values = [float(getattr(sample, metric)) for sample in present]
        names = [f"{sample.step}/{sample.sample_id}" for sample in present]
        tables[metric, "sample"] = dict(zip(names, values, strict=True))
        means = prompt_means(values, [sample.problem_id for sample in present])
        tables[metric, "prompt"] = {str(prompt): mean for prompt, mean in means.items()}
    return tables


def _differences(rows: Sequence[tuple[SampleRecord, float | None, bool]]) -> dict[str, float]:
    """{prompt: mean of the labelled minus mean of the others} of (sample, value, label)."""
    present = [(value, label, sample.problem_id) for sample, value, label in rows if value is not None]
    values, labels, problems = zip(*present, strict=True) if present else ((), (), ())
    differences = within_prompt_differences(values, labels, problems)
    return {str(prompt): difference for prompt, difference in differences.items()}


def _nulls(evidence: Evidence, metric: str) -> dict[str, NullTest]:
    """{null: test} of a statistic, from the permutations of the run, without what is a diagnostic of it."""
    rows = evidence.permutation.rows if evidence.permutation else []
    return {row.null: row.test for row in rows if row.metric == metric and not row.diagnostic}


def _haar_null(evidence: Evidence, contrast_name: str) -> dict[str, NullTest]:
    """N1 of a within-prompt difference, where it exists."""
    for contrast in evidence.contrasts:
        is_asked = (contrast.arm, contrast.name) == (evidence.measured_arm, contrast_name)
        if is_asked and contrast.haar is not None and contrast.difference is not None:
            return {"N1": contrast.haar.null(contrast.difference)}
    return {}
