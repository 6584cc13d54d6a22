"""Which metrics there are, by unit and null: what a criterion may name before anything was measured.

What they mean is said in `probe.analysis.metrics`, which measures them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from probe.analysis.measures.specificity import SCORES
from probe.analysis.outcome import MOVED, PLACES, RATES
from probe.records.records import ADVANTAGE_KEYS, KL_KEYS, RATIO_KEYS
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
class Entry:
    """Where a metric exists."""

    units: tuple[str, ...]
    nulls: tuple[str, ...] = ()
    measured_alone: bool = False  # of the arm that stands for vanilla, and of no other


_DERIVED = {
    "cos_in_mean": Entry(units=("prompt",), nulls=("pair-swap",), measured_alone=True),
    "d_cos_in": Entry(units=("prompt",), nulls=DRAWN, measured_alone=True),
    "hack_difference": Entry(units=("prompt",), nulls=("N1", *DRAWN), measured_alone=True),
    "pure_hack_difference": Entry(units=("prompt",), nulls=("N1",), measured_alone=True),
    "auroc": Entry(units=("prompt",), nulls=(*DRAWN, "baselines"), measured_alone=True),
    **{f"auroc/{score}": Entry(units=("prompt",), measured_alone=True) for score in BASELINES},
    "module_p": Entry(units=("module",), measured_alone=True),
    "pair_sign": Entry(units=("pair",), measured_alone=True),
}


def of_replay() -> dict[str, Entry]:
    """{metric: where it exists} in a replay with frozen weights. A null of `cos_in` is of the measured arm alone."""
    found = {name: Entry(units=("prompt", "step")) for name in _step_names() if name not in MOVING}
    found |= dict.fromkeys(SAMPLE_METRICS, Entry(units=("prompt", "sample")))
    found["cos_in"] = Entry(units=("prompt", "step"), nulls=("N1", *DRAWN))
    return found | _DERIVED


def of_training() -> dict[str, Entry]:
    """{metric: where it exists} in runs that train: one number a run, so that the seed is the unit; no nulls."""
    names = [*SAMPLE_METRICS, *(name for name, entry in _DERIVED.items() if "prompt" in entry.units)]
    found = dict.fromkeys(names, Entry(units=("seed",))) | dict.fromkeys(_step_names(), Entry(units=("seed", "step")))
    found |= dict.fromkeys(("kl/final", "kl/share_of_base", *MOVED.values()), Entry(units=("seed",)))
    rates = [f"{rate}_{place}" for rate, place in product(RATES, PLACES)]
    settings = ["", *(f"/{name}" for name in (*LOOPHOLES, NO_HINT))]
    return found | {f"{rate}{setting}": Entry(units=("seed", "problem")) for rate in rates for setting in settings}


def _step_names() -> Iterator[str]:
    yield from (*STEP_METRICS, *ADVANTAGE_KEYS)
    yield from (f"kl/{key}" for key in KL_KEYS)
    yield from (f"ratio/{key}" for key in RATIO_KEYS)
