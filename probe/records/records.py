"""The JSON lines of a run: SampleRecord and TokenRecord for a rollout, StepRecord for a step. No torch.

GradientRecord is the line of an optimizer step in another trainer (`probe.integrations`). Records do not repeat prompts
or completions, which are in the pools at (src_pool, src_step, src_sample).

To add a field, write it here as `name: Annotated[type, "meaning"]` and regenerate spec/SCHEMA.md with
`python -m probe.records.schema`. A field without a default needs a higher RUN_SCHEMA.
"""

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Self, get_type_hints

from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, parse_json
from replay_pools.base.tables import decode_json

RUN_SCHEMA = 8  # version of a run's files; readers refuse any other
# Wire fields of StepRecord.advantage, from `probe.objective.advantages.advantage_diagnostics` and the weighting.
ADVANTAGE_MEANINGS = {
    "advantage/mean": "mean of the samples' `advantage`",
    "advantage/std": "their standard deviation (ddof = 1)",
    "advantage/abs_max": "largest |A| after the cap; with token credit, of the tokens",
    "advantage/abs_mean": "mean |A| over the completion tokens, after token credit and the cap",
    "advantage/bound": "largest |A| that rewards in this range allow; null with token credit",
    "adv_cap_fraction": "capped advantages / nonzero advantages",
    "adv_cap_magnitude": "mean |A| of capped advantages, before the cap; null if none was capped",
    "adv_cap_vacuous": "the cap is at or above the bound; null without a cap",
    "frac_reward_zero_std": "share of groups without reward variance",
    "skip_rate": "share of groups below min_group_std, not counting groups without variance",
}
ADVANTAGE_KEYS = tuple(ADVANTAGE_MEANINGS)
# On the wire "kl/NAME" and "ratio/NAME". A step has only the names of its loss: without a KL term no "kl/mean".
KL_KEYS = (
    "mean",  # from the reference, over completion tokens that the policy sampled; missing in a step without any
    "max",  # largest of a token
    "from_base",  # mean KL from the base model, if the reference is another model
    "beta",  # weight of the penalty in this step; like the next three only in a training
    "warmup_progress",  # share of beta's warm-up
    "ema",  # moving average of the mean KL, which beta's controller follows
    "beta_adjusted",  # 1, -1 or 0: beta was raised, lowered or kept
)
RATIO_KEYS = (
    *("mean", "max", "frac_clip_low", "frac_clip_high"),
    "staleness",  # updates between sampling and this step; only in a training that samples ahead
)
PREFIXED = ("kl", "ratio")  # fields {name: number} of StepRecord, flattened to "kl/NAME" and "ratio/NAME"
PLACE = ("step", "sample_id", "condition", "arm")  # fields that name a record in errors


class Record:
    """A dataclass written as one JSON line: its fields in order, PREFIXED fields and `advantage` flattened."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON row.

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
            # The JSON writer would silently turn NaN into null, without a reason.
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"{where} {name}", expected="a finite number or null", found=str(value))
        if row.get("cos_in", row.get("cos_S_contrib", 0.0)) is None and not row["null_reason"]:
            raise InputError(where, expected="a null_reason for a null cosine", found="none")
        return row

    @classmethod
    def parse(cls, line: bytes, where: object) -> Self:
        """Read one JSON line; InputError names `where` and the missing, unknown or mistyped fields."""
        return decode_json(cls, line, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Record):
    """One rollout under one loss variant and arm.

    The first sixteen fields, up to `arm`, keep the names and order of the published predecessor (the "seed"), because
    its readers index them. A cosine is None if the gradient is zero; then `null_reason` says why.
    """

    step: Annotated[int, "step of the run, from 0"]
    sample_id: Annotated[int, "0 .. G-1 within the step"]
    src_pool: Annotated[str, "pool of the rollout"]
    src_step: Annotated[int, "step in that pool"]
    src_sample: Annotated[int, "sample_id in that step"]
    reward: Annotated[float, "reward of the rollout"]
    hacked: Annotated[bool | None, "the mode's exploit is present, correct or not; None = not in the log"]
    gt_pass: Annotated[bool | None, "every oracle answer is right; None = not in the log"]
    fmt_ok: Annotated[bool | None, "the completion holds one well-formed answer; None = not in the log"]
    comp_len: Annotated[int, "completion tokens that the policy sampled"]
    cos_S_contrib: Annotated[float | None, "global signed cosine of A_i g_i (the seed's name)"]  # noqa: N815
    grad_norm_contrib: Annotated[float, "norm(A_i g_i)"]
    mean_cos_in: Annotated[float | None, "the step's value, repeated as in the seed"]
    mean_cos_out: Annotated[float | None, "the step's value, repeated"]
    frac_fired: Annotated[float | None, "the step's value, repeated"]
    arm: Annotated[str, "row of probe.settings.arms.ARMS"]
    advantage: Annotated[float, "A_i, after the cap; with token credit, before credit and cap"]
    cos_S_nll: Annotated[float | None, "cosine of the sample's NLL gradient; exists for A_i = 0 too"]  # noqa: N815
    problem_id: Annotated[str, "problem in the environment; the cluster of every test"]
    prompt_sha: Annotated[str, "sha256 of the rendered prompt"]
    null_reason: Annotated[str | None, "why a cosine is null"]
    hint: Annotated[bool, "the prompt says how submissions are evaluated"]
    haar_sd: Annotated[
        float | None, "standard deviation of cos_S_contrib under Haar directions (of cos_S_nll: without credit)"
    ]
    nll: Annotated[float | None, "nats per completion token"]
    condition: Annotated[str, "loss variant"]

    @property
    def sure(self) -> bool:
        """True if the rollout has a hack label, so that it can enter contrasts."""
        return self.hacked is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord(Record):
    """One step under one loss variant and arm: one group of rollouts in a replay, all groups of a step in training.

    Cosines are with the arm's directions: `*_in` before the projection, `*_out` after it.
    """

    step: Annotated[int, "step of the run, from 0"]
    arm: Annotated[str, "row of probe.settings.arms.ARMS"]
    problem_id: Annotated[str, 'problem; for several groups, their problems joined by " + "']
    mixed_prompt: Annotated[bool, "a group's rollouts answer different prompts (hinted and not)"]
    cos_in: Annotated[float | None, "global signed cosine with the arm's directions, before the projection"]
    cos_out: Annotated[float | None, "the same, after the projection"]
    mean_cos_in: Annotated[float | None, "mean over modules of the signed cosine, before the projection"]
    mean_cos_out: Annotated[float | None, "the same, after the projection"]
    hackward_frac_in: Annotated[float | None, "norm(relu(V g)) / norm(g), before the projection"]
    hackward_frac_out: Annotated[float | None, "the same, after the projection"]
    frac_fired: Annotated[float | None, "share of modules where the projection removed something"]
    haar_sd: Annotated[float | None, "standard deviation of cos_in under Haar directions"]
    reward_mean: Annotated[float, "mean reward of the step's rollouts"]
    reward_std: Annotated[float, "standard deviation within a group, mean over groups"]
    reward_spread: Annotated[float, "largest minus smallest reward of a group, mean over groups"]
    solve: Annotated[float | None, "share of rollouts that solve; in a training, of the policy's own rollouts"]
    solve_teacher: Annotated[float | None, "share of a teacher's rollouts that solve; None without any"]
    advantage: Annotated[dict[str, float | bool | None], "ADVANTAGE_KEYS, flattened on the wire"]
    loss: Annotated[float, "loss of METHOD section 2, before the projection"]
    grad_norm: Annotated[float, "norm of the policy gradient, before the projection"]
    num_effective: Annotated[int, "rollouts with a nonzero advantage"]
    loss_type: Annotated[str, "normaliser: grpo | dr_grpo | dapo | nll"]
    reference: Annotated[str | None, "base | ema | recorded; None without KL"]
    null_reason: Annotated[str | None, "why the cosines are null"]
    additivity_error: Annotated[
        float | None, "|sum of contributions - batch gradient| / |batch gradient|: probe.step.additivity"
    ]
    cos_update: Annotated[float | None, "cosine of the realised update; None if weights are frozen"]
    hackward_frac_update: Annotated[float | None, "the same fraction of the realised update"]
    condition: Annotated[str, "loss variant"]
    frac_planning: Annotated[float, "share of completion tokens on planning phrases"]
    exec_surprisal_var: Annotated[float | None, "variance of the surprisal of the other completion tokens"]
    direction_age: Annotated[int, "optimizer steps since the directions were extracted"]
    direction_overlap: Annotated[float | None, "overlap with the first directions: mean squared cosine of the angles"]
    entropy: Annotated[
        float | None,
        "training only: mean surprisal of the policy's tokens, nats; None in a step without any",
    ] = None
    # int stays int, because a resumed run writes what it read.
    kl: Annotated[dict[str, int | float | None], "empty without KL"] = field(default_factory=dict)
    ratio: Annotated[dict[str, int | float | None], "empty at ratio 1"] = field(default_factory=dict)

    @classmethod
    def parse(cls, line: bytes, where: object) -> Self:
        """Read one JSON line as `Record.parse`, and nest its flat keys into `advantage`, `kl` and `ratio`."""
        row = parse_json(line, where)
        if not isinstance(row, dict):
            return decode_json(cls, line, where)
        if missing := [key for key in ADVANTAGE_KEYS if key not in row]:
            raise InputError(where, expected=f"field {missing[0]}", found=f"missing: {', '.join(missing)}")
        nested: dict[str, Any] = {"advantage": {key: row.pop(key) for key in ADVANTAGE_KEYS}}
        nested |= {prefix: {} for prefix in PREFIXED}
        for key in [key for key in row if key.partition("/")[0] in PREFIXED]:
            prefix, _, name = key.partition("/")
            nested[prefix][name] = row.pop(key)
        return decode_json(cls, dump_json(row | nested), where)


def step_numbers() -> list[str]:
    """Return the fields of StepRecord that hold one number, except the step's own."""
    kinds = {entry.name: get_type_hints(StepRecord)[entry.name] for entry in fields(StepRecord)}
    return [name for name, kind in kinds.items() if kind in (float, int, float | None) and name != "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRecord(Record):
    """One optimizer step of another trainer, from `probe.attach` or `probe.integrations.trl`. Fields as in StepRecord.

    `*_out` and `frac_fired` describe the projected gradient. If `projected` is true, the optimizer got that gradient;
    otherwise they are hypothetical, and printed or logged as `would_cos_out` and so on.
    """

    step: Annotated[int, "optimizer steps before this one"]
    cos_in: Annotated[float | None, "global signed cosine of the gradient with the directions"]
    cos_out: Annotated[float | None, "the same, of the projected gradient"]
    mean_cos_in: Annotated[float | None, "mean over modules of the signed cosine"]
    mean_cos_out: Annotated[float | None, "the same, of the projected gradient"]
    hackward_frac_in: Annotated[float | None, "norm(relu(V g)) / norm(g)"]
    hackward_frac_out: Annotated[float | None, "the same, of the projected gradient"]
    frac_fired: Annotated[float | None, "share of modules where the projection removed something"]
    haar_sd: Annotated[float | None, "standard deviation of cos_in under Haar directions"]
    grad_norm: Annotated[
        float | None, "norm of the gradient in the directions' modules, without a loss scaler's factor"
    ]
    cos_update: Annotated[float | None, "cosine of the realised update, with the sign of a gradient"]
    hackward_frac_update: Annotated[
        float | None,
        "the same fraction of the realised update; 0 after a one-sided projection only with SGD at one learning rate",
    ]
    projected: Annotated[
        bool, "the optimizer got the projected gradient; if not, `*_out` and `frac_fired` are hypothetical"
    ]
    null_reason: Annotated[str | None, "why the cosines are null"]
    directions: Annotated[str, "16 digits of a sha256 of the directions"]
    changed: Annotated[bool, "the trained parameters or adapters differ from the step before"] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadRecord(Record):
    """The effect of one arm's lookahead steps on one measure and prompt (`probe.runs.lookahead`)."""

    arm: Annotated[str, "row of probe.settings.arms.ARMS"]
    measure: Annotated[str, "one of METHOD section 7"]
    prompt: Annotated[str, "a problem, a held-out pair, or empty; arms are paired by it"]
    value: Annotated[float, "mean over the texts of the prompt"]


def nullable(value: float) -> float | None:
    """Convert NaN, the value of a cosine that does not exist, to None, its value in a record."""
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord(Record):
    """The share of every token in the cosine of one rollout (`probe.step.bases.token_shares`).

    It is measured under the primary loss variant, in the trained arm or `probe.settings.arms.measured_arm`. The shares
    of prompt and completion sum to `cos`. `cos` is `cos_S_nll` of the sample record or, with token credit, the cosine
    of the credited gradient; times the sign of the advantage it is `cos_S_contrib`. `cos` and the shares are None for a
    rollout without gradient. A tool's turn has shares for the same reason as the prompt: later tokens read it.
    """

    step: int
    sample_id: int  # as in the sample records
    condition: str
    arm: str
    cos: float | None
    prompt: tuple[float, ...] | None  # one share a prompt token
    completion: tuple[float, ...] | None  # one share a completion token
    prompt_chars: tuple[int, ...] | None  # characters of the pool's `prompt` that each token covers; None: unknown
    completion_chars: tuple[int, ...] | None  # the same for `completion`

    def to_json(self) -> dict[str, Any]:
        """Return the JSON row; shares are float32 arrays, which the JSON writer prints with few digits."""
        import numpy as np

        row = asdict(self)
        for name in ("prompt", "completion"):
            if row[name] is not None:
                row[name] = np.array(row[name], dtype=np.float32)
        return row
