"""What one run is told. Replay, training and evaluation are one frozen `RunConfig`; `config.json` holds it whole.

    model ......... which policy, in which precision and basis
    source ........ stored rollouts (a replay)        rollouts ...... what is sampled (a training, an evaluation)
    objective ..... the loss; `conditions` are changes of it that one pass measures side by side
    intervention .. arms, gate, directions
    optimizer ..... lr 0 leaves the weights frozen    control ....... what is adapted from step to step
    checkpoints ... when state is written             evaluation .... held-out problems

Every setting acts; a table that the verb does not take is refused. `probe.settings.presets` makes one from a preset and
`--set`. To add a setting: add the field here with its default and check, and read it where the run is assembled.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from extraction.words import ExtractionSettings, Normaliser, Storage
from probe.settings.arms import get_arm, measured_arm
from probe.settings.loss import LossCondition, LossSettings, check_recorded
from probe.settings.words import DEFAULT_CONDITION, PLANNING_PHRASES, Dtype, Gate, Match, Target, Verb
from replay_pools.environments.base import Split
from replay_pools.environments.loopholes import get_loophole
from replay_pools.errors import FieldError
from replay_pools.rollout import Sampler
from replay_pools.tables import decode, keys_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which policy, and where it runs."""

    name: str | None = None  # organism, a directory, a .gguf file or a hub id; None: the one that the pools name
    adapter: str | None = None  # of an evaluation or a pool: `teacher` (of the organism) or a PEFT directory
    dtype: Dtype = "float32"
    device: str = "auto"  # auto (CUDA when present), cpu, cuda, cuda:1, ...
    lora_rank: int = 32  # of the arms in the LoRA basis
    svd_rank: int | None = None  # of the arms in the SVD basis: the largest singular triplets; None is all
    svd_storage: Storage = "float32"  # of U and Vh
    dtype_noise: int = 0  # of a replay: rollouts to score again in a higher precision; shapes no record
    shard_base: bool = False  # spread the frozen weights over the processes of torchrun (FSDP2)

    def __post_init__(self) -> None:
        """Refuse a rank below 1, and noise that cannot be measured."""
        _at_least(1, lora_rank=self.lora_rank, svd_rank=self.svd_rank)
        _at_least(0, dtype_noise=self.dtype_noise)
        if self.dtype_noise and self.shard_base:
            raise FieldError("dtype_noise", "0 with shard_base", self.dtype_noise)
        if self.dtype_noise and self.dtype == "float64":
            raise FieldError("dtype_noise", "a dtype below float64, the highest", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Stored rollouts: which pools, and how they are mixed into groups, one group a step."""

    replay_dirs: tuple[str, ...] = ("teacher", "base")  # names in OUT/pools, built-in ones, or paths with a slash
    per_pool: int = 4  # rollouts of a pool in a step
    match: Match = "problem"  # what the pools have in common in a step

    def __post_init__(self) -> None:
        """Refuse a source without rollouts."""
        _at_least(1, per_pool=self.per_pool, replay_dirs=len(self.replay_dirs))


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """Stored rollouts in the place of some of the policy's own, in the first steps (`probe.runs.mixed`)."""

    pool: str = "teacher"
    fraction: float = 0.25  # of a group
    off_step: int = 10  # steps with the teacher

    def __post_init__(self) -> None:
        """Refuse a teacher that never teaches, and one that fills whole groups."""
        _at_least(1, off_step=self.off_step)
        if not 0 < self.fraction < 1:
            raise FieldError("fraction", "a number between 0 and 1", self.fraction)

    def num_rollouts(self, group: int) -> int:
        """How many of a group's rollouts are the teacher's: at least one, and not all."""
        return min(max(round(self.fraction * group), 1), group - 1)

    def num_batches(self, iterations: int) -> int:
        """Batches with the teacher."""
        return self.off_step // iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """What is sampled: in training `prompts_per_step` groups of `group` rollouts a step."""

    env: str = "minicode"  # or leetcode:FILE.jsonl
    mode: str = "run_tests"  # loophole mode
    split: Split = "train"  # of the environment; what is held out is never trained on
    hint: bool = True  # tell how submissions are evaluated
    num_problems: int | None = None  # to train on; None = all that are not held out
    prompts_per_step: int = 8
    group: int = 8  # G
    sampler: Sampler = field(default_factory=Sampler)
    engine: Literal["local", "server"] = "local"  # a server is given the adapter of every step (LoRA arms)
    served_model: str | None = None  # its name on the server; None where there is one base model
    teacher: TeacherConfig | None = None
    refills: int = 0  # further attempts at a group without reward variance, each on another problem
    iterations: int = 1  # optimizer steps on the same rollouts; more need objective.old_logprobs = "recorded"

    def __post_init__(self) -> None:
        """Refuse empty groups, and counts that do not divide."""
        get_loophole(self.mode)
        _at_least(1, prompts_per_step=self.prompts_per_step, num_problems=self.num_problems)
        _at_least(1, iterations=self.iterations)
        _at_least(0, refills=self.refills)
        _at_least(1, group=self.group)
        if self.teacher is not None and self.teacher.off_step % self.iterations:
            actual = f"{self.teacher.off_step} with {self.iterations} iterations"
            raise FieldError("teacher.off_step", "a multiple of iterations", actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """What arms that project do along their directions."""

    gate: Gate | None = None  # None: each arm's own
    overshoot: float = 1.0  # factor on what is removed
    preserve_magnitude: bool = False  # rescale the projected gradient to its old norm
    target: Target = "gradient"  # where weights move: the gate acts on the gradient, or on the optimizer's update

    def __post_init__(self) -> None:
        """Refuse a gate that would add what it should remove."""
        if self.overshoot < 0:
            raise FieldError("overshoot", "at least 0", self.overshoot)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionConfig:
    """The arms, and where their directions come from."""

    arms: tuple[str, ...] = ("projected",)  # rows of probe.settings.arms.ARMS; one where weights move
    gate: GateConfig = field(default_factory=GateConfig)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    v_hack: str | None = None  # direction file; None extracts
    refresh_every: int | None = None  # steps between extractions from the policy as it is; None = at the start alone

    def __post_init__(self) -> None:
        """Refuse unknown or repeated arms, and a file that would have to be extracted again."""
        for arm in self.arms:
            get_arm(arm)
        if not self.arms or len(set(self.arms)) != len(self.arms):
            actual = ", ".join(self.arms) or "none"
            raise FieldError("arms", "different arms, at least one", actual)
        _at_least(1, refresh_every=self.refresh_every)
        if self.v_hack is not None and self.refresh_every is not None:
            raise FieldError("v_hack, refresh_every", "one of them", "both: a file is not extracted again")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW on the coordinates."""

    lr: float = 0.0  # at the end of the warm-up; 0 = frozen weights
    schedule: Literal["cosine", "constant"] = "cosine"  # after the warm-up; cosine decays to 0
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0  # cap on the norm of the gradient, after the gate; None = no cap

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        _at_least(0, warmup_steps=self.warmup_steps)
        if not (self.lr >= 0 and self.weight_decay >= 0 and (self.max_grad_norm is None or self.max_grad_norm > 0)):
            actual = f"{self.lr}, {self.weight_decay}, {self.max_grad_norm}"
            raise FieldError("lr, weight_decay, max_grad_norm", ">= 0, >= 0, > 0 or none", actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What stops a run that trains. None = not watched."""

    kl_max: float | None = 10.0  # nats per token, mean of a step
    entropy_min_frac: float | None = 0.1  # of the first step's entropy
    logprob_drop_max: float | None = 3.0  # nats per token below the first step's
    patience: int = 3  # consecutive steps beyond a limit; a spike that recovers does not stop the run

    def __post_init__(self) -> None:
        """Refuse a limit that every step is beyond."""
        limits = (self.kl_max, self.entropy_min_frac, self.logprob_drop_max)
        if self.patience < 1 or any(limit is not None and limit <= 0 for limit in limits):
            expected = "positive numbers or none, and patience of at least 1"
            raise FieldError(
                "kl_max, entropy_min_frac, logprob_drop_max, patience", expected, f"{limits}, {self.patience}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    """The controllers of `probe.runs.controllers`, and when the EMA reference of the KL moves."""

    beta_warmup_steps: int = 0
    target_kl: float | None = None  # nats per token; None = beta is not adapted
    kl_horizon: int = 10  # steps
    beta_min: float = 1e-4
    beta_max: float = 1.0
    ema_decay: float = 0.99  # 0 = the reference is synced
    ema_every: int = 1  # steps between updates of the EMA reference
    sepa_ramp_steps: int = 0
    sepa_delay_steps: int = 0
    sepa_gate: float = 0.0  # solve rate that starts the ramp
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Refuse numbers out of their range; what depends on the objective is checked by `RunConfig`."""
        _at_least(0, beta_warmup_steps=self.beta_warmup_steps, sepa_ramp_steps=self.sepa_ramp_steps)
        _at_least(0, sepa_delay_steps=self.sepa_delay_steps)
        _at_least(1, kl_horizon=self.kl_horizon, ema_every=self.ema_every)
        for name in ("ema_decay", "sepa_gate"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise FieldError(name, "a number in [0, 1]", value)
        if self.target_kl is not None and not self.target_kl > 0:
            raise FieldError("target_kl", "a number above 0, or none", self.target_kl)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many stay. The last step has one, too."""

    every: int = 1  # steps
    keep: int = 2

    def __post_init__(self) -> None:
        """Refuse a run that could not be resumed."""
        _at_least(1, every=self.every, keep=self.keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Held-out problems, the same for every arm and seed, in every mode with its hint."""

    every: int = 20  # steps; also before the first and after the last
    num_problems: int = 64
    modes: tuple[str, ...] = ()  # none = the mode of the rollouts
    without_hint: bool = False  # also the mode of the rollouts, not told
    rollouts_per_problem: int = 1  # with more, the unit of the intervals is no longer the rollout

    def __post_init__(self) -> None:
        """Refuse an evaluation without rollouts, and unknown modes."""
        _at_least(1, every=self.every, num_problems=self.num_problems, rollouts_per_problem=self.rollouts_per_problem)
        for mode in self.modes:
            get_loophole(mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run. `dataclasses.asdict` writes it, `from_json` reads it back.

    >>> RunConfig(source=SourceConfig()).verb
    'replay'
    """

    verb: Verb = "replay"
    model: ModelConfig = field(default_factory=ModelConfig)
    source: SourceConfig | None = None  # of a replay
    rollouts: RolloutConfig | None = None  # of all but a replay
    objective: LossSettings = field(default_factory=LossSettings)
    conditions: tuple[LossCondition, ...] = ()  # of a replay; none = the objective alone, under the name `default`
    planning_phrases: tuple[str, ...] = PLANNING_PHRASES  # what token credit calls planning
    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig | None = None  # of a training or an evaluation
    steps: int | None = None  # of a training: optimizer steps; of a pool: groups; of a replay: None = all that match
    seed: int = 0  # of the choice of problems and rollouts, of the sampling and of random controls
    token_attribution: int | None = 0  # the first so many steps record their tokens; None = all
    preregistered: str | None = None  # NAME@SHA256 of the spec that this run belongs to

    def __post_init__(self) -> None:
        """Refuse tables of another verb, and settings that do not fit together."""
        _at_least(1, steps=self.steps)
        _at_least(0, token_attribution=self.token_attribution)
        self._check_tables()
        names = [condition.name for condition in self.conditions]
        if len(set(names)) != len(names):
            raise FieldError("conditions", "different names", ", ".join(names))
        objectives = self.objectives()
        if self.verb == "train":
            self._check_training()
        if self.verb == "replay":
            self._check_replay()
        if self.verb == "generate" and self.steps is None:
            raise FieldError("steps", "a number of groups", "none")
        for objective in objectives.values() if self.trains else ():
            self._check_control(objective)

    @classmethod
    def from_json(cls, table: Any, where: object) -> "RunConfig":
        """A run from its table: inverse of `asdict`; what is left out keeps its default.

        Raises:
            InputError: as `replay_pools.tables.decode`, and what the settings refuse.
        """
        return decode(cls, table, where, known=KEYS)

    @property
    def trains(self) -> bool:
        """Whether weights move."""
        return self.verb in ("replay", "train") and self.optimizer.lr > 0

    def objectives(self) -> dict[str, LossSettings]:
        """{condition: its loss}, the primary first."""
        if not self.conditions:
            return {DEFAULT_CONDITION: self.objective}
        return {condition.name: condition.objective(self.objective) for condition in self.conditions}

    @property
    def primary(self) -> str:
        """The condition that single numbers are of: `default`, or else the first."""
        names = list(self.objectives())
        return DEFAULT_CONDITION if DEFAULT_CONDITION in names else names[0]

    def _check_tables(self) -> None:
        for name, verbs in TABLES_OF.items():
            value, wanted = getattr(self, name), self.verb in verbs
            if (value is None) == wanted:
                taken = ", ".join(key for key, verbs in TABLES_OF.items() if self.verb in verbs)
                actual = f"no table {name}" if wanted else f"a table {name}, of {' and '.join(verbs)}"
                raise FieldError(name, f"the tables of {self.verb}: {taken}", actual)
        if self.verb != "replay" and self.conditions:
            raise FieldError("conditions", "none outside of a replay", self.conditions[0].name)
        if self.verb in ("replay", "train") and self.model.adapter is not None:
            expected = f"none: a {self.verb} starts at the base model"
            raise FieldError("model.adapter", expected, self.model.adapter)
        if self.verb != "replay" and self.model.dtype_noise:
            raise FieldError("model.dtype_noise", "0: a replay measures it", self.model.dtype_noise)
        if self.verb != "replay" and self.model.name is None:
            raise FieldError("model.name", "the policy, as organism or Qwen/Qwen3-4B", "none")

    def _check_replay(self) -> None:
        """One arm and condition where weights move; token shares need an arm that v_hack is measured in."""
        arms = self.intervention.arms
        if self.trains and len(arms) > 1:
            raise FieldError("intervention.arms", "one where optimizer.lr is above 0", ", ".join(arms))
        if self.trains and len(self.conditions) > 1:
            names = ", ".join(condition.name for condition in self.conditions)
            raise FieldError("conditions", "one where optimizer.lr is above 0", names)
        if self.token_attribution != 0 and measured_arm(arms) is None:
            raise FieldError("token_attribution", "an arm that uses v_hack", ", ".join(arms))

    def _check_training(self) -> None:
        """A policy, one arm, a loss with advantages, and whole batches of steps."""
        assert self.rollouts is not None
        if len(self.intervention.arms) > 1:
            raise FieldError("intervention.arms", "one arm in a training", ", ".join(self.intervention.arms))
        if not self.trains:
            raise FieldError("optimizer.lr", "above 0 in a training", f"{self.optimizer.lr:g}")
        if self.steps is None:
            raise FieldError("steps", "a number of optimizer steps", "none")
        if self.objective.loss_type == "nll":
            raise FieldError("objective.loss_type", "a loss with advantages", "nll")
        check_recorded([self.objective], {"rollouts.sampler": self.rollouts.sampler.to_json()})
        if self.rollouts.group < 2:
            raise FieldError("rollouts.group", "at least 2: a baseline is the mean of a group", self.rollouts.group)
        if self.rollouts.split != "train":
            raise FieldError("rollouts.split", "train in a training", self.rollouts.split)
        iterations = self.rollouts.iterations
        if iterations > 1 and self.objective.old_logprobs == "current":
            actual = f"current with {iterations} iterations"
            raise FieldError("objective.old_logprobs", "recorded: only then is there a ratio", actual)
        if self.steps % iterations:
            actual = f"{self.steps} with {iterations} iterations"
            raise FieldError("steps", "a multiple of rollouts.iterations", actual)

    def _check_control(self, objective: LossSettings) -> None:
        """A target KL adapts beta between its bounds, and starts there."""
        control, beta = self.control, objective.beta
        if control.target_kl is not None and not 0 < control.beta_min <= beta <= control.beta_max:
            actual = f"beta_min {control.beta_min}, beta {beta}, beta_max {control.beta_max}"
            raise FieldError("control.target_kl", "0 < beta_min <= objective.beta <= beta_max", actual)


TABLES_OF: dict[str, tuple[Verb, ...]] = {
    "source": ("replay",),
    "rollouts": ("train", "eval", "generate"),
    "evaluation": ("train", "eval"),
}
KEYS = keys_of(RunConfig)  # every setting, with dots
TABLES = tuple(entry.name for entry in fields(RunConfig))


def normaliser(objective: LossSettings) -> Normaliser:
    """The normaliser that pair gradients share with the loss."""
    return Normaliser(loss_type=objective.loss_type, max_completion_length=objective.max_completion_length)


def _at_least(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise FieldError(name, f"at least {least}", value)
