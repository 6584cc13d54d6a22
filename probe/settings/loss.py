"""The table `objective`: the settings of the loss, without torch. Their mathematics is in `probe.objective`.

LossSettings(reference="base", beta=1e-3)                              GRPO with a KL penalty
LossCondition(name="capped", changes={"advantage_clip": 2.0})          the objective of a run, with these changes
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from typing import Any

from pydantic.dataclasses import dataclass

from extraction.words import LossType
from probe.settings.words import ADVANTAGE_EPS, Estimator, Old, Reference, Reward, Scale, Strata
from replay_pools.base.errors import FieldError, InputError
from replay_pools.base.files import PLAIN_NAME
from replay_pools.base.tables import STRICT, Maybe, decode, setting

# The sampler that draws from the policy's own distribution: only then do the recorded log-probabilities compare with
# those that a step computes.
PLAIN_LAW = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class LossSettings:
    """The loss. Names are TRL's; the formulas are those of METHOD, section 2. The keys are those of `--condition`, too.

    What does not fit together is refused by the run that it belongs to (`faults`).
    """

    loss_type: LossType = setting("grpo", "normaliser of the loss")
    max_completion_length: Maybe[int] = setting(
        None, "in tokens: what `dr_grpo` divides by; none: the generation limit", gt=0
    )
    reward: Reward = setting(
        "paid", "of a training: as paid, or minus what its problem lets one expect (needs `scale_rewards=batch`)"
    )
    advantage_estimator: Estimator = setting(
        "grpo", "reward minus the mean (`grpo`), or divided by the mean as well (`maxrl`)"
    )
    scale_rewards: Scale = setting("none", "divide by the standard deviation of the group or of the batch")
    advantage_eps: float = setting(ADVANTAGE_EPS, "added to that standard deviation", ge=0)
    min_group_std: float = setting(0.0, "groups with a smaller standard deviation get advantages of 0", ge=0)
    strata: Maybe[Strata] = setting(
        None, "baselines within parts of a group: rollouts of one pool, of one prompt, or longer than the median"
    )
    advantage_clip: Maybe[float] = setting(None, "cap on the size of an advantage, applied last", gt=0)
    gtpo_beta: float = setting(0.0, "token credit: weight by the token's surprisal (GTPO); 0 is off", ge=0)
    sepa_lambda: float = setting(
        0.0,
        "token credit: draw the surprisals of execution tokens to their mean (SEPA); acts through `gtpo_beta`",
        ge=0,
        le=1,
    )
    hicra_alpha: float = setting(0.0, "token credit: more weight for planning tokens (HICRA); 0 is off", ge=0)
    old_logprobs: Old = setting(
        "current", "what the ratio is against; `current`: the ratio is 1 and nothing is clipped"
    )
    epsilon: Maybe[float] = setting(0.2, "the ratio is clipped at 1 - epsilon; none: not clipped", gt=0, lt=1)
    epsilon_high: Maybe[float] = setting(None, "and at 1 + epsilon_high; none: as `epsilon`", gt=0)
    reference: Maybe[Reference] = setting(None, "of the KL; none: no KL is measured")
    beta: float = setting(0.0, "weight of the KL penalty; 0 with a reference: measured without acting", ge=0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus")

    def faults(self) -> Iterator[FieldError]:
        """Settings that would give another loss than the one that they name."""
        if self.advantage_estimator == "maxrl" and self.scale_rewards != "none":
            yield FieldError("scale_rewards", "none with maxrl, which divides by the mean already", self.scale_rewards)
        if self.reward == "surprise" and self.scale_rewards != "batch":
            expected = "batch with reward surprise: in a group the expectation cancels"
            yield FieldError("scale_rewards", expected, self.scale_rewards)
        if self.beta and self.reference is None:
            yield FieldError("beta", "a reference beside it: base, ema or recorded", "none")

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

    @property
    def reads_logprobs(self) -> bool:
        """Whether what a sample or token weighs depends on log-probabilities, or a KL is measured."""
        return self.has_credit or self.has_token_terms or self.reference is not None


LOSS_KEYS = tuple(entry.name for entry in fields(LossSettings))


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
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
            raise FieldError("name", "letters, digits and . _ -", repr(self.name))
        typed = decode(LossSettings, self.changes, f"condition {self.name}")
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
        for part in filter(None, settings.split(",")):
            key, _, value = (word.strip() for word in part.partition("="))
            changes[key] = _plain_value(value)
        return decode(cls, {"name": name, "changes": changes}, "--condition")

    def objective(self, base: LossSettings) -> LossSettings:
        """`base` with the changes of this condition."""
        return replace(base, **self.changes)


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
    if not any("recorded" in (objective.old_logprobs, objective.reference) for objective in objectives):
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
