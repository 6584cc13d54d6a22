"""SampleRecord and StepRecord of a run, GradientRecord of a probe in another trainer: one line each. No torch here.

Records never repeat prompts or completions: those live in the pools, at (src_pool, src_step, src_sample). The comment
beside a field is its line in `spec/SCHEMA.md` (`probe.records.schema`).
"""

import math
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

from replay_pools.errors import InputError

RUN_SCHEMA = 1  # of the files of a run; a reader refuses another
DEFAULT_CONDITION = "default"  # of a run that names none; the primary where it is among several
_NUMBER = (int, float)
# Wire names of probe.objective.advantages.advantage_diagnostics: the field `advantage` of a StepRecord, flattened.
ADVANTAGE_KEYS = (
    "advantage/mean",  # after the cap, as the next two
    "advantage/std",  # ddof = 1
    "advantage/abs_max",  # largest |A|
    "advantage/bound",  # largest |A| that any rewards of this range could give; null with token credit
    "adv_cap_fraction",  # capped advantages / nonzero ones
    "adv_cap_magnitude",  # mean |A| before the cap of those that were capped; null when none was
    "adv_cap_vacuous",  # the cap is at or above the bound; null without a cap
    "frac_reward_zero_std",  # share of groups without reward variance
    "skip_rate",  # share of groups below min_group_std, those without variance apart
)
# What a step records of its KL term and of recorded ratios, behind "kl/" and "ratio/"; each only where there is one.
KL_KEYS = (
    "mean",  # from the reference, over the completion tokens
    "max",  # of a token
    "from_base",  # mean KL from the base, where the reference is another
    "beta",  # strength of the penalty in this step, as the next three only where the policy trains
    "warmup_progress",  # share of the warm-up of beta
    "ema",  # of the mean KL, which the controller of beta follows
    "beta_adjusted",  # 1, -1 or 0: beta was raised, lowered or left
)
RATIO_KEYS = ("mean", "max", "frac_clip_low", "frac_clip_high", "frac_clip_delta")
PREFIXED = ("kl", "ratio")  # fields {name: number}, flattened to "kl/name"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One rollout under one condition and arm; the seed's sixteen fields come first, verbatim.

    A cosine is None where the gradient is zero, and `null_reason` says why.
    """

    step: int  # of the run, from 0
    sample_id: int  # 0 .. G-1 within the step
    src_pool: str  # pool of the rollout; with the next two its place there
    src_step: int  # step of that pool
    src_sample: int  # sample_id in that step
    reward: float  # of the rollout
    hacked: bool  # the mode's exploit is present, correct or not
    gt_pass: bool  # every oracle answer is right
    fmt_ok: bool  # the completion holds one well-formed answer
    comp_len: int  # completion tokens
    cos_S_contrib: float | None  # noqa: N815  the seed's name; global signed cosine of A_i g_i
    grad_norm_contrib: float  # norm(A_i g_i)
    mean_cos_in: float | None  # of the step's gradient, repeated on each of its rollouts as the seed does
    mean_cos_out: float | None  # likewise
    frac_fired: float | None  # likewise
    arm: str  # row of probe.settings.arms.ARMS
    advantage: float  # A_i, after the cap; with token credit before both
    cos_S_nll: float | None  # noqa: N815  of the sample's NLL gradient; exists when A_i = 0 too
    problem_id: str  # of the environment; the cluster of every test
    prompt_sha: str  # of the rendered prompt
    null_reason: str | None  # why a cosine is null
    hint: bool  # the prompt says how submissions are evaluated
    haar_sd: float | None  # standard deviation of cos_S_contrib under Haar directions (of cos_S_nll: without credit)
    nll: float | None  # nats per completion token
    condition: str  # named setting of the loss
    flaky: bool | None  # graded twice with different labels; None = graded once

    def to_json(self) -> dict[str, Any]:
        """The wire form, in field order.

        Raises:
            InputError: a number that is not finite, or a null cosine without its reason.
        """
        where = f"step {self.step} sample {self.sample_id} condition {self.condition} arm {self.arm}"
        return _checked_row(_as_row(self), where, self.cos_S_contrib, self.null_reason)

    @classmethod
    def from_json(cls, row: Any, where: object) -> Self:
        """Parse one line; InputError names `where` and the missing, unknown or mistyped fields."""
        return cls(**_parse(cls, row, where))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step under one condition and arm: one group in a replay, all groups of the optimizer step in training.

    `*_in` is before the gate, `*_out` after; all in the arm's directions.
    """

    step: int  # of the run, from 0
    arm: str  # row of probe.settings.arms.ARMS
    problem_id: str  # of a step with several groups: the problems, joined by " + "
    mixed_prompt: bool  # a group's rollouts answer different prompts (hinted and not)
    cos_in: float | None  # global signed cosine with the arm's directions, before the gate
    cos_out: float | None  # after the gate
    mean_cos_in: float | None  # mean over modules of the signed cosine, before the gate
    mean_cos_out: float | None  # after the gate
    hackward_frac_in: float | None  # norm(relu(V g)) / norm(g), before the gate
    hackward_frac_out: float | None  # after the gate
    frac_fired: float | None  # share of modules where the gate removed something
    haar_sd: float | None  # standard deviation of cos_in under Haar directions
    reward_mean: float  # over all rollouts of the step
    reward_std: float  # within a group, as the next
    reward_spread: float  # largest minus smallest reward
    advantage: dict[str, float | bool | None]  # ADVANTAGE_KEYS, flattened on the wire
    grad_norm: float  # norm of the policy gradient before the gate
    num_effective: int  # rollouts with a nonzero advantage
    loss_type: str  # normaliser: grpo | dr_grpo | bnpo | dapo | nll
    reference: str | None  # base | ema | recorded; None without KL
    null_reason: str | None  # why the cosines are null
    additivity_error: float | None  # |sum of contributions - batch gradient| / |batch gradient|: probe.step.checks
    cos_update: float | None  # of the realised update; None when nothing was stepped
    hackward_frac_update: float | None  # of the realised update
    condition: str  # named setting of the loss
    frac_planning: float  # share of completion tokens on planning phrases
    exec_surprisal_var: float | None  # variance of the surprisal of the other completion tokens
    direction_age: int  # optimizer steps since the directions were extracted
    direction_overlap: float | None  # with those of the start: mean squared cosine of the principal angles
    kl: dict[str, float | None] = field(default_factory=dict)  # empty without KL
    ratio: dict[str, float | None] = field(default_factory=dict)  # empty at ratio 1

    def to_json(self) -> dict[str, Any]:
        """The wire form: field order, `advantage`, `kl` and `ratio` flattened in their places.

        Raises:
            InputError: a number that is not finite, a null cosine without its reason, wrong `advantage` keys.
        """
        where = f"step {self.step} condition {self.condition} arm {self.arm}"
        if self.advantage.keys() != set(ADVANTAGE_KEYS):
            raise InputError(
                where, expected=f"advantage keys {', '.join(ADVANTAGE_KEYS)}", found=f"{[*self.advantage]}"
            )
        row: dict[str, Any] = {}
        for name, value in _as_row(self).items():
            if name == "advantage":
                row |= {key: value[key] for key in ADVANTAGE_KEYS}
            elif name in PREFIXED:
                row |= {f"{name}/{key}": number for key, number in value.items()}
            else:
                row[name] = value
        return _checked_row(row, where, self.cos_in, self.null_reason)

    @classmethod
    def from_json(cls, row: Any, where: object) -> Self:
        """Parse one line; InputError names `where` and the missing, unknown or mistyped fields."""
        if isinstance(row, dict):
            if missing := [key for key in ADVANTAGE_KEYS if key not in row]:
                raise InputError(where, expected=f"field {missing[0]}", found=f"missing: {', '.join(missing)}")
            groups: dict[str, dict[str, Any]] = {"advantage": {}, **{prefix: {} for prefix in PREFIXED}}
            plain = {}
            for key, value in row.items():
                prefix, slash, name = key.partition("/")
                if key in ADVANTAGE_KEYS:
                    groups["advantage"][key] = value
                elif slash and prefix in PREFIXED:
                    groups[prefix][name] = value
                else:
                    plain[key] = value
            row = {**plain, **groups}
        return cls(**_parse(cls, row, where))


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRecord:
    """One optimizer step of another trainer: `probe.attach`, `probe.integrations.trl`. Fields as in StepRecord.

    `*_out` and `frac_fired` are of the gated gradient, which replaced the trainer's where `projected` says so.
    """

    step: int  # optimizer steps before this one
    cos_in: float | None  # global signed cosine of the gradient with the directions
    cos_out: float | None  # of the gated gradient
    mean_cos_in: float | None  # mean over modules of the signed cosine
    mean_cos_out: float | None  # of the gated gradient
    hackward_frac_in: float | None  # norm(relu(V g)) / norm(g)
    hackward_frac_out: float | None  # of the gated gradient
    frac_fired: float | None  # share of modules where the gate removed something
    haar_sd: float | None  # standard deviation of cos_in under Haar directions
    grad_norm: float | None  # norm of the adapter's gradient, without the scale of a loss scaler
    cos_update: float | None  # of the realised update, turned round as a gradient is
    hackward_frac_update: float | None  # of the realised update
    projected: bool  # the optimizer was given the gated gradient
    null_reason: str | None  # why the cosines are null

    def to_json(self) -> dict[str, Any]:
        """The wire form, in field order; InputError as `SampleRecord.to_json`."""
        return _checked_row(_as_row(self), f"step {self.step}", self.cos_in, self.null_reason)

    @classmethod
    def from_json(cls, row: Any, where: object) -> Self:
        """Parse one line; InputError names `where` and the missing, unknown or mistyped fields."""
        return cls(**_parse(cls, row, where))


def nullable(value: float) -> float | None:
    """The number, or None for NaN: how a cosine that does not exist leaves a tensor."""
    return None if math.isnan(value) else float(value)


def _as_row(record: SampleRecord | StepRecord | GradientRecord) -> dict[str, Any]:
    return {entry.name: getattr(record, entry.name) for entry in fields(record)}


def _checked_row(row: dict[str, Any], where: str, cosine: float | None, null_reason: str | None) -> dict[str, Any]:
    """The row, when its numbers are finite and a null cosine says why it is null."""
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where} {name}", expected="a finite number or null", found=str(value))
    if cosine is None and not null_reason:
        raise InputError(where, expected="a null_reason beside a null cosine", found="none")
    return row


def _parse(kind: type, row: Any, where: object) -> dict[str, Any]:
    """The row, when its keys are exactly the fields of the dataclass `kind` and its values have their types."""
    if not isinstance(row, dict):
        raise InputError(where, expected="a JSON object", found=type(row).__name__)
    types = _field_types(kind)
    if missing := sorted(types.keys() - row.keys()):
        raise InputError(where, expected=f"field {missing[0]}", found=f"missing: {', '.join(missing)}")
    if unknown := sorted(row.keys() - types.keys()):
        raise InputError(where, expected=f"the fields of {kind.__name__}", found=f"unknown: {', '.join(unknown)}")
    for name, value in row.items():
        # bool is an int to isinstance, and is a number in no field.
        if not isinstance(value, types[name]) or (isinstance(value, bool) and bool not in types[name]):
            names = " | ".join(kind.__name__ for kind in types[name])
            raise InputError(f"{where} {name}", expected=names, found=repr(value))
    return row


@cache
def _field_types(kind: type) -> dict[str, tuple[type, ...]]:
    """{field: types that a JSON value of it may have}."""
    types = {}
    for name, hint in get_type_hints(kind).items():
        parts = get_args(hint) if NoneType in get_args(hint) else (hint,)
        types[name] = tuple(t for part in parts for t in (_NUMBER if part is float else (get_origin(part) or part,)))
    return types
