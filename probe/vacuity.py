"""What a spec cannot show, found before any run: settings that do nothing, and criteria that hold whatever happens.

Each rule is one function from (spec, options of every condition) to warnings; `plan` prints them all. Options are
those of the verb, defaults included, under its parameter names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from probe.advantages import advantage_bound
from probe.arms import ARMS
from probe.join import REWARD_RANGE
from probe.spec import Criterion, Spec

Resolved = Mapping[str, Mapping[str, Any]]  # {condition: {option: value}}

# Measures of a direction: no factor > 0 on the gradient changes them.
SCALE_FREE = ("cos_in", "cos_out", "mean_cos_in", "mean_cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired")
# What these options do to the advantages of one group is to multiply them by one positive number.
SCALE_OPTIONS = ("advantage_estimator", "scale_rewards")
# Identities of the one-sided gate at frozen weights (METHOD section 4), evidence of nothing but that the gate ran.
GATE_IDENTITIES = ("cos_out", "mean_cos_out", "hackward_frac_out", "frac_fired")
# The one statistic that swaps within pairs are a null of: they flip signs of its terms.
MEAN_DIRECTION = "cos_in_mean"
# The only options that read the advantages, or what becomes of them.
ADVANTAGE_OPTIONS = {
    "advantage_estimator": "grpo",
    "scale_rewards": "none",
    "advantage_clip": None,
    "min_group_std": 0.0,
}


@dataclass(frozen=True, slots=True)
class Vacuous:
    """A part of the spec that is vacuous, and why."""

    where: str  # key of the file
    why: str


def vacuous_parts(spec: Spec, resolved: Resolved) -> list[Vacuous]:
    """What every rule finds."""
    return [Vacuous(where, why) for rule in RULES for where, why in rule(spec, resolved)]


Found = Iterator[tuple[str, str]]


def _has_credit(options: Mapping[str, Any]) -> bool:
    """Whether the advantage of a sample is spread unevenly over its tokens (probe.objective)."""
    return bool(options.get("gtpo_beta") or options.get("hicra_alpha") or options.get("top_entropy_quantile", 1) < 1)


def _cap(_spec: Spec, resolved: Resolved) -> Found:
    """An advantage cap at or above what any group can reach."""
    for name, options in resolved.items():
        clip = options.get("advantage_clip")
        if clip is None or options["loss_type"] == "nll" or _has_credit(options):
            continue  # the advantages of single tokens have no such bound
        # In a replay step the batch is the group, so both scalings divide by the group's standard deviation.
        scale = "none" if options["scale_rewards"] == "none" else "group"
        size = options["per_pool"] * len(options["replay_dirs"])
        bound = advantage_bound(size, REWARD_RANGE, estimator=options["advantage_estimator"], scale=scale)
        if clip >= bound:
            yield (
                f"conditions.{name}.advantage_clip",
                f"the cap {clip:g} is not below {bound:.3g}, the largest |A| of a group of {size} "
                f"(estimator {options['advantage_estimator']}, scale {options['scale_rewards']}): it never binds",
            )


def _ratio(_spec: Spec, resolved: Resolved) -> Found:
    """A clip of the policy ratio where old and current policy are the same."""
    for name, options in resolved.items():
        if options.get("epsilon") is not None and options.get("old_logprobs", "current") == "current":
            why = "old log-probabilities are the current ones: the ratio is 1 in every step and the clip never acts"
            yield f"conditions.{name}.epsilon", why


def _no_advantage(_spec: Spec, resolved: Resolved) -> Found:
    """Advantage settings under a loss that has no advantage."""
    for name, options in resolved.items():
        if options.get("loss_type") == "nll":
            for key, default in ADVANTAGE_OPTIONS.items():
                if options.get(key, default) != default:
                    yield f"conditions.{name}.{key}", "the nll loss has no advantage: this setting does nothing"


def _same(_spec: Spec, resolved: Resolved) -> Found:
    """Conditions that are the same experiment."""
    for (a, left), (b, right) in combinations(resolved.items(), 2):
        if left == right:
            yield f"conditions.{b}", f"has the same options as {a}: comparing them compares a run with itself"


def _scale_only(spec: Spec, resolved: Resolved) -> Found:
    """A direction compared between conditions that differ by a positive factor of each group's gradient."""
    for criterion in spec.criteria:
        if criterion.versus_condition is None or criterion.metric not in SCALE_FREE:
            continue
        left = resolved[criterion.condition or spec.conditions[0].name]
        right = resolved[criterion.versus_condition]
        different = {key for key in left if left[key] != right[key]}
        capped = left.get("advantage_clip") is not None or right.get("advantage_clip") is not None
        if different and different <= {*SCALE_OPTIONS} and not capped:
            yield (
                f"criteria.{criterion.name}",
                f"the conditions differ in {', '.join(sorted(different))} alone, which multiplies all advantages of a "
                f"group by one positive number; a step is one group, so {criterion.metric} cannot change",
            )


def _identity(spec: Spec, resolved: Resolved) -> Found:
    """Evidence that the gate's arithmetic gives, whatever the direction is."""
    for criterion in spec.criteria:
        if criterion.role != "mechanism" and criterion.metric in GATE_IDENTITIES and _gated(spec, criterion):
            yield (
                f"criteria.{criterion.name}",
                f"{criterion.metric} of an arm that projects is an identity of the gate (for random directions too): "
                "give it role = mechanism",
            )


def _gated(spec: Spec, criterion: Criterion) -> bool:
    return criterion.arm is not None and ARMS[criterion.arm].projects


def _controls(spec: Spec, resolved: Resolved) -> Found:
    """Controls that cannot differ from what they control, and evidence without any."""
    for criterion in spec.criteria:
        if criterion.null == "pair-swap" and criterion.metric != MEAN_DIRECTION:
            yield (
                f"criteria.{criterion.name}.null",
                "swapping hack and clean within a pair changes signs of rows alone and leaves the directions "
                "identical: that control is void, use N2 (labels permuted across pairs)",
            )
    for name, options in resolved.items():
        if "placebo" in spec.arms and options.get("pairs") == "builtin:placebo":
            yield f"conditions.{name}.pairs", "v_hack comes from the placebo pairs: the placebo arm is no control"
    primary = spec.primary
    compared = primary.versus_arm is not None or primary.versus_condition is not None
    if primary.metric in SCALE_FREE and primary.null == "none" and not compared:
        why = "a cosine is readable only against the same statistic under a matched null: name one (N1 to N4)"
        yield f"criteria.{primary.name}.null", why


def _blocks(spec: Spec, resolved: Resolved) -> Found:
    """Stop rules that count blocks which are not independent."""
    frozen = [name for name, o in resolved.items() if spec.base.verb == "replay" and o.get("lr", 0.0) == 0]
    if spec.stop is not None and frozen:
        why = "replays of one pool share their prompts: seeds are no independent blocks, and alpha is not held"
        yield "stop", why
    if len(spec.seeds) > 1 and frozen and any(criterion.null != "none" for criterion in spec.criteria):
        yield "seeds", "nulls belong to one run: criteria with a null stay INCONCLUSIVE over several seeds of a replay"
    if len(spec.seeds) > 1 and any(criterion.unit == "seed" for criterion in spec.criteria) and frozen:
        yield "criteria", "the unit seed in a replay: seeds draw from the same rollouts, the prompt is the unit"


RULES: tuple[Callable[[Spec, Resolved], Found], ...] = (
    _cap,
    _ratio,
    _no_advantage,
    _same,
    _scale_only,
    _identity,
    _controls,
    _blocks,
)
