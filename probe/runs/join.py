"""Join the results of a step with the labels of its rollouts to records (samples, step, tokens).

The step itself sees token ids and rewards only. The oracle's labels (hacked, gt_pass) are added here, so that a label
can reach a gradient only through the rewards of a remedy (`probe.runs.sources.rewards`).

A sample record has the graded reward; advantages and a step's statistics use the rewards that the loss saw.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from probe.objective.advantages import advantage_diagnostics, reward_stats
from probe.records.records import SampleRecord, StepRecord, TokenRecord, nullable
from probe.settings.loss import LossSettings
from probe.settings.words import PROBLEM_SEPARATOR
from probe.step.groups import Group, strata_of
from probe.step.step import ArmResult, StepResult
from replay_pools.rollout import Rollout

# Values of `null_reason`.
NO_ADVANTAGE = "advantage is 0"
ALL_CLIPPED = "every token is clipped"
NO_GRADIENT = "gradient is 0"
NO_VARIANCE = "no reward variance in the group"
REPEATED = ("mean_cos_in", "mean_cos_out", "frac_fired")  # fields of a sample's record with the step's value
OF_ROLLOUT = ("reward", "hacked", "gt_pass", "fmt_ok", "problem_id", "prompt_sha", "hint")  # with the rollout's
HALF_A_CHARACTER = "\ufffd"  # decoders write this for an incomplete character


class Pieces:
    """The texts of token ids, cached."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer, self._special = tokenizer, frozenset(tokenizer.all_special_ids)
        self._anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._pieces: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        """Return the text of a token inside a text; at the start, some tokenizers drop its leading space."""
        if token not in self._pieces:
            self._pieces[token] = self._inside([token])
        return self._pieces[token]

    def lengths(self, ids: Sequence[int], text: str, *, special: bool) -> tuple[int, ...] | None:
        """Return the number of characters of `text` that each token adds; None if the tokens do not spell it.

        A character that spans several tokens counts for the last one.

        Args:
            special: True if `text` contains special tokens (prompts do, completions do not).
        """
        pieces = ["" if not special and token in self._special else self(token) for token in ids]
        start = 0
        while start < len(ids):
            stop = start
            while stop < len(ids) and HALF_A_CHARACTER in pieces[stop]:
                stop += 1
            if stop > start:
                pieces[start:stop] = [*[""] * (stop - start - 1), self._inside(ids[start:stop])]
            start = stop + 1
        return tuple(map(len, pieces)) if "".join(pieces) == text else None

    def _inside(self, ids: Sequence[int]) -> str:
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        before, whole = (str(self._tokenizer.decode([*self._anchor, *own], **options)) for own in ((), ids))
        return whole[len(before) :]


def sample_records(
    groups: Sequence[Group], rollouts: Sequence[Rollout], result: StepResult, arm: ArmResult
) -> list[SampleRecord]:
    """Return one record for each rollout of the step, group after group, under the loss variant and arm of `arm`."""
    keys, measures = [key for group in groups for key in group.keys], _measures(arm)
    advantages = result.weightings[arm.measure.condition].advantages.tolist()
    cos_nll, cos_contrib, haar_sd = (
        [*map(nullable, values.tolist())] for values in (arm.cos_nll, arm.cos_contrib, arm.sample_haar_sd)
    )
    return [
        SampleRecord(
            step=groups[0].step,
            sample_id=i,
            src_pool=key.pool,
            src_step=key.step,
            src_sample=key.sample_id,
            comp_len=rollout.num_sampled,
            cos_S_contrib=cos_contrib[i],
            grad_norm_contrib=float(arm.contribution_norms[i]),
            arm=arm.measure.arm.name,
            advantage=advantages[i],
            cos_S_nll=cos_nll[i],
            null_reason=_why_null(cos_nll[i], cos_contrib[i], advantages[i]),
            haar_sd=haar_sd[i],
            nll=float(result.nll[i]),
            condition=arm.measure.condition,
            **{name: measures[name] for name in REPEATED},
            **{name: getattr(rollout, name) for name in OF_ROLLOUT},
        )
        for i, (key, rollout) in enumerate(zip(keys, rollouts, strict=True))
    ]


def _why_null(cos_nll: float | None, cos_contrib: float | None, advantage: float) -> str | None:
    if cos_nll is None:
        return NO_GRADIENT
    if cos_contrib is not None:
        return None
    return NO_ADVANTAGE if advantage == 0 else ALL_CLIPPED


def step_record(
    groups: Sequence[Group],
    result: StepResult,
    arm: ArmResult,
    objective: LossSettings,
    control: Mapping[str, float],
    reward_range: float,
    *,
    staleness: int | None = None,
    **more: Any,
) -> StepRecord:
    """Return the record of one step under the loss variant and arm of `arm`.

    Args:
        control: result of `TrainingState.finish_step`, with wire names without "kl/".
        reward_range: largest minus smallest reward that the loss can see.
        staleness: updates since the rollouts were sampled; None unless sampling runs ahead.
        more: the record's `solve`, `solve_teacher` and `entropy`.
    """
    rewards = torch.tensor([group.rewards for group in groups], dtype=torch.float64)
    weighting, projection = result.weightings[arm.measure.condition], arm.projection
    advantage = advantage_diagnostics(
        objective,
        rewards,
        reward_range,
        token_advantages=weighting.token_advantages,
        strata=None if objective.strata is None else torch.tensor(strata_of(groups, objective.strata)),
    )
    num_effective, update = int((weighting.advantages != 0).sum()), arm.update
    why = NO_GRADIENT if num_effective else NO_VARIANCE
    return StepRecord(
        step=groups[0].step,
        arm=arm.measure.arm.name,
        problem_id=PROBLEM_SEPARATOR.join(dict.fromkeys(group.problem_id for group in groups)),
        mixed_prompt=any(group.mixed_prompt for group in groups),
        **_measures(arm),
        haar_sd=nullable(arm.haar_sd),
        **reward_stats(rewards),
        advantage=advantage | {"advantage/abs_mean": weighting.abs_advantage},
        loss=weighting.loss,
        grad_norm=float(projection.before.norm),
        num_effective=num_effective,
        loss_type=objective.loss_type,
        reference=objective.reference,
        null_reason=why if bool(projection.before.cos.isnan()) else None,
        additivity_error=result.additivity_errors[arm.measure.arm.basis],
        cos_update=None if update is None else nullable(float(update.cos)),
        hackward_frac_update=None if update is None else nullable(float(update.hackward_frac)),
        condition=arm.measure.condition,
        frac_planning=result.frac_planning,
        exec_surprisal_var=result.exec_surprisal_var,
        direction_age=arm.measure.age,
        direction_overlap=arm.measure.overlap,
        kl={**weighting.kl, **control},
        ratio={**weighting.ratio, **({} if staleness is None else {"staleness": float(staleness)})},
        **more,
    )


def solve_share(rollouts: Iterable[Rollout]) -> float | None:
    """Return the solve rate of rollouts with a known label; None without any."""
    solved = [rollout.gt_pass for rollout in rollouts if rollout.gt_pass is not None]
    return sum(solved) / len(solved) if solved else None


def token_records(
    groups: Sequence[Group], rollouts: Sequence[Rollout], arm: ArmResult, pieces: Pieces
) -> list[TokenRecord]:
    """Return one record for each rollout of the step, with its `arm.token_shares`."""
    assert arm.token_shares is not None
    records = []
    for i, (rollout, padded) in enumerate(zip(rollouts, arm.token_shares.tolist(), strict=True)):
        # Padded to the longest sample of the step; all nan for a sample without gradient.
        shares = padded[: rollout.plen + rollout.comp_len]
        has_gradient = not math.isnan(shares[0])
        records.append(
            TokenRecord(
                step=groups[0].step,
                sample_id=i,
                condition=arm.measure.condition,
                arm=arm.measure.arm.name,
                cos=math.fsum(shares) if has_gradient else None,
                prompt=tuple(shares[: rollout.plen]) if has_gradient else None,
                completion=tuple(shares[rollout.plen :]) if has_gradient else None,
                prompt_chars=pieces.lengths(rollout.prompt_ids, rollout.prompt, special=True),
                completion_chars=pieces.lengths(rollout.completion_ids, rollout.completion, special=False),
            )
        )
    return records


def _measures(arm: ArmResult) -> dict[str, float | None]:
    """Return the measures of the whole gradient, with None for nan."""
    measures = {name: nullable(float(value)) for name, value in arm.projection.measures().items()}
    return measures if measures["cos_in"] is not None else measures | {"frac_fired": None}
