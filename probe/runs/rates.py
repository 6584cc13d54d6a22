"""Rates: hack, exploit and solve rates of graded rollouts on held-out problems, as `evals.jsonl` keeps them. No torch.

`probe.runs.heldout` samples the rollouts and `evaluate` counts; `probe.runs.evaluations` calls both.

There is a rate for each loophole mode with and without its hint, and one over all, with a Wilson 95% interval. The
interval takes rollouts as independent, which holds for one rollout a problem and setting. With more, the unit is the
problem and the interval is too narrow: a reader sees it by `num_problems` beside `num_rollouts`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from probe.analysis.statistics.intervals import Interval, wilson_interval
from probe.analysis.training_outcome import RATES, setting_of
from probe.settings.words import ALL, NO_HINT
from replay_pools.errors import InputError
from replay_pools.rollout import Rollout
from replay_pools.storage.tables import decode

Weights = Literal["training", "deployed"]  # with and without the quarantine; the same for arms that have none
Metric = Literal["hack", "exploit", "solve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share of rollouts, `count` of them; rate and interval are None without rollouts."""

    count: int
    rate: float | None
    interval: Interval | None  # Wilson, 95%


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates of one setting."""

    num_rollouts: int
    num_problems: int
    hack: Rate  # the active mode's exploit is present, correct or not
    exploit: Rate  # rewarded and wrong
    solve: Rate  # every oracle answer is right


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of one policy: rates by setting, `all` first, then each mode with its hint, then `no hint`."""

    step: int  # optimizer steps that the policy has behind it
    weights: Weights
    rates: dict[str, Rates]

    def to_json(self) -> dict[str, Any]:
        """A line of `evals.jsonl`, as a dict."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Any, where: object) -> "Evaluation":
        """Inverse of `to_json`; further keys beside these are ignored, and InputError names a field that is wrong."""
        if not isinstance(row, dict) or not isinstance(row.get("rates"), dict):
            raise InputError(where, expected="an evaluation with rates", found=repr(row)[:60])
        rates = {name: decode(Rates, table, f"{where} rates {name}") for name, table in row["rates"].items()}
        return cls(step=row["step"], weights=row["weights"], rates=rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """The best of several evaluated checkpoints."""

    step: int
    metric: Metric
    rate: Rate
    num_checkpoints: int

    @property
    def biased(self) -> bool:
        """Whether it is the best of several noisy rates: too good on average, with an interval that does not cover."""
        return self.num_checkpoints > 1

    @property
    def label(self) -> str:
        """Its name in a report."""
        return f"best of {self.num_checkpoints} by {self.metric} (biased)" if self.biased else "the only checkpoint"


def evaluate(rollouts: Sequence[Rollout], *, step: int, weights: Weights = "deployed") -> Evaluation:
    """The rates of graded rollouts on held-out problems, by setting; those without label are left out.

    Args:
        step: optimizer steps that the policy has behind it.
        weights: whether the policy was sampled with its quarantined weights ("training") or without ("deployed").
    """
    rollouts = [rollout for rollout in rollouts if rollout.labelled]
    settings: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        settings.setdefault(setting_of(rollout), []).append(rollout)
    # The order of the rows of a report: all, the modes by name, no hint.
    hinted = {name: settings[name] for name in sorted(settings.keys() - {NO_HINT})}
    unhinted = {NO_HINT: settings[NO_HINT]} if NO_HINT in settings else {}
    groups = {ALL: list(rollouts), **hinted, **unhinted}
    return Evaluation(step=step, weights=weights, rates={name: rates(group) for name, group in groups.items()})


def rates(rollouts: Sequence[Rollout]) -> Rates:
    """Hack, exploit and solve rates of one setting."""
    return Rates(
        num_rollouts=len(rollouts),
        num_problems=len({rollout.problem_id for rollout in rollouts}),
        **{name: _rate([flag(rollout) for rollout in rollouts]) for name, flag in RATES.items()},
    )


def best_checkpoint(evaluations: Sequence[Evaluation], metric: Metric, *, highest: bool = True) -> BestCheckpoint:
    """The evaluation with the highest (or lowest) rate over all settings; the earliest one of ties.

    Raises:
        InputError: evaluations without rollouts, or of both kinds of weights, which are not comparable.
    """
    scored = [(evaluation, getattr(evaluation.rates[ALL], metric)) for evaluation in evaluations]
    kinds = {evaluation.weights for evaluation in evaluations}
    if not scored or any(rate.rate is None for _, rate in scored) or len(kinds) > 1:
        raise InputError("evaluations", expected="rollouts in each, all of the same kind of weights", found="otherwise")
    best, rate = min(scored, key=lambda item: ((-1 if highest else 1) * item[1].rate, item[0].step))
    return BestCheckpoint(step=best.step, metric=metric, rate=rate, num_checkpoints=len(scored))


def _rate(flags: Sequence[bool]) -> Rate:
    count, n = sum(flags), len(flags)
    return Rate(count=count, rate=count / n if n else None, interval=wilson_interval(count, n))
