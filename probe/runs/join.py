"""Make the records of a step (samples, step, tokens) from what it computed and from the labels of its rollouts.

The step itself sees token ids and rewards only. Its results meet the oracle's labels (hacked, gt_pass) here and nowhere
else, so that no label can reach a gradient but in the rewards that a remedy makes (`probe.runs.remedies`).

A sample record has the reward as it was graded; advantages and the statistics of a step are of the rewards that the
loss saw.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import torch

from probe.objective.advantages import reward_stats
from probe.objective.objective import reward_diagnostics
from probe.objective.weigh import Weighting
from probe.records.records import SampleRecord, StepRecord, nullable
from probe.records.tokens import TokenRecord
from probe.runs.pieces import Pieces
from probe.runs.rates import solve_share
from probe.settings.loss import LossSettings
from probe.settings.words import PROBLEM_SEPARATOR
from probe.step.groups import Group
from probe.step.results import ArmResult, StepResult
from probe.step.strata import strata_of
from replay_pools.rollout import Rollout

# Values of `null_reason`: why a cosine of a record is null.
NO_ADVANTAGE = "advantage is 0"
ALL_CLIPPED = "every token is clipped"
NO_GRADIENT = "gradient is 0"
NO_VARIANCE = "no reward variance in the group"


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveShares:
    """Shares of a step's rollouts that solve, of those of which it is known; None without any."""

    policy: float | None
    teacher: float | None

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], by_policy: Sequence[bool], by_teacher: Sequence[bool]) -> "SolveShares":
        """The shares of the rollouts that the policy sampled, and of a teacher's; others are in neither."""
        return cls(
            policy=solve_share(compress(rollouts, by_policy)), teacher=solve_share(compress(rollouts, by_teacher))
        )


def sample_records(
    groups: Sequence[Group], rollouts: Sequence[Rollout], result: StepResult, arm: ArmResult
) -> list[SampleRecord]:
    """One record for each rollout of the step, group after group, under the condition and arm of `arm`.

    `mean_cos_in`, `mean_cos_out` and `frac_fired` are of the whole step and the same in all of its records.
    """
    keys = [key for group in groups for key in group.keys]
    return [
        SampleRecord(
            step=groups[0].step,
            sample_id=i,
            src_pool=key.pool,
            src_step=key.step,
            src_sample=key.sample_id,
            reward=rollout.reward,
            hacked=rollout.hacked,
            gt_pass=rollout.gt_pass,
            fmt_ok=rollout.fmt_ok,
            comp_len=rollout.comp_len,
            cos_S_contrib=nullable(float(arm.cos_contrib[i])),
            grad_norm_contrib=float(arm.contribution_norms[i]),
            mean_cos_in=nullable(float(arm.projection.mean_cos_in)),
            mean_cos_out=nullable(float(arm.projection.mean_cos_out)),
            frac_fired=_frac_fired(arm),
            arm=arm.arm,
            advantage=float(result.weightings[arm.condition].advantages[i]),
            cos_S_nll=nullable(float(arm.cos_nll[i])),
            problem_id=rollout.problem_id,
            prompt_sha=rollout.prompt_sha,
            null_reason=_sample_reason(result.weightings[arm.condition], arm, i),
            hint=rollout.hint,
            haar_sd=nullable(float(arm.sample_haar_sd[i])),
            nll=float(result.nll[i]),
            condition=arm.condition,
            flaky=rollout.grade.flaky,
            no_label=rollout.grade.no_label,
        )
        for i, (key, rollout) in enumerate(zip(keys, rollouts, strict=True))
    ]


def step_record(
    groups: Sequence[Group],
    result: StepResult,
    arm: ArmResult,
    objective: LossSettings,
    control: Mapping[str, float],
    reward_range: float,
    solve: SolveShares,
    staleness: int | None = None,
) -> StepRecord:
    """The record of one step under the condition and arm of `arm`.

    Args:
        objective: the loss of that condition.
        control: what the controller of beta did, by wire names without "kl/".
        reward_range: largest minus smallest reward that the loss can see.
        solve: of the rollouts of the step.
        staleness: updates since the policy that sampled the rollouts; None where sampling does not run ahead.
    """
    rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float64)
    weighting, projection = result.weightings[arm.condition], arm.projection
    return StepRecord(
        step=groups[0].step,
        arm=arm.arm,
        problem_id=PROBLEM_SEPARATOR.join(dict.fromkeys(group.problem_id for group in groups)),
        mixed_prompt=any(group.mixed_prompt for group in groups),
        cos_in=nullable(float(projection.cos_in)),
        cos_out=nullable(float(projection.cos_out)),
        mean_cos_in=nullable(float(projection.mean_cos_in)),
        mean_cos_out=nullable(float(projection.mean_cos_out)),
        hackward_frac_in=nullable(float(projection.hackward_frac_in)),
        hackward_frac_out=nullable(float(projection.hackward_frac_out)),
        frac_fired=_frac_fired(arm),
        haar_sd=nullable(arm.haar_sd),
        **reward_stats(rewards),
        solve=solve.policy,
        solve_teacher=solve.teacher,
        advantage=reward_diagnostics(
            objective, rewards, reward_range, weighting.token_advantages, strata_of(groups, objective.strata)
        )
        | {"advantage/abs_mean": weighting.abs_advantage},
        loss=weighting.loss,
        grad_norm=float(projection.norm_in),
        num_effective=int((weighting.advantages != 0).sum()),
        loss_type=objective.loss_type,
        reference=objective.reference,
        null_reason=_step_reason(weighting, arm),
        additivity_error=result.additivity_errors[arm.basis],
        cos_update=nullable(arm.cos_update),
        hackward_frac_update=nullable(arm.hackward_frac_update),
        condition=arm.condition,
        frac_planning=result.frac_planning,
        exec_surprisal_var=result.exec_surprisal_var,
        direction_age=arm.direction_age,
        direction_overlap=arm.direction_overlap,
        kl={**weighting.kl, **control},
        ratio={**weighting.ratio, **({} if staleness is None else {"staleness": float(staleness)})},
    )


def token_records(
    groups: Sequence[Group], rollouts: Sequence[Rollout], arm: ArmResult, pieces: Pieces
) -> list[TokenRecord]:
    """One record for each rollout of the step: how its cosine splits over its tokens (`arm.token_shares`)."""
    assert arm.token_shares is not None
    return [
        _token_record(groups[0].step, i, rollout, arm, shares, pieces)
        for i, (rollout, shares) in enumerate(zip(rollouts, arm.token_shares.tolist(), strict=True))
    ]


def _token_record(
    step: int, i: int, rollout: Rollout, arm: ArmResult, shares: Sequence[float], pieces: Pieces
) -> TokenRecord:
    # Shares of a sample without gradient are all nan.
    has_gradient = not math.isnan(shares[0])
    # Shares are padded to the longest sample of the step.
    of_tokens = shares[: rollout.plen + rollout.comp_len]
    prompt_chars = pieces.lengths(rollout.prompt_ids, rollout.prompt, special=True)
    completion_chars = pieces.lengths(rollout.completion_ids, rollout.completion, special=False)
    return TokenRecord(
        step=step,
        sample_id=i,
        condition=arm.condition,
        arm=arm.arm,
        cos=math.fsum(of_tokens) if has_gradient else None,
        prompt=tuple(of_tokens[: rollout.plen]) if has_gradient else None,
        completion=tuple(of_tokens[rollout.plen :]) if has_gradient else None,
        prompt_chars=None if prompt_chars is None else tuple(prompt_chars),
        completion_chars=None if completion_chars is None else tuple(completion_chars),
    )


def _frac_fired(arm: ArmResult) -> float | None:
    """The share of modules in which the gate fired; null without a gradient, where none could."""
    return None if bool(arm.projection.cos_in.isnan()) else float(arm.projection.frac_fired)


def _sample_reason(weighting: Weighting, arm: ArmResult, i: int) -> str | None:
    """Why a cosine of sample `i` is null; None where none is."""
    if bool(arm.cos_nll[i].isnan()):
        return NO_GRADIENT
    if not bool(arm.cos_contrib[i].isnan()):
        return None
    return NO_ADVANTAGE if float(weighting.advantages[i]) == 0 else ALL_CLIPPED


def _step_reason(weighting: Weighting, arm: ArmResult) -> str | None:
    """Why the cosine of the whole step's gradient is null; None where it is a number."""
    if not bool(arm.projection.cos_in.isnan()):
        return None
    return NO_GRADIENT if bool((weighting.advantages != 0).any()) else NO_VARIANCE
