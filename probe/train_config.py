"""What one training run is told: frozen groups of settings, written whole to `config.json` and read back by `--config`.

A preset is a TOML file with the same tables, which may leave out what keeps its default: `smoke`, `fast` and `full` in
`probe/presets/`, or any file of the user's.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from extraction.library import ExtractionSettings
from probe.arms import get_arm
from probe.config import GateConfig, ModelConfig
from probe.controllers import Limits
from probe.decode import decode
from probe.loss_config import LossConfig
from replay_pools.environments.loopholes import get_loophole
from replay_pools.errors import InputError
from replay_pools.sampling import Sampler

PRESETS = Path(__file__).parent / "presets"


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

    def __post_init__(self) -> None:
        get_loophole(self.mode)
        _at_least(1, prompts_per_step=self.prompts_per_step, num_problems=self.num_problems)
        _at_least(2, group=self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """Stored rollouts that replace some of a group's own."""

    pool: str | None = None
    fraction: float = 0.0  # of each group
    off_step: int | None = None  # the first step without them

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1 or (self.fraction > 0) != (self.pool is not None):
            raise ValueError(f"pool and fraction: expected both or neither, fraction in [0, 1), found {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionConfig:
    """The arm, its directions, and what its gate acts on."""

    arm: str = "projected"
    project: Literal["gradient", "update"] = "gradient"
    gate: GateConfig = field(default_factory=GateConfig)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    v_hack: str | None = None  # direction file; None extracts
    refresh_every: int | None = None  # steps between extractions; None = once, at the start

    def __post_init__(self) -> None:
        get_arm(self.arm)
        _at_least(1, refresh_every=self.refresh_every)
        if self.v_hack is not None and self.refresh_every is not None:
            raise ValueError("refresh_every: directions from a file are not extracted again, expected no v_hack")


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
    """Held-out problems, the same for every arm and seed."""

    every: int = 20  # steps; also before the first and after the last
    num_problems: int = 64
    rollouts_per_problem: int = 1  # with more, the unit of the intervals is no longer the rollout
    modes: tuple[str, ...] = ("run_tests",)

    def __post_init__(self) -> None:
        for mode in self.modes:
            get_loophole(mode)
        _at_least(1, every=self.every, num_problems=self.num_problems, rollouts_per_problem=self.rollouts_per_problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the state is saved, and how many states are kept."""

    every: int = 1
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least(1, every=self.every)
        _at_least(2, keep=self.keep)  # a run that is killed between two writes needs the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run: written to `config.json` whole, as `asdict` gives it."""

    model: ModelConfig = field(default_factory=lambda: ModelConfig(name="organism"))
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    limits: Limits = field(default_factory=Limits)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model.name is None:
            raise InputError("model name", expected="the policy to train", found="none")
        live, pairs = self.loss.objective, self.intervention.extraction
        for name in ("loss_type", "max_completion_length"):
            here, there = getattr(live, name), getattr(pairs, name)
            if here != there:
                raise InputError(
                    f"intervention.extraction {name}",
                    expected=f"{here!r}, that of loss.objective: one normaliser for both",
                    found=repr(there),
                )
        self._check_law()

    def _check_law(self) -> None:
        """Recorded log-probabilities are of the sampler's law; only at temperature 1, uncut, is that the policy's."""
        sampler = self.rollouts.sampler
        plain = (sampler.temperature, sampler.top_p, sampler.top_k) == (1.0, 1.0, 0)
        recorded = "recorded" in (self.loss.ratio.old_logprobs, self.loss.kl.reference)
        if recorded and not plain:
            raise InputError(
                "rollouts.sampler",
                expected="temperature 1, top_p 1, top_k 0 where recorded log-probabilities enter the loss",
                found=f"temperature {sampler.temperature}, top_p {sampler.top_p}, top_k {sampler.top_k}",
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
