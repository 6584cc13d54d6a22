"""The tables `model`, `intervention`, `optimizer`, `control`, `checkpoints` and `evaluation` of a run. No torch."""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from extraction.words import ExtractionSettings
from probe.settings.arms import ARMS
from probe.settings.words import Dtype, Gate, Target
from replay_pools.base.errors import FieldError
from replay_pools.base.tables import STRICT, Maybe, setting, word_of
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.rollout import Template

ArmName = Annotated[str, word_of(ARMS)]
Mode = Annotated[str, word_of(LOOPHOLES)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ModelConfig:
    """Which policy, in which precision, where."""

    name: Maybe[str] = setting(
        None, "`organism`, a directory, a .gguf file or a hub id; none: a replay takes the one that its pools name"
    )
    adapter: Maybe[str] = setting(
        None, "merges this into the weights: `teacher` (of the organism) or a PEFT directory; with `:0.5` half of it"
    )
    template: Template = setting("chat", "of prompts: the tokenizer's, or `plain` text for a model without one")
    dtype: Dtype = setting("float32", "of the weights")
    device: str = setting("auto", "`auto` (CUDA when present), `cpu`, `cuda`, `cuda:1`, ...")
    targets: tuple[str, ...] = setting(
        ("all",), "Linears of the language model: `all`, `attention`, `mlp`, or ends of their paths", min_length=1
    )
    lora_rank: int = setting(32, "of the arms in the LoRA basis", ge=1)
    svd_rank: Maybe[int] = setting(None, "singular triplets kept of each matrix, the largest; none: all", ge=1)
    shard_base: bool = setting(False, "spread the frozen weights over the processes of `torchrun`")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class GateConfig:
    """The gate of the arms that project (`probe.step.projection`)."""

    gate: Maybe[Gate] = setting(None, "law of the gate; none: each arm's own, `one_sided`")
    overshoot: float = setting(1.0, "factor on what is removed", ge=0)
    target: Target = setting("gradient", "where weights move: gates the gradient, or the optimizer's update")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class InterventionConfig:
    """Arms, gate and directions."""

    arms: tuple[ArmName, ...] = setting(
        ("projected",), f"what is done to the gradient, each in turn: {', '.join(ARMS)}; one arm where weights move"
    )
    gate: GateConfig = field(default_factory=GateConfig)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    v_hack: Maybe[str] = setting(
        None, "file of `probe extract`, or its name in OUT/directions; none: extract from the pairs"
    )
    refresh_every: Maybe[int] = setting(
        None, "steps between extractions from the policy as it is; none: only at the start", ge=1
    )

    def __post_init__(self) -> None:
        """Refuse no arm and repeated ones, and what does not change with directions that are extracted again."""
        if not self.arms or len(set(self.arms)) != len(self.arms):
            raise FieldError("arms", "different arms, at least one", ", ".join(self.arms) or "none")
        fixed = ["v_hack, which is a file"] if self.v_hack is not None else []
        fixed += [f"{name}, whose dose is of the start" for name in self.arms if ARMS[name].dosed]
        if fixed and self.refresh_every is not None:
            raise FieldError("refresh_every", f"none with {fixed[0]}", self.refresh_every)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class OptimizerConfig:
    """AdamW on the coordinates of a basis (`probe.step.update`)."""

    lr: float = setting(0.0, "learning rate at the end of the warm-up; 0: frozen weights", ge=0)
    schedule: Literal["cosine", "constant"] = setting("cosine", "after the warm-up; `cosine` decays to 0")
    warmup_steps: int = setting(0, "steps of the linear warm-up of `cosine`, the first at the rate 0", ge=0)
    max_grad_norm: Maybe[float] = setting(1.0, "cap on the norm of the gradient, after the gate; none: no cap", gt=0)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class LookaheadConfig:
    """Steps that every arm of a replay takes on the stored rollouts, from the same start (`probe.runs.lookahead`).

    At the rate of a training so many steps on the same rollouts destroy the policy: see spec/studies/foretell-2.
    """

    steps: int = setting(..., "steps of every arm on the stored rollouts; there are none unless it is set", ge=1)
    lr: float = setting(5e-3, "learning rate, constant", gt=0)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Limits:
    """What stops a run that trains, once `patience` steps in a row are beyond it."""

    kl_mean_max: Maybe[float] = setting(10.0, "stops the run: `kl/mean`, in nats per token; none: not watched", gt=0)
    entropy_min_frac: Maybe[float] = setting(0.1, "stops the run: entropy below this share of the first step's", gt=0)
    patience: int = setting(3, "consecutive steps beyond a limit that stop the run", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ControlConfig:
    """What is adapted from step to step while a policy trains, and what stops the run."""

    beta_warmup_steps: int = setting(0, "steps in which beta rises from 0", ge=0)
    target_kl: Maybe[float] = setting(None, "nats per token that beta is adapted to; none: it is not adapted", gt=0)
    kl_horizon: int = setting(10, "steps over which the KL is averaged for that", ge=1)
    beta_min: float = setting(1e-4, "lowest beta of the adaptation", ge=0)
    beta_max: float = setting(1.0, "highest beta of the adaptation", ge=0)
    ema_decay: float = setting(0.99, "of the EMA reference; 0: the reference is the policy", ge=0, le=1)
    ema_every: int = setting(1, "steps between updates of the EMA reference", ge=1)
    sepa_ramp_steps: int = setting(0, "steps in which SEPA's lambda rises", ge=0)
    sepa_delay_steps: int = setting(0, "steps before it begins to", ge=0)
    sepa_gate: float = setting(0.0, "solve rate that starts the ramp", ge=0, le=1)
    limits: Limits = field(default_factory=Limits)

    def faults(self, beta: float) -> Iterator[FieldError]:
        """A controller of beta that would never move it."""
        if self.target_kl is not None and not 0 < self.beta_min <= beta <= self.beta_max:
            actual = f"beta_min {self.beta_min}, beta {beta}, beta_max {self.beta_max}"
            yield FieldError("target_kl", "0 < beta_min <= objective.beta <= beta_max", actual)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class CheckpointConfig:
    """Of runs that train."""

    every: int = setting(1, "steps between checkpoints; the last step has one as well", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EvaluationConfig:
    """Held-out problems, the same for every arm and seed."""

    every: int = setting(20, "steps between evaluations; also before the first and after the last", ge=1)
    num_problems: int = setting(64, "held-out problems", ge=1)
    modes: tuple[Mode, ...] = setting((), "loophole modes; an empty list: the mode of the rollouts")
    without_hint: bool = setting(False, "also ask in the mode of the rollouts without the hint")
    rollouts_per_problem: int = setting(
        1, "rollouts of each problem and setting; with more than 1 the unit of the intervals is not the rollout", ge=1
    )
