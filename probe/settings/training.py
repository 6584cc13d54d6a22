"""The tables `model`, `intervention`, `optimizer`, `control`, `checkpoints` and `evaluation` of a run. No torch."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from extraction.settings import ExtractionSettings
from probe.settings.arms import ARMS
from probe.settings.words import Dtype, Side, Target, word_of
from replay_pools.base.errors import InputError
from replay_pools.base.tables import STRICT, Maybe, setting
from replay_pools.environments.loopholes import LOOPHOLES
from replay_pools.rollout import Template

ArmName = Annotated[str, word_of(ARMS)]
Mode = Annotated[str, word_of(LOOPHOLES)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ModelConfig:
    """The policy, its precision and its device."""

    name: Maybe[str] = setting(
        None, "`organism`, a directory or a hub id; none: the model named by the pools (replays only)"
    )
    adapter: Maybe[str] = setting(
        None,
        "adapter to merge into the weights: `teacher` (the organism's) or a PEFT directory; `:0.5` merges half",
    )
    template: Template = setting("chat", "prompt format: the tokenizer's chat template, or `plain` text")
    dtype: Dtype = setting("float32", "precision of the weights")
    device: str = setting("auto", "`auto` (CUDA if present), `cpu`, `cuda`, `cuda:1`, ...")
    targets: tuple[str, ...] = setting(
        ("all",), "Linears of the language model: `all`, `attention`, `mlp`, or suffixes of their paths", min_length=1
    )
    lora_rank: int = setting(32, "rank of arms in the LoRA basis", ge=1)
    svd_rank: Maybe[int] = setting(None, "largest singular triplets kept of each matrix; none: all", ge=1)
    shard_base: bool = setting(False, "shard the frozen weights over the processes of `torchrun`")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ProjectionConfig:
    """The projection of the arms that project (`probe.step.projection`)."""

    side: Maybe[Side] = setting(
        None, "`one_sided` removes the component toward the hack, `two_sided` both signs; none: the arm's"
    )
    overshoot: float = setting(1.0, "factor on the removed component", ge=0)
    target: Target = setting("gradient", "project the gradient or the optimizer's update, if weights move")


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class InterventionConfig:
    """Arms, projection and directions."""

    arms: tuple[ArmName, ...] = setting(
        ("projected",), f"changes to the gradient, measured in turn: {', '.join(ARMS)}; one arm if weights move"
    )
    projection: ProjectionConfig = field(default_factory=ProjectionConfig)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    trusted_rank: int = setting(5, "arms `trusted`: leading output directions kept of each module", ge=1)
    v_hack: Maybe[str] = setting(
        None, "direction file of `probe extract`, or its name in OUT/directions; none: extract from the pairs"
    )
    refresh_every: Maybe[int] = setting(
        None, "steps between extractions from the current policy; none: extract at the start only", ge=1
    )

    def __post_init__(self) -> None:
        """Refuse missing or repeated arms, and refreshed directions with arms or files that stay fixed."""
        if not self.arms or len(set(self.arms)) != len(self.arms):
            raise InputError("arms", expected="distinct arms, at least one", found=", ".join(self.arms) or "none")
        fixed = ["v_hack, which is a file"] if self.v_hack is not None else []
        fixed += [f"{name}, which matches the norm at the start" for name in self.arms if ARMS[name].dosed]
        if fixed and self.refresh_every is not None:
            raise InputError("refresh_every", expected=f"none with {fixed[0]}", found=str(self.refresh_every))


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class OptimizerConfig:
    """AdamW on the coordinates of a basis (`probe.step.update`)."""

    lr: float = setting(0.0, "learning rate after the warm-up; 0: frozen weights", ge=0)
    schedule: Literal["cosine", "constant"] = setting("cosine", "schedule after the warm-up; `cosine` decays to 0")
    warmup_steps: int = setting(0, "steps of the linear warm-up of `cosine`, which starts at 0", ge=0)
    max_grad_norm: Maybe[float] = setting(1.0, "cap on the gradient norm, after the projection; none: no cap", gt=0)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class LookaheadConfig:
    """Steps that every arm of a replay takes on the stored rollouts, each from the same start (`probe.runs.lookahead`).

    At the rate of a training so many steps on the same rollouts destroy the policy: see spec/studies/foretell-2.
    """

    steps: int = setting(..., "steps of each arm on the stored rollouts; unset: none", ge=1)
    lr: float = setting(5e-3, "constant learning rate", gt=0)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ControlConfig:
    """Controllers that adapt a training from step to step, and limits that stop it (`probe.runs.control`)."""

    beta_warmup_steps: int = setting(0, "steps of the warm-up of beta from 0", ge=0)
    target_kl: Maybe[float] = setting(None, "KL, in nats per token, that beta is adapted to; none: fixed beta", gt=0)
    kl_horizon: int = setting(10, "steps that the KL is averaged over for `target_kl`", ge=1)
    beta_min: float = setting(1e-4, "lowest adapted beta", ge=0)
    beta_max: float = setting(1.0, "highest adapted beta", ge=0)
    ema_decay: float = setting(0.99, "decay of the EMA reference; 0: the reference is the policy", ge=0, le=1)
    sepa_ramp_steps: int = setting(0, "steps of the ramp of SEPA's lambda", ge=0)
    kl_mean_max: Maybe[float] = setting(10.0, "stop above this `kl/mean`, in nats per token; none: no limit", gt=0)
    entropy_min_frac: Maybe[float] = setting(
        0.1, "stop below this share of the first step's entropy; none: no limit", gt=0
    )


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class CheckpointConfig:
    """Checkpoints of a training."""

    every: int = setting(1, "steps between checkpoints; the last step always has one", ge=1)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EvaluationConfig:
    """Evaluation on held-out problems, the same for every arm and seed."""

    every: int = setting(20, "steps between evaluations; also before the first and after the last step", ge=1)
    num_problems: int = setting(64, "held-out problems", ge=1)
    modes: tuple[Mode, ...] = setting((), "loophole modes to evaluate; empty: the mode of the rollouts")
    without_hint: bool = setting(False, "also evaluate without the hint")
    rollouts_per_problem: int = setting(1, "rollouts of each problem and setting; the Wilson intervals assume 1", ge=1)
