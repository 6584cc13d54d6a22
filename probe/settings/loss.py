"""The settings of a loss: names, types and defaults, without torch; `probe.objective.objective` is what they mean."""

from dataclasses import dataclass

from extraction.vocabulary import LossType
from probe.settings.words import Estimator, KlEstimator, Level, Old, Reference, Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The names are TRL's (METHOD section 2)."""

    loss_type: LossType = "grpo"
    max_completion_length: int | None = None  # for dr_grpo
    advantage_estimator: Estimator = "grpo"
    scale_rewards: Scale = "none"
    advantage_eps: float = 1e-4
    min_group_std: float = 0.0
    advantage_clip: float | None = None  # last: on A_it where there is token credit, on A_i otherwise
    gtpo_beta: float = 0.0
    sepa_lambda: float = 0.0
    hicra_alpha: float = 0.0
    top_entropy_quantile: float = 1.0
    old_logprobs: Old = "current"  # what the ratio is against; current: it is 1 and nothing is clipped
    importance_sampling_level: Level = "token"
    epsilon: float | None = 0.2  # None = not clipped
    epsilon_high: float | None = None  # None = epsilon
    delta: float | None = None
    reference: Reference | None = None  # of the KL; None = no KL is measured
    kl_estimator: KlEstimator = "k3"
    beta: float = 0.0  # with a reference and beta 0 the KL is measured and does not act
    entropy_coef: float = 0.0

    @property
    def has_credit(self) -> bool:
        """Whether the tokens of a sample are weighted unequally."""
        return bool(self.gtpo_beta or self.hicra_alpha or self.top_entropy_quantile < 1)

    @property
    def has_token_terms(self) -> bool:
        """Whether the loss has terms that are not advantage times log-probability: ratio, KL, entropy."""
        return bool(self.old_logprobs == "recorded" or self.beta or self.entropy_coef)
