"""What a run writes, one JSON line each: SampleRecord and TokenRecord (a rollout), StepRecord (a step). No torch here.

GradientRecord is the line of an optimizer step in another trainer (`probe.integrations`). Records never repeat prompts
or completions: those are in the pools, at (src_pool, src_step, src_sample).

To add a field: write it here as `name: Annotated[type, "meaning"]`, and make spec/SCHEMA.md again with
`python -m probe.records.tables`, which reads the meanings. A field without a default raises RUN_SCHEMA.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Self

from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json
from replay_pools.base.tables import decode_json

RUN_SCHEMA = 6  # version of a run's files; readers refuse every other one
# StepRecord.advantage on the wire: `probe.objective.advantages.advantage_diagnostics`, and `abs_mean` of the weighting
ADVANTAGE_MEANINGS = {
    "advantage/mean": "of the samples' `advantage`: after the cap, with token credit before both",
    "advantage/std": "of the same, ddof = 1",
    "advantage/abs_max": "largest |A| after the cap; with token credit of the tokens",
    "advantage/abs_mean": "mean |A| over the completion tokens, after token credit and the cap",
    "advantage/bound": "largest |A| that any rewards of this range could give; null with token credit",
    "adv_cap_fraction": "capped advantages / nonzero ones",
    "adv_cap_magnitude": "mean |A| before the cap of those that were capped; null when none was",
    "adv_cap_vacuous": "the cap is at or above the bound; null without a cap",
    "frac_reward_zero_std": "share of groups without reward variance",
    "skip_rate": "share of groups below min_group_std, those without variance apart",
}
ADVANTAGE_KEYS = tuple(ADVANTAGE_MEANINGS)
# On the wire "kl/NAME" and "ratio/NAME". A step has only those that its loss has: no KL term, no "kl/mean".
KL_KEYS = (
    "mean",  # from the reference, over the completion tokens that the policy sampled; absent in a step without any
    "max",  # of a token
    "from_base",  # mean KL from the base model, where the reference is another model
    "beta",  # strength of the penalty in this step; like the next three only in a run that trains
    "warmup_progress",  # share of the warm-up of beta
    "ema",  # of the mean KL, which the controller of beta follows
    "beta_adjusted",  # 1, -1 or 0: beta was raised, lowered or left
)
RATIO_KEYS = (
    *("mean", "max", "frac_clip_low", "frac_clip_high"),
    "staleness",  # updates between the policy that sampled and this step; only in a training that samples ahead
)
PREFIXED = ("kl", "ratio")  # fields {name: number} of StepRecord, flattened to "kl/NAME" and "ratio/NAME"
PLACE = ("step", "sample_id", "condition", "arm")  # what an error says of a record


class Record:
    """A dataclass that is written as one line of JSON: its fields in order, those in PREFIXED and `advantage` flat."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The row that is written.

        Raises:
            InputError: a number is not finite, or a cosine is None without a `null_reason`.
        """
        row: dict[str, Any] = {}
        for name in (entry.name for entry in fields(self)):  # pyright: ignore[reportArgumentType] (of a subclass)
            value = getattr(self, name)
            if name in PREFIXED:
                row |= {f"{name}/{key}": number for key, number in value.items()}
            elif isinstance(value, dict):
                row |= {key: value[key] for key in ADVANTAGE_KEYS}
            else:
                row[name] = value
        where = " ".join(f"{name} {row[name]}" for name in PLACE if name in row)
        for name, value in row.items():
            # The JSON writer turns NaN into null without a word, and the reason for it would be lost.
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{where} {name}", expected="a finite number or null", found=str(value))
        if row.get("cos_in", row.get("cos_S_contrib", 0.0)) is None and not row["null_reason"]:
            raise InputError(where, expected="a null_reason beside a null cosine", found="none")
        return row

    @classmethod
    def from_json(cls, row: Any, where: object) -> Self:
        """The record of one line of JSON; InputError names `where` and the missing, unknown or mistyped fields."""
        return decode_json(cls, dump_json(row), where)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Record):
    """One rollout under one condition and arm.

    The first sixteen fields, to `arm`, have the names and the order of the published predecessor (the "seed"), whose
    readers index them. A cosine is None where the gradient is zero; then `null_reason` says why.
    """

    step: Annotated[int, "of the run, from 0"]
    sample_id: Annotated[int, "0 .. G-1 within the step"]
    src_pool: Annotated[str, "pool of the rollout; with the next two its place there"]
    src_step: Annotated[int, "step of that pool"]
    src_sample: Annotated[int, "sample_id in that step"]
    reward: Annotated[float, "of the rollout"]
    hacked: Annotated[bool | None, "the mode's exploit is present, correct or not; None = a log that does not say"]
    gt_pass: Annotated[bool | None, "every oracle answer is right; None likewise"]
    fmt_ok: Annotated[bool | None, "the completion holds one well-formed answer; None likewise"]
    comp_len: Annotated[int, "completion tokens"]
    cos_S_contrib: Annotated[float | None, "the seed's name; global signed cosine of A_i g_i"]  # noqa: N815
    grad_norm_contrib: Annotated[float, "norm(A_i g_i)"]
    mean_cos_in: Annotated[float | None, "of the step's gradient, repeated on each of its rollouts as the seed does"]
    mean_cos_out: Annotated[float | None, "likewise"]
    frac_fired: Annotated[float | None, "likewise"]
    arm: Annotated[str, "row of probe.settings.arms.ARMS"]
    advantage: Annotated[float, "A_i, after the cap; with token credit before both"]
    cos_S_nll: Annotated[float | None, "of the sample's NLL gradient; exists when A_i = 0 too"]  # noqa: N815
    problem_id: Annotated[str, "of the environment; the cluster of every test"]
    prompt_sha: Annotated[str, "of the rendered prompt"]
    null_reason: Annotated[str | None, "why a cosine is null"]
    hint: Annotated[bool, "the prompt says how submissions are evaluated"]
    haar_sd: Annotated[
        float | None, "standard deviation of cos_S_contrib under Haar directions (of cos_S_nll: without credit)"
    ]
    nll: Annotated[float | None, "nats per completion token"]
    condition: Annotated[str, "named setting of the loss"]

    @property
    def sure(self) -> bool:
        """Whether it is known whether it hacks, so that it can stand on a side of a contrast."""
        return self.hacked is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(Record):
    """One step under one condition and arm: one group of rollouts in a replay, all groups of a step in training.

    Cosines are with the arm's directions: `*_in` of the gradient before the gate, `*_out` after it.
    """

    step: Annotated[int, "of the run, from 0"]
    arm: Annotated[str, "row of probe.settings.arms.ARMS"]
    problem_id: Annotated[str, 'of a step with several groups: the problems, joined by " + "']
    mixed_prompt: Annotated[bool, "a group's rollouts answer different prompts (hinted and not)"]
    cos_in: Annotated[float | None, "global signed cosine with the arm's directions, before the gate"]
    cos_out: Annotated[float | None, "after the gate"]
    mean_cos_in: Annotated[float | None, "mean over modules of the signed cosine, before the gate"]
    mean_cos_out: Annotated[float | None, "after the gate"]
    hackward_frac_in: Annotated[float | None, "norm(relu(V g)) / norm(g), before the gate"]
    hackward_frac_out: Annotated[float | None, "after the gate"]
    frac_fired: Annotated[float | None, "share of modules where the gate removed something"]
    haar_sd: Annotated[float | None, "standard deviation of cos_in under Haar directions"]
    reward_mean: Annotated[float, "over all rollouts of the step"]
    reward_std: Annotated[float, "within a group, as the next"]
    reward_spread: Annotated[float, "largest minus smallest reward"]
    solve: Annotated[float | None, "share of the rollouts that solve; in a training of the policy's, a teacher's apart"]
    solve_teacher: Annotated[float | None, "the same of a teacher's rollouts; None where the step has none"]
    advantage: Annotated[dict[str, float | bool | None], "ADVANTAGE_KEYS, flattened on the wire"]
    loss: Annotated[float, "the loss whose gradient is taken, before the gate: METHOD section 2"]
    grad_norm: Annotated[float, "norm of the policy gradient before the gate"]
    num_effective: Annotated[int, "rollouts with a nonzero advantage"]
    loss_type: Annotated[str, "normaliser: grpo | dr_grpo | dapo | nll"]
    reference: Annotated[str | None, "base | ema | recorded; None without KL"]
    null_reason: Annotated[str | None, "why the cosines are null"]
    additivity_error: Annotated[
        float | None, "|sum of contributions - batch gradient| / |batch gradient|: probe.step.additivity"
    ]
    cos_update: Annotated[float | None, "of the realised update; None when nothing was stepped"]
    hackward_frac_update: Annotated[float | None, "of the realised update"]
    condition: Annotated[str, "named setting of the loss"]
    frac_planning: Annotated[float, "share of completion tokens on planning phrases"]
    exec_surprisal_var: Annotated[float | None, "variance of the surprisal of the other completion tokens"]
    direction_age: Annotated[int, "optimizer steps since the directions were extracted"]
    direction_overlap: Annotated[float | None, "with those of the start: mean squared cosine of the principal angles"]
    entropy: Annotated[
        float | None,
        "of a training: mean surprisal of the tokens that the policy sampled, nats; None in a step without any",
    ] = None
    # Whole numbers stay whole: a resumed run writes again what it read.
    kl: Annotated[dict[str, int | float | None], "empty without KL"] = field(default_factory=dict)
    ratio: Annotated[dict[str, int | float | None], "empty at ratio 1"] = field(default_factory=dict)

    @classmethod
    def from_json(cls, row: Any, where: object) -> Self:
        """As of any record."""
        if isinstance(row, dict):
            row = _nested_groups(row, where)
        return decode_json(cls, dump_json(row), where)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRecord(Record):
    """One optimizer step of another trainer, from `probe.attach` or `probe.integrations.trl`. Fields as in StepRecord.

    `*_out` and `frac_fired` are of the gated gradient. Where `projected` is true, the optimizer got that gradient;
    elsewhere they say what would be, and are called `would_cos_out` and so on where they are printed or logged.
    """

    step: Annotated[int, "optimizer steps before this one"]
    cos_in: Annotated[float | None, "global signed cosine of the gradient with the directions"]
    cos_out: Annotated[float | None, "of the gated gradient"]
    mean_cos_in: Annotated[float | None, "mean over modules of the signed cosine"]
    mean_cos_out: Annotated[float | None, "of the gated gradient"]
    hackward_frac_in: Annotated[float | None, "norm(relu(V g)) / norm(g)"]
    hackward_frac_out: Annotated[float | None, "of the gated gradient"]
    frac_fired: Annotated[float | None, "share of modules where the gate removed something"]
    haar_sd: Annotated[float | None, "standard deviation of cos_in under Haar directions"]
    grad_norm: Annotated[
        float | None, "norm of the gradient in the directions' modules, without the scale of a loss scaler"
    ]
    cos_update: Annotated[float | None, "of the realised update, turned round as a gradient is"]
    hackward_frac_update: Annotated[
        float | None,
        "of the realised update: 0 after a one-sided projection with SGD at one learning rate; momentum, Adam, weight "
        "decay and several learning rates leave a part",
    ]
    projected: Annotated[
        bool, "the optimizer got the projected gradient; if not, `*_out` and `frac_fired` say what would be"
    ]
    null_reason: Annotated[str | None, "why the cosines are null"]
    directions: Annotated[str, "16 digits of a sha256 of the directions"]
    changed: Annotated[
        bool, "the trained parameters or adapters are others than in the step before, and are measured as they are now"
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadRecord(Record):
    """What one arm's steps on the stored rollouts of a replay changed, under one prompt (`probe.runs.lookahead`)."""

    arm: Annotated[str, "row of probe.settings.arms.ARMS"]
    measure: Annotated[str, "as METHOD section 7 lists them"]
    prompt: Annotated[str, "a problem, a held-out pair, or empty; what arms are paired by"]
    value: Annotated[float, "mean over what the prompt has"]


def nullable(value: float) -> float | None:
    """The number, or None for NaN: mathematics gives NaN for a cosine that does not exist, a record null."""
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The share of every token in the cosine of one rollout (`probe.step.bases.token_shares`).

    Under the primary condition, in the trained arm or `probe.settings.arms.measured_arm`. The shares of prompt and
    completion sum to `cos`. That is `cos_S_nll` of the sample record; if the condition has token credit, it is the
    cosine of the credited gradient. `cos` times the sign of the advantage is `cos_S_contrib`. `cos` and the shares are
    None for a rollout without gradient.
    """

    step: int
    sample_id: int  # as in the sample records
    condition: str
    arm: str
    cos: float | None
    prompt: tuple[float, ...] | None  # a share for every prompt token
    completion: tuple[float, ...] | None  # a share for every completion token
    prompt_chars: tuple[int, ...] | None  # how many characters of the pool's `prompt` each token covers; None: unknown
    completion_chars: tuple[int, ...] | None  # likewise of `completion`

    def to_json(self) -> dict[str, Any]:
        """The row that is written; the shares as float32 arrays, which the JSON writer prints with few digits."""
        import numpy as np

        row = asdict(self)
        for name in ("prompt", "completion"):
            if row[name] is not None:
                row[name] = np.array(row[name], dtype=np.float32)
        return row


def _nested_groups(row: dict[str, Any], where: object) -> dict[str, Any]:
    """A flat row of steps.jsonl with its `advantage`, `kl` and `ratio` as dictionaries again."""
    if missing := [key for key in ADVANTAGE_KEYS if key not in row]:
        raise InputError(where, expected=f"field {missing[0]}", found=f"missing: {', '.join(missing)}")
    groups: dict[str, dict[str, Any]] = {"advantage": {}, **{prefix: {} for prefix in PREFIXED}}
    plain = {}
    for key, value in row.items():
        prefix, slash, name = key.partition("/")
        # Advantage keys first: "advantage/mean" has a slash too, and keeps its whole name.
        if key in ADVANTAGE_KEYS:
            groups["advantage"][key] = value
        elif slash and prefix in PREFIXED:
            groups[prefix][name] = value
        else:
            plain[key] = value
    return {**plain, **groups}
