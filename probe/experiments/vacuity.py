"""What a spec cannot show, found before any run: settings that do nothing, and criteria that hold whatever happens.

Each rule is one function from (spec, settings of every condition) to warnings; `plan` prints them all.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

from probe.experiments.spec import Criterion, Spec
from probe.objective.advantages import advantage_bound
from probe.runs.config import ModelConfig
from probe.runs.join import REWARD_RANGE
from probe.settings.arms import ARMS
from probe.settings.loss import LossSettings

# Measures of a direction: no factor > 0 on the gradient changes them.
SCALE_FREE = ("cos_in", "cos_out", "mean_cos_in", "mean_cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired")
# What these options do to the advantages of one group is to multiply them by one positive number.
SCALE_OPTIONS = ("advantage_estimator", "scale_rewards")
# Identities of the one-sided gate at frozen weights (METHOD section 4), evidence of nothing but that the gate ran.
GATE_IDENTITIES = ("cos_out", "mean_cos_out", "hackward_frac_out", "frac_fired")
# The one statistic that swaps within pairs are a null of: they flip signs of its terms.
MEAN_DIRECTION = "cos_in_mean"
# The only options that read the advantages, or what becomes of them.
ADVANTAGE_OPTIONS = ("advantage_estimator", "scale_rewards", "advantage_clip", "min_group_std")
CLIPS = ("epsilon", "epsilon_high", "delta", "importance_sampling_level")
DEFAULTS = {field.name: field.default for field in fields(LossSettings)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a condition of a spec comes down to, defaults included."""

    loss: LossSettings
    given: frozenset[str]  # what the spec states: options, and settings by their names with dots, the loss's without
    values: Mapping[str, Any]  # everything that shapes the numbers, by name
    arms: tuple[str, ...]
    frozen: bool  # nothing is trained
    group: int  # G, rollouts that share a baseline
    prompts_per_step: int
    steps: int | None  # None: as many as the pools hold
    pools: tuple[str, ...]  # that are replayed
    model: ModelConfig
    k: int
    pairs: str


Resolved = Mapping[str, Settings]  # by condition
Found = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Vacuous:
    """A part of the spec that is vacuous, and why."""

    where: str  # key of the file
    why: str


def vacuous_parts(spec: Spec, resolved: Resolved) -> list[Vacuous]:
    """What every rule finds."""
    return [Vacuous(where, why) for rule in RULES for where, why in rule(spec, resolved)]


def _cap(_spec: Spec, resolved: Resolved) -> Found:
    """An advantage cap at or above what any group can reach."""
    for name, own in resolved.items():
        loss, clip = own.loss, own.loss.advantage_clip
        if clip is None or loss.loss_type == "nll" or loss.has_credit:
            continue  # the advantages of single tokens have no such bound
        if loss.scale_rewards == "batch" and own.prompts_per_step > 1:
            continue  # the standard deviation of a whole step may be as small as it likes
        # In a replay step the batch is the group, so both scalings divide by the group's standard deviation.
        scale = "none" if loss.scale_rewards == "none" else "group"
        bound = advantage_bound(own.group, REWARD_RANGE, estimator=loss.advantage_estimator, scale=scale)
        if clip >= bound:
            yield (
                f"conditions.{name}.advantage_clip",
                f"the cap {clip:g} is not below {bound:.3g}, the largest |A| of a group of {own.group} "
                f"(estimator {loss.advantage_estimator}, scale {loss.scale_rewards}): it never binds",
            )


def _ratio(_spec: Spec, resolved: Resolved) -> Found:
    """A clip of the policy ratio where old and current policy are the same."""
    for name, own in resolved.items():
        for key in CLIPS:
            if key in own.given and own.loss.old_logprobs == "current":
                why = "old log-probabilities are the current ones: the ratio is 1 in every step and the clip never acts"
                yield f"conditions.{name}.{key}", why


def _penalty(_spec: Spec, resolved: Resolved) -> Found:
    """A KL penalty whose gradient is 0, and controllers of a penalty or a reference that is not there."""
    for name, own in resolved.items():
        loss = own.loss
        if own.frozen and loss.beta and loss.reference in ("base", "ema") and loss.kl_estimator != "k1":
            why = "at frozen weights the policy is its reference: the KL and its gradient are 0"
            yield f"conditions.{name}.beta", why
        for key in ("control.ema_decay", "control.ema_every"):
            if key in own.given and loss.reference != "ema":
                yield f"conditions.{name}.{key}", f"the reference is {loss.reference}: no EMA is compared with"
        if "control.beta_warmup_steps" in own.given and not loss.beta:
            yield f"conditions.{name}.control.beta_warmup_steps", "beta is 0, and stays 0 while it warms up"


def _route(_spec: Spec, resolved: Resolved) -> Found:
    """A quarantine that stays empty."""
    for name, own in resolved.items():
        if own.frozen and any(ARMS[arm].routes for arm in own.arms):
            why = "nothing is trained, so nothing is parked: the arm route is vanilla"
            yield f"conditions.{name}.arms", why


def _no_advantage(_spec: Spec, resolved: Resolved) -> Found:
    """Advantage settings under a loss that has no advantage."""
    for name, own in resolved.items():
        if own.loss.loss_type == "nll":
            for key in ADVANTAGE_OPTIONS:
                if getattr(own.loss, key) != DEFAULTS[key]:
                    yield f"conditions.{name}.{key}", "the nll loss has no advantage: this setting does nothing"


def _same(_spec: Spec, resolved: Resolved) -> Found:
    """Conditions that are the same experiment."""
    for (a, left), (b, right) in combinations(resolved.items(), 2):
        if left.values == right.values:
            yield f"conditions.{b}", f"has the same options as {a}: comparing them compares a run with itself"


def _scale_only(spec: Spec, resolved: Resolved) -> Found:
    """A direction compared between conditions that differ by a positive factor of each group's gradient."""
    for criterion in spec.criteria:
        if criterion.versus_condition is None or criterion.metric not in SCALE_FREE:
            continue
        left = resolved[criterion.condition or spec.conditions[0].name]
        right = resolved[criterion.versus_condition]
        different = {key for key in left.values if left.values[key] != right.values.get(key)}
        capped = left.loss.advantage_clip is not None or right.loss.advantage_clip is not None
        if left.frozen and different and different <= {*SCALE_OPTIONS} and not capped:
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
    for name, own in resolved.items():
        if "placebo" in own.arms and own.pairs == "builtin:placebo":
            yield f"conditions.{name}.pairs", "v_hack comes from the placebo pairs: the placebo arm is no control"
    primary = spec.primary
    compared = primary.versus_arm is not None or primary.versus_condition is not None
    if primary.metric in SCALE_FREE and primary.null == "none" and not compared:
        why = "a cosine is readable only against the same statistic under a matched null: name one (N1 to N4)"
        yield f"criteria.{primary.name}.null", why


def _blocks(spec: Spec, resolved: Resolved) -> Found:
    """Stop rules that count blocks which are not independent."""
    frozen = any(own.frozen for own in resolved.values())
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
    _penalty,
    _route,
    _no_advantage,
    _same,
    _scale_only,
    _identity,
    _controls,
    _blocks,
)
