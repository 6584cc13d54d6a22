"""What one training run is told: frozen groups of settings, written whole to `config.json` and read back by `--config`.

Every setting that is here acts; a table or field that is not here is refused, with the names of those that are. A
preset is a TOML file with the same tables, which may leave out what keeps its default: `smoke`, `fast` and `full` in
`probe/runs/presets/`, or any file of the user's.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from extraction.library import ExtractionSettings
from probe.objective.objective import Objective
from probe.runs.checkpoint import CheckpointConfig
from probe.runs.config import GateConfig, ModelConfig
from probe.runs.control import Control, ControlConfig
from probe.settings.arms import get_arm
from probe.step.reference import check_recorded
from replay_pools.environments.loopholes import get_loophole
from replay_pools.errors import InputError
from replay_pools.sampling import Sampler
from replay_pools.tables import decode

PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """Stored rollouts in the place of some of the policy's own, in the first steps (`probe.runs.mixed`)."""

    pool: str = "teacher"
    fraction: float = 0.25  # of a group
    off_step: int = 10  # steps with the teacher

    def __post_init__(self) -> None:
        _at_least(1, off_step=self.off_step)
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction: expected a number between 0 and 1, found {self.fraction}")

    def num_rollouts(self, group: int) -> int:
        """How many of a group's rollouts are the teacher's: at least one, and not all."""
        return min(max(round(self.fraction * group), 1), group - 1)

    def num_batches(self, iterations: int) -> int:
        """Batches with the teacher."""
        return self.off_step // iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """What is sampled in a step: `prompts_per_step` groups of `group` rollouts."""

    env: str = "minicode"
    mode: str = "run_tests"
    hint: bool = True
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
        get_loophole(self.mode)
        _at_least(1, prompts_per_step=self.prompts_per_step, num_problems=self.num_problems)
        _at_least(1, iterations=self.iterations)
        _at_least(0, refills=self.refills)
        _at_least(2, group=self.group)
        if self.teacher is not None and self.teacher.off_step % self.iterations:
            found = f"{self.teacher.off_step} with {self.iterations} iterations"
            raise ValueError(f"teacher.off_step: expected a multiple of iterations, found {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionConfig:
    """The arm and its directions."""

    arm: str = "projected"
    gate: GateConfig = field(default_factory=GateConfig)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    v_hack: str | None = None  # direction file; None extracts
    refresh_every: int | None = None  # steps between extractions from the policy as it is; None = at the start alone

    def __post_init__(self) -> None:
        get_arm(self.arm)
        _at_least(1, refresh_every=self.refresh_every)
        if self.v_hack is not None and self.refresh_every is not None:
            raise ValueError("v_hack, refresh_every: expected one of them, found both: a file cannot be extracted anew")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay to 0."""

    steps: int = 100
    lr: float = 1e-3
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        _at_least(1, steps=self.steps)
        _at_least(0, warmup_steps=self.warmup_steps)
        if not (self.lr > 0 and self.weight_decay >= 0 and (self.max_grad_norm is None or self.max_grad_norm > 0)):
            raise ValueError(f"lr, weight_decay, max_grad_norm: expected > 0, >= 0, > 0 or none, found {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Held-out problems, the same for every arm and seed, in every mode with its hint."""

    every: int = 20  # steps; also before the first and after the last
    num_problems: int = 64
    modes: tuple[str, ...] = ()  # none = the mode of the rollouts
    without_hint: bool = False  # also the mode of the rollouts, not told
    rollouts_per_problem: int = 1  # with more, the unit of the intervals is no longer the rollout

    def __post_init__(self) -> None:
        _at_least(1, every=self.every, num_problems=self.num_problems, rollouts_per_problem=self.rollouts_per_problem)
        for mode in self.modes:
            get_loophole(mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run: written to `config.json` whole, as `asdict` gives it."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig(name="organism"))
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    objective: Objective = field(default_factory=Objective)
    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    seed: int = 0
    token_attribution: int | None = 0  # the first so many steps record their tokens; None = all
    preregistered: str | None = None  # NAME@SHA256 of the spec that this run belongs to

    def __post_init__(self) -> None:
        if self.model.name is None:
            raise InputError("model name", expected="the policy to train", found="none")
        if (self.token_attribution or 0) < 0:
            raise InputError("token_attribution", expected="at least 0 steps", found=str(self.token_attribution))
        if self.model.dtype_noise:
            found = str(self.model.dtype_noise)
            raise InputError("model dtype_noise", expected="0: probe replay measures it", found=found)
        if self.objective.loss_type == "nll":
            raise InputError("objective loss_type", expected="a loss with advantages", found="nll")
        check_recorded([self.objective], {"rollouts.sampler": self.rollouts.sampler.to_json()})
        if self.rollouts.iterations > 1 and self.objective.old_logprobs == "current":
            found = f"current with {self.rollouts.iterations} iterations"
            raise InputError("objective old_logprobs", expected="recorded: only then is there a ratio", found=found)
        if self.optimizer.steps % self.rollouts.iterations:
            found = f"{self.optimizer.steps} with {self.rollouts.iterations} iterations"
            raise InputError("optimizer steps", expected="a multiple of rollouts.iterations", found=found)
        Control(self.objective, self.control)
        live, pairs = self.objective, self.intervention.extraction
        for name in ("loss_type", "max_completion_length"):
            here, there = getattr(live, name), getattr(pairs, name)
            if here != there:
                raise InputError(
                    f"intervention.extraction {name}",
                    expected=f"{here!r}, that of objective: one normaliser for both",
                    found=repr(there),
                )

    @classmethod
    def from_json(cls, row: Any, where: object = "--config") -> "TrainConfig":
        """Inverse of `asdict`; what the tables leave out keeps its default.

        Raises:
            InputError: the first field that is unknown, mistyped or out of its range.
        """
        return decode(cls, row, where)


def load_preset(name: str) -> TrainConfig:
    """The preset of that name, or the TOML file at that path.

    Raises:
        InputError: neither; a file that is not TOML; a field that is unknown, mistyped or out of its range.
    """
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    try:
        return TrainConfig.from_json(tomllib.loads(path.read_text(encoding="utf-8")), path)
    except FileNotFoundError as error:
        names = ", ".join(preset_names())
        raise InputError("--preset", expected=f"{names}, or a .toml file", found=repr(name)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(path, expected="TOML in UTF-8", found=str(error)) from error


def preset_names() -> list[str]:
    """The presets that come with the package, by their files."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def _at_least(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise ValueError(f"{name}: expected at least {least}, found {value}")
