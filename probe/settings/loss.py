"""The settings of the loss: names, defaults and checks, without torch. Their mathematics is in `probe.objective`.

    LossSettings(reference="base", beta=1e-3)                              GRPO with a KL penalty
    LossCondition(name="capped", changes={"advantage_clip": 2.0})          the objective of a run, with these changes

To add a setting: a field of `LossSettings` with its default, its check in `_check_ranges` or `_check_fit`, and its use
in `probe.objective.weigh`. A new estimator is a word in `probe.settings.words` and a row in the
table named there; a new loss type is described in `extraction.loss`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from extraction.words import LossType
from probe.settings.words import ADVANTAGE_EPS, Estimator, Old, Reference, Reward, Scale, Strata
from replay_pools.errors import FieldError, InputError
from replay_pools.storage.files import PLAIN_NAME
from replay_pools.storage.tables import decode, nearest

# The sampler that draws from the policy's own distribution: only then do the recorded log-probabilities compare with
# those that a step computes.
PLAIN_LAW = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The loss of a run. Names are TRL's; the formulas are those of METHOD section 2.

    Raises:
        FieldError: a number out of its range, or settings that do not fit together.
    """

    loss_type: LossType = "grpo"
    max_completion_length: int | None = None  # what dr_grpo divides by; None: the generation limit
    reward: Reward = "paid"  # surprise: minus the reward that the record of its problem lets one expect
    advantage_estimator: Estimator = "grpo"
    scale_rewards: Scale = "none"
    advantage_eps: float = ADVANTAGE_EPS  # added to the standard deviation that scale_rewards divides by
    min_group_std: float = 0.0  # groups whose rewards have a smaller standard deviation get advantages of 0
    strata: Strata | None = None  # baselines within these parts of a group; None: one for the group
    advantage_clip: float | None = None  # applied last: to A_it where there is token credit, to A_i otherwise
    # Token credit (`probe.objective.credit`): each number is neutral by default.
    gtpo_beta: float = 0.0
    sepa_lambda: float = 0.0
    hicra_alpha: float = 0.0
    old_logprobs: Old = "current"  # denominator of the ratio; current: the ratio is 1 and nothing is clipped
    epsilon: float | None = 0.2  # clip range of the ratio below 1; None = not clipped
    epsilon_high: float | None = None  # clip range above 1; None = epsilon
    reference: Reference | None = None  # of the KL; None = no KL is measured
    beta: float = 0.0  # with a reference and beta 0 the KL is measured and does not act
    entropy_coef: float = 0.0

    def __post_init__(self) -> None:
        """Check every number by itself, then the settings together."""
        self._check_ranges()
        self._check_clipping()
        self._check_fit()

    def _check_ranges(self) -> None:
        ranges = {
            "advantage_eps": (0, math.inf),
            "min_group_std": (0, math.inf),
            "gtpo_beta": (0, math.inf),
            "sepa_lambda": (0, 1),
            "hicra_alpha": (0, math.inf),
            "beta": (0, math.inf),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                interval = f"[{low}, {high}]" if high < math.inf else f"at least {low}"
                raise FieldError(name, f"a number {interval}", value)
        for name in ("max_completion_length", "advantage_clip", "epsilon_high"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise FieldError(name, "a number above 0, or none", value)

    def _check_clipping(self) -> None:
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.epsilon is None and high is not None:
            raise FieldError("epsilon_high", "none beside epsilon none, which clips nothing", high)
        if self.epsilon is not None and not 0 < self.epsilon < 1:
            raise FieldError("epsilon", "a number in (0, 1), or none", self.epsilon)

    def _check_fit(self) -> None:
        if self.advantage_estimator == "maxrl" and self.scale_rewards != "none":
            raise FieldError("scale_rewards", "none with maxrl, which divides by the mean already", self.scale_rewards)
        if self.reward == "surprise" and self.scale_rewards != "batch":
            expected = (
                "batch with reward surprise, which takes the same from all rewards of a group: there it cancels in "
                "every advantage, and in a group's standard deviation"
            )
            raise FieldError("scale_rewards", expected, self.scale_rewards)
        if self.strata is not None and self.loss_type == "nll":
            raise FieldError("strata", "none with nll, which has no advantages", self.strata)
        if self.sepa_lambda and not self.gtpo_beta:
            raise FieldError("sepa_lambda", "gtpo_beta above 0: SEPA pools what GTPO weighs", "gtpo_beta 0")
        if self.beta and self.reference is None:
            raise FieldError("beta", "a reference beside it: base, ema or recorded", "none")
        if self.loss_type == "nll" and self.has_token_terms:
            raise FieldError("loss_type", "neither ratio, KL penalty nor entropy bonus with nll", "nll beside one")

    @property
    def lacks_divisor(self) -> bool:
        """Whether the loss divides by a token limit that is not given; the run fills in what its samplers record."""
        return self.loss_type == "dr_grpo" and self.max_completion_length is None

    @property
    def has_credit(self) -> bool:
        """Whether the tokens of a sample are weighted unequally."""
        return bool(self.gtpo_beta or self.hicra_alpha)

    @property
    def has_token_terms(self) -> bool:
        """Whether the loss has terms that are not advantage times log-probability: ratio, KL, entropy."""
        return bool(self.old_logprobs == "recorded" or self.beta or self.entropy_coef)


LOSS_KEYS = tuple(entry.name for entry in fields(LossSettings))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCondition:
    """A named change of the objective. All conditions of a replay are measured on the same forward and backward.

    >>> LossCondition.parse("capped:advantage_clip=2").changes
    {'advantage_clip': 2.0}
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)  # {key of LossSettings: value}; none = the objective itself

    def __post_init__(self) -> None:
        """Refuse a name that is no file name and keys that the loss lacks; give each value the type of its field."""
        if not PLAIN_NAME.fullmatch(self.name):
            raise InputError("condition name", expected="letters, digits and . _ -", found=repr(self.name))
        where = f"condition {self.name}"
        for key in self.changes:
            if key not in LOSS_KEYS:
                near = nearest(key, LOSS_KEYS)
                raise InputError(
                    f"{where} {key}",
                    expected=f"a setting of the objective, out of {', '.join(LOSS_KEYS)}",
                    found="an unknown key",
                    fix=f"did you mean {near}?" if near else "",
                )
        typed = decode(_UncheckedLoss, self.changes, where)
        # The dataclass is frozen: its own initialisation is the one place that may still set a field.
        object.__setattr__(self, "changes", {key: getattr(typed, key) for key in self.changes})

    @classmethod
    def parse(cls, text: str) -> "LossCondition":
        """A condition from `NAME` or `NAME:key=value,key=value`.

        Raises:
            InputError: a malformed name, an unknown key, a value of another type.
        """
        name, _, settings = text.partition(":")
        changes = {}
        for setting in filter(None, settings.split(",")):
            key, _, value = (part.strip() for part in setting.partition("="))
            changes[key] = _plain_value(value)
        return cls(name=name, changes=changes)

    def objective(self, base: LossSettings) -> LossSettings:
        """`base` with the changes of this condition.

        Raises:
            InputError: together they are not a valid loss; the error names the condition.
        """
        try:
            return replace(base, **self.changes)
        except InputError as error:
            where = f"condition {self.name}: {error.where}"
            raise InputError(where, expected=error.expected, found=error.found) from error


class _UncheckedLoss(LossSettings):
    """The fields and types of the loss without its checks, which apply to changes only together with their base."""

    def __post_init__(self) -> None:
        pass


def law_of(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """What of a sampler's record changes the policy's distribution; PLAIN_LAW where nothing does."""
    return {name: sampler.get(name) for name in PLAIN_LAW}


def check_recorded(objectives: Iterable[LossSettings], samplers: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Refuse to compare with recorded log-probabilities that are not those of the policy's own distribution.

    Args:
        objectives: the losses of a run.
        samplers: {place of the record: {"temperature", "top_p", "top_k"}}; None = not recorded.

    Raises:
        InputError: an objective reads recorded log-probabilities, and a sampler changed the policy's distribution.
    """
    uses_recorded = False
    for objective in objectives:
        uses_recorded |= "recorded" in (objective.old_logprobs, objective.reference)
    if not uses_recorded:
        return
    for where, sampler in samplers.items():
        law = None if sampler is None else law_of(sampler)
        if law != PLAIN_LAW:
            raise InputError(
                f"{where} sampler",
                expected=f"{PLAIN_LAW}: recorded log-probabilities of the policy's own law",
                found="not recorded" if law is None else str(law),
                fix="use old_logprobs=current, and another reference than recorded",
            )


def _plain_value(text: str) -> Any:
    """The text as int or float where it is one, else as it is: `decode` checks it against the type of its field."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
