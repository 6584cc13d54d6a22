"""Vacuous parts of a spec: settings that do nothing, and criteria that hold whatever the data say.

`probe plan` prints them all. A sweep keeps those of its spec in `vacuous.json` before its first run: a criterion that
was vacuous then is never PASS (`probe.experiments.judge.verdict`).

To add a check: write one function from the spec to (key of the file, why), and add it to `VACUITY`; one that reads the
stored rollouts of a replay also takes `out_dir`, and is added to `IDLE`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import isnan
from pathlib import Path
from statistics import stdev
from typing import Any

from probe.experiments.spec.jobs import sweep_folder
from probe.experiments.spec.prereg import preregistered
from probe.experiments.spec.stored import stored_if_readable
from probe.experiments.spec.types import ResolvedCondition, Spec
from probe.settings.arms import ARMS
from probe.settings.loss import LossSettings
from probe.settings.run import StepConfig, TrainConfig
from replay_pools.storage.files import read_json, write_json
from replay_pools.storage.tables import flat

FILE = "vacuous.json"  # in the folder of the sweep
# Measures of a direction: no factor > 0 on the gradient changes them.
SCALE_FREE = ("cos_in", "cos_out", "mean_cos_in", "mean_cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired")
# What these options do to the advantages of one group is to multiply them by one positive number.
SCALE_KEYS = ("objective.advantage_estimator", "objective.scale_rewards")
# Identities of the one-sided gate at frozen weights (METHOD section 4), evidence of nothing but that the gate ran.
GATE_IDENTITIES = ("cos_out", "mean_cos_out", "hackward_frac_out", "frac_fired")
# The one statistic that swaps within pairs are a null of: they flip signs of its terms.
MEAN_DIRECTION = "cos_in_mean"
# The only settings of the objective that read the advantages, or what becomes of them.
ADVANTAGE_KEYS = ("advantage_estimator", "scale_rewards", "advantage_clip", "min_group_std")
CLIPS = ("epsilon", "epsilon_high")
DEFAULTS = asdict(LossSettings())
Reasons = Iterator[tuple[str, str]]  # (key of the file, why)


@dataclass(frozen=True, slots=True)
class Vacuous:
    """A part of the spec that is vacuous, and why."""

    where: str  # key of the file
    why: str


def vacuous_parts(spec: Spec, out_dir: Path) -> list[Vacuous]:
    """What every check finds.

    Args:
        out_dir: where pools are looked up; what a pool that is not there holds is not known, and not checked.
    """
    parts = [Vacuous(where, why) for check in VACUITY for where, why in check(spec)]
    parts += [Vacuous(where, why) for check in IDLE for where, why in check(spec, out_dir)]
    return parts


def settings_key(condition: str, setting: str) -> str:
    """Where a spec states a setting of a condition."""
    return f"conditions.{condition}.settings.{setting}"


def _cap(spec: Spec, out_dir: Path) -> Reasons:
    """An advantage cap at or above what any group can reach."""
    from probe.objective.advantages import advantage_bound  # brings torch, for those alone who ask

    for name, condition in spec.resolved.items():
        loss = condition.config.objective
        clip = loss.advantage_clip
        if clip is None or loss.loss_type == "nll" or loss.has_credit:
            continue  # the advantages of single tokens have no such bound
        if loss.scale_rewards == "batch" and condition.prompts_per_step > 1:
            continue  # the standard deviation of a whole step may be as small as it likes
        # In a replay step the batch is the group, so both scalings divide by the group's standard deviation.
        scale = "none" if loss.scale_rewards == "none" else "group"
        spread = _spread(condition, out_dir)
        bound = advantage_bound(condition.group, spread, estimator=loss.advantage_estimator, scale=scale)
        if clip >= bound:
            yield (
                settings_key(name, "objective.advantage_clip"),
                f"the cap {clip:g} is not below {bound:.3g}, the largest |A| of a group of {condition.group} "
                f"(estimator {loss.advantage_estimator}, scale {loss.scale_rewards}, rewards {spread:g} apart): it "
                "never binds",
            )


def _spread(condition: ResolvedCondition, out_dir: Path) -> float:
    """The largest minus the smallest reward that a group can have: of stored rollouts, that a group has."""
    groups = stored_if_readable(condition, out_dir)
    if groups is None:
        return condition.config.reward_range
    return max((max(rewards) - min(rewards) for rewards in _known(groups.rewards)), default=0.0)


def _planning(spec: Spec, out_dir: Path) -> Reasons:
    """Credit of planning tokens where there are none."""
    for name, condition in spec.resolved.items():
        config, phrases = condition.config, condition.config.planning_phrases
        key = settings_key(name, "objective.hicra_alpha")
        if config.objective.hicra_alpha and not phrases:
            yield key, "there are no planning phrases: no token gets more credit"
        elif config.objective.hicra_alpha:
            groups = stored_if_readable(condition, out_dir)
            if groups is not None and not _occur(phrases, groups.completions):
                yield key, f"none of the {len(phrases)} planning phrases occurs in the rollouts of its pools"
        reads_phrases = config.objective.hicra_alpha or config.objective.sepa_lambda
        if "planning_phrases" in condition.given and not reads_phrases:
            yield (
                settings_key(name, "planning_phrases"),
                "neither hicra_alpha nor sepa_lambda is set: nothing reads them",
            )


def _occur(phrases: Sequence[str], completions: Collection[str]) -> bool:
    """Whether a phrase occurs in one of the texts."""
    from probe.objective.credit import planning_tokens  # brings torch, for those alone who ask

    return any(any(planning_tokens([text], phrases)) for text in completions)


def _skipped_groups(spec: Spec, out_dir: Path) -> Reasons:
    """A smallest standard deviation that skips no group, or every one."""
    for name, condition in spec.resolved.items():
        least, groups = condition.config.objective.min_group_std, stored_if_readable(condition, out_dir)
        if not least or groups is None or condition.config.objective.loss_type == "nll":
            continue
        # The strata of a group are skipped one by one.
        if condition.config.objective.strata is not None:
            continue
        stds = [stdev(rewards) for rewards in _known(groups.rewards) if len(rewards) > 1]
        varying = [std for std in stds if std > 0]
        key = settings_key(name, "objective.min_group_std")
        if varying and min(varying) >= least:
            yield key, f"no group is skipped: the rewards of every one that varies have {min(varying):.3g} or more"
        elif varying and max(varying) < least:
            yield key, f"every group is skipped: no rewards have more than {max(varying):.3g}, and nothing is measured"


def _known(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """The rewards that are known, of every group that has any."""
    known = [[reward for reward in rewards if not isnan(reward)] for rewards in groups]
    return [rewards for rewards in known if rewards]


def _ratio(spec: Spec) -> Reasons:
    """A clip of the policy ratio where old and current policy are the same."""
    for name, condition in spec.resolved.items():
        for clip in CLIPS:
            key = f"objective.{clip}"
            if key not in condition.given:
                continue
            if condition.config.objective.old_logprobs == "current":
                why = "old log-probabilities are the current ones: the ratio is 1 in every step and the clip never acts"
                yield settings_key(name, key), why
            elif isinstance(condition.config, TrainConfig) and condition.config.rollouts.is_on_policy:
                why = "every rollout is sampled by the weights of its one step: the ratio is 1 and the clip never acts"
                yield settings_key(name, key), why


def _penalty(spec: Spec) -> Reasons:
    """A KL penalty whose gradient is 0, and controllers of a penalty or a reference that is not there."""
    for name, condition in spec.resolved.items():
        loss = condition.config.objective
        if condition.frozen and loss.beta and loss.reference in ("base", "ema"):
            why = "at frozen weights the policy is its reference: the KL and its gradient are 0"
            yield settings_key(name, "objective.beta"), why
        for key in ("control.ema_decay", "control.ema_every"):
            if key in condition.given and loss.reference != "ema":
                yield settings_key(name, key), f"the reference is {loss.reference}: no EMA is compared with"
        if "control.beta_warmup_steps" in condition.given and not loss.beta:
            yield settings_key(name, "control.beta_warmup_steps"), "beta is 0, and stays 0 while it warms up"
        for key in ("control.kl_horizon", "control.beta_min", "control.beta_max"):
            if key in condition.given and condition.config.control.target_kl is None:
                yield settings_key(name, key), "there is no target_kl: beta is not adapted"
        for key in ("control.sepa_ramp_steps", "control.sepa_delay_steps", "control.sepa_gate"):
            if key in condition.given and not loss.sepa_lambda:
                yield settings_key(name, key), "sepa_lambda is 0, and stays 0 while it ramps up"


def _route(spec: Spec) -> Reasons:
    """A quarantine that stays empty."""
    for name, condition in spec.resolved.items():
        if condition.frozen and any(ARMS[arm].routes for arm in condition.arms):
            why = "nothing is trained, so nothing is parked: the arm route is vanilla"
            yield f"conditions.{name}.arms", why


def _no_advantage(spec: Spec) -> Reasons:
    """Advantage settings under a loss that has no advantage."""
    for name, condition in spec.resolved.items():
        loss = condition.config.objective
        if loss.loss_type == "nll":
            for key in ADVANTAGE_KEYS:
                if getattr(loss, key) != DEFAULTS[key]:
                    why = "the nll loss has no advantage: this setting does nothing"
                    yield settings_key(name, f"objective.{key}"), why


def _same(spec: Spec) -> Reasons:
    """Conditions that are the same experiment: the same settings, and an arm that both run."""
    for (a, left), (b, right) in combinations(spec.resolved.items(), 2):
        if {*left.arms} & {*right.arms} and _numbers(left.config) == _numbers(right.config):
            yield f"conditions.{b}", f"has the same settings as {a}: comparing them compares a run with itself"


def _numbers(config: StepConfig) -> dict[str, Any]:
    """{key with dots: value} of what shapes the numbers; a training's arm is chosen beside its condition."""
    values = flat(asdict(config))
    if config.trains:
        del values["intervention.arms"]
    return values


def _scale_only(spec: Spec) -> Reasons:
    """A direction compared between conditions that differ by a positive factor of each group's gradient."""
    for criterion in spec.criteria:
        if criterion.versus_condition is None or criterion.metric not in SCALE_FREE:
            continue
        if criterion.versus_arm not in (None, criterion.arm):
            continue
        left = spec.resolved[spec.condition_of(criterion).name]
        right = spec.resolved[criterion.versus_condition]
        here, there = _numbers(left.config), _numbers(right.config)
        different = {key for key in here if here[key] != there.get(key)}
        if left.frozen and different and different <= {*SCALE_KEYS} and not any(map(_has_more, (left, right))):
            yield (
                f"criteria.{criterion.name}",
                f"the conditions differ in {', '.join(sorted(different))} alone, which multiplies all advantages of a "
                f"group by one positive number; a step is one group, so {criterion.metric} cannot change",
            )


def _has_more(condition: ResolvedCondition) -> bool:
    """Whether a loss has terms that are not advantages, or advantages that no factor of the group shapes alone."""
    loss = condition.config.objective
    return loss.advantage_clip is not None or loss.strata is not None or bool(loss.beta or loss.entropy_coef)


def _identity(spec: Spec) -> Reasons:
    """Evidence that the gate's arithmetic gives, whatever the direction is."""
    for criterion in spec.criteria:
        gated = criterion.arm is not None and ARMS[criterion.arm].projects
        if criterion.role != "mechanism" and criterion.metric in GATE_IDENTITIES and gated:
            yield (
                f"criteria.{criterion.name}",
                f"{criterion.metric} of an arm that projects is an identity of the gate (for random directions too): "
                "give it role = mechanism",
            )


def _controls(spec: Spec) -> Reasons:
    """Controls that cannot differ from what they control, and evidence without any."""
    for criterion in spec.criteria:
        if criterion.null == "pair-swap" and criterion.metric != MEAN_DIRECTION:
            yield (
                f"criteria.{criterion.name}.null",
                "swapping hack and clean within a pair changes signs of rows alone and leaves the directions "
                "identical: that control is void, use N2 (labels permuted across pairs)",
            )
    for name, condition in spec.resolved.items():
        if "placebo" in condition.arms and condition.config.intervention.extraction.pairs == "builtin:placebo":
            why = "v_hack comes from the placebo pairs: the placebo arm is no control"
            yield settings_key(name, "intervention.extraction.pairs"), why
    primary = spec.primary
    compared = primary.versus_arm is not None or primary.versus_condition is not None
    if primary.metric in SCALE_FREE and primary.null == "none" and not compared:
        why = "a cosine is readable only against the same statistic under a matched null: name one (N1 to N3)"
        yield f"criteria.{primary.name}.null", why


def _blocks(spec: Spec) -> Reasons:
    """Stop rules that count blocks which are not independent."""
    frozen = any(condition.frozen for condition in spec.resolved.values())
    if spec.stop is not None and frozen:
        why = "replays of one pool share their prompts: seeds are no independent blocks, and alpha is not held"
        yield "stop", why
    elif spec.stop is not None and spec.stop.min_blocks >= len(spec.seeds):
        yield "stop.min_blocks", f"the first look comes after the last of {len(spec.seeds)} seeds: nothing is stopped"
    if len(spec.seeds) > 1 and frozen and any(criterion.null != "none" for criterion in spec.criteria):
        yield "seeds", "nulls belong to one run: criteria with a null stay INCONCLUSIVE over several seeds of a replay"
    if len(spec.seeds) > 1 and any(criterion.unit == "seed" for criterion in spec.criteria) and frozen:
        yield "criteria", "the unit seed in a replay: seeds draw from the same rollouts, the prompt is the unit"


VACUITY: tuple[Callable[[Spec], Reasons], ...] = (
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
IDLE: tuple[Callable[[Spec, Path], Reasons], ...] = (_cap, _planning, _skipped_groups)


def write_foreseen(spec: Spec, out_dir: Path, vacuous: Mapping[str, str]) -> None:
    """Keep what is vacuous in a spec, {key of the file: why}, with the spec's hash."""
    write_json(sweep_folder(spec, out_dir) / FILE, {"spec": preregistered(spec), "vacuous": vacuous})


def read_foreseen(spec: Spec, out_dir: Path) -> dict[str, str]:
    """{key of the file: why} of this very spec; empty where its sweep has not begun."""
    path = sweep_folder(spec, out_dir) / FILE
    stored = read_json(path) if path.is_file() else {}
    return stored["vacuous"] if stored.get("spec") == preregistered(spec) else {}
