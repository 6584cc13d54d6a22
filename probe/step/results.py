"""What a step returns: `StepResult`, with one `ArmResult` for every arm under every condition.

G samples of all groups together, g of them this rank's, T tokens, r coordinates of a module. Measures that are vectors
are float64 on the CPU. `probe.runs.join` makes records of them: to record a new measure, add its field here, fill it in
`probe.step.step._arm_result`, and give it a wire name in `probe.runs.join`.
"""

from dataclasses import dataclass

from torch import Tensor

from extraction.words import Basis
from probe.objective.weigh import Weighting
from probe.step.bases import Gradients
from probe.step.projection import Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What one arm measured under one condition; scalars are of the whole gradient, vectors are (G,)."""

    condition: str
    arm: str
    basis: Basis
    projection: Projection  # without its gradients: memory would grow with arms times conditions
    contribution_norms: Tensor  # (G,) norm of each sample's contribution
    haar_sd: float
    sample_haar_sd: Tensor  # (G,) of cos_contrib; of cos_nll too unless tokens are weighted
    cos_nll: Tensor  # (G,) signed cosine of each sample's NLL gradient; NaN where it is zero
    cos_contrib: Tensor  # (G,) of the sample's contribution; NaN where that is zero
    cos_update: float  # of the realised update; NaN when nothing was stepped
    hackward_frac_update: float
    direction_age: int
    direction_overlap: float | None
    token_shares: Tensor | None  # (G, T), a row adds up to the cosine behind cos_contrib; None: not asked for
    broken: str | None  # the first number that is not finite: with it, no step was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step: what is shared, and the measures in the order in which they were asked for."""

    nll: Tensor  # (G,) nats per completion token
    unit: Gradients  # (g, r) g_i without token credit, of this rank's samples
    additivity_errors: dict[Basis, float]
    frac_planning: float
    exec_surprisal_var: float | None
    weightings: dict[str, Weighting]  # by condition
    arms: list[ArmResult]
