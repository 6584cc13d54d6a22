"""The table `objective`: the settings of the loss. `probe.objective` computes it. No torch.

LossSettings(reference="base", beta=1e-3)                              GRPO with a KL penalty
LossCondition(name="capped", changes={"advantage_clip": 2.0})          a loss variant: the run's objective, changed
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields, replace
from typing import Any

from pydantic.dataclasses import dataclass

from extraction.settings import LossType
from probe.settings.words import ADVANTAGE_EPS, Estimator, Old, Reference, Reward, Scale, Strata
from replay_pools.base.errors import InputError
from replay_pools.base.files import plain_name
from replay_pools.base.tables import STRICT, Maybe, decode, setting
from replay_pools.pool import PLAIN_LAW, law_of


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class LossSettings:
    """The loss, with TRL's names and the formulas of METHOD, section 2. `--condition` takes the same keys."""

    loss_type: LossType = setting("grpo", "normaliser of the loss")
    max_completion_length: Maybe[int] = setting(
        None, "tokens that `dr_grpo` divides by; none: the generation limit", gt=0
    )
    reward: Reward = setting(
        "paid", "training only: `surprise` subtracts the problem's expected reward (needs `scale_rewards=batch`)"
    )
    advantage_estimator: Estimator = setting(
        "grpo", "`grpo`: reward minus the group mean; `maxrl`: that, divided by the mean; `reinforce`: the reward"
    )
    scale_rewards: Scale = setting("none", "divide advantages by the standard deviation of the group or the batch")
    advantage_eps: float = setting(ADVANTAGE_EPS, "added to that standard deviation", ge=0)
    min_group_std: float = setting(0.0, "groups with a smaller standard deviation get advantages of 0", ge=0)
    strata: Maybe[Strata] = setting(
        None, "split each group and give each part its own baseline: by pool, by prompt, or at the median length"
    )
    advantage_clip: Maybe[float] = setting(None, "cap on |advantage|, applied last", gt=0)
    gtpo_beta: float = setting(0.0, "token credit: weight tokens by surprisal (GTPO); 0: off", ge=0)
    sepa_lambda: float = setting(
        0.0,
        "token credit: pull surprisals of execution tokens to their mean (SEPA); needs `gtpo_beta`",
        ge=0,
        le=1,
    )
    hicra_alpha: float = setting(0.0, "token credit: give planning tokens more weight (HICRA); 0: off", ge=0)
    old_logprobs: Old = setting(
        "current", "denominator of the policy ratio; `current`: the ratio is 1 and nothing is clipped"
    )
    epsilon: Maybe[float] = setting(0.2, "clip the ratio at 1 - epsilon; none: no clipping", gt=0, lt=1)
    epsilon_high: Maybe[float] = setting(None, "clip the ratio at 1 + epsilon_high; none: same as `epsilon`", gt=0)
    reference: Maybe[Reference] = setting(None, "reference policy of the KL; none: no KL is measured")
    beta: float = setting(0.0, "weight of the KL penalty; 0 with a reference: measure the KL only", ge=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")

    @property
    def lacks_divisor(self) -> bool:
        """True if the loss divides by a token limit that is not set; the run then takes its samplers' limit."""
        return self.loss_type == "dr_grpo" and self.max_completion_length is None

    @property
    def has_credit(self) -> bool:
        """True if tokens of one sample can get different weights."""
        return bool(self.gtpo_beta or self.hicra_alpha)

    @property
    def has_token_terms(self) -> bool:
        """True if the loss has a ratio, KL or entropy term."""
        return bool(self.old_logprobs == "recorded" or self.beta or self.entropy_coef)

    @property
    def reads_logprobs(self) -> bool:
        """True if a weight depends on log-probabilities, or a KL is measured."""
        return self.has_credit or self.has_token_terms or self.reference is not None


LOSS_KEYS = tuple(entry.name for entry in fields(LossSettings))


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class LossCondition:
    """A loss variant: a named change of the objective. A replay measures its variants on one forward and backward.

    >>> LossCondition.parse("capped:advantage_clip=2").changes
    {'advantage_clip': 2.0}
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)  # {key of LossSettings: value}; none = the objective itself

    def __post_init__(self) -> None:
        """Check the name and the keys, and convert each value to the type of its field."""
        plain_name(self.name, "name")
        typed = decode(LossSettings, self.changes, f"condition {self.name}")
        # The dataclass is frozen, so only object.__setattr__ can set a field.
        object.__setattr__(self, "changes", {key: getattr(typed, key) for key in self.changes})

    @classmethod
    def parse(cls, text: str) -> "LossCondition":
        """Parse `NAME` or `NAME:key=value,key=value`.

        Raises:
            InputError: a malformed name, an unknown key, a value of the wrong type.
        """
        name, _, settings = text.partition(":")
        changes = {}
        for part in filter(None, settings.split(",")):
            key, _, value = (word.strip() for word in part.partition("="))
            changes[key] = _plain_value(value)
        return decode(cls, {"name": name, "changes": changes}, "--condition")

    def objective(self, base: LossSettings) -> LossSettings:
        """Return `base` with the changes of this variant."""
        return replace(base, **self.changes)


def check_recorded(objectives: Iterable[LossSettings], samplers: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Refuse recorded log-probabilities if their sampler changed the policy's distribution.

    Args:
        objectives: the losses of a run.
        samplers: {place of the record: {"temperature", "top_p", "top_k"}}; None = not recorded.

    Raises:
        InputError: an objective reads recorded log-probabilities from such a sampler.
    """
    if not any("recorded" in (objective.old_logprobs, objective.reference) for objective in objectives):
        return
    for where, sampler in samplers.items():
        law = None if sampler is None else law_of(sampler)
        if law != PLAIN_LAW:
            raise InputError(
                f"{where} sampler",
                expected=f"{PLAIN_LAW}, as recorded log-probabilities must come from the policy's own distribution",
                found="not recorded" if law is None else str(law),
                fix="set old_logprobs=current and a reference other than recorded",
            )


def _plain_value(text: str) -> Any:
    """Convert the text to int or float if possible; `decode` then checks the type."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
