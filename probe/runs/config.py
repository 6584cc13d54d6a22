"""What one replay is told: frozen groups of settings, written whole to `config.json` and read back by `--config`."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from extraction.library import ExtractionSettings
from extraction.vocabulary import Storage
from probe.objective.credit import PLANNING_PHRASES
from probe.objective.objective import Objective
from probe.runs.conditions import Condition, parse_conditions
from probe.settings.words import Gate, Match, Target
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which policy, and where it runs; `name` None takes the base model that the pools' manifests name."""

    name: str | None = None
    dtype: str = "float32"
    device: str = "auto"
    lora_rank: int = 32  # of the arms in the LoRA basis
    svd_rank: int | None = None  # of the arms in the SVD basis: the largest singular triplets; None is all
    svd_storage: Storage = "float32"  # of U and Vh
    dtype_noise: int = 0  # rollouts to score again in a higher precision; shapes no record
    shard_base: bool = False  # spread the frozen weights over the ranks (probe.step.sharding)

    def __post_init__(self) -> None:
        """Refuse a rank below 1, and noise that cannot be measured."""
        if self.svd_rank is not None and self.svd_rank < 1:
            raise InputError("--svd-rank", expected="at least 1", found=str(self.svd_rank))
        if self.dtype_noise and self.shard_base:
            raise InputError("--dtype-noise", expected="0 with --shard-base", found=str(self.dtype_noise))
        if self.dtype_noise and self.dtype == "float64":
            raise InputError("--dtype-noise", expected="a --dtype below float64, the highest", found="float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """Which pools, and how they are mixed into groups."""

    replay_dirs: tuple[str, ...] = ("teacher", "base")
    per_pool: int = 4
    match: Match = "problem"
    steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """What projecting arms do; `gate` None is each arm's own."""

    gate: Gate | None = None
    overshoot: float = 1.0
    preserve_magnitude: bool = False
    target: Target = "gradient"  # where weights move: the gate acts on the gradient, or on the optimizer's update


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """One replay: written to `config.json` whole."""

    arms: tuple[str, ...] = ("projected",)
    conditions: tuple[Condition, ...] = parse_conditions((), Objective())  # the first is the primary
    planning_phrases: tuple[str, ...] = PLANNING_PHRASES  # what token credit calls planning
    source: SourceConfig = field(default_factory=SourceConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    gate: GateConfig = field(default_factory=GateConfig)
    v_hack: str | None = None  # direction file; None extracts
    lr: float = 0.0
    seed: int = 0
    token_attribution: int | None = 0  # the first so many steps record their tokens; None = all
    preregistered: str | None = None  # NAME@SHA256 of the spec that this run belongs to

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "ReplayConfig":
        """Inverse of `asdict`, for `--config`."""
        groups = {
            "source": SourceConfig,
            "model": ModelConfig,
            "extraction": ExtractionSettings,
            "gate": GateConfig,
        }
        try:
            nested = {name: kind(**row[name]) for name, kind in groups.items()}
            source = nested["source"]
            nested["source"] = SourceConfig(**{**asdict(source), "replay_dirs": tuple(source.replay_dirs)})
            nested["conditions"] = tuple(Condition.from_json(own) for own in row["conditions"])
            if not nested["conditions"]:
                raise KeyError("conditions: none")
            nested |= {name: tuple(row[name]) for name in ("arms", "planning_phrases")}
            return cls(**{**row, **nested})
        except (TypeError, KeyError) as error:
            raise InputError(
                "--config", expected="the `replay` object of a run's config.json", found=str(error)
            ) from error


def read_phrases(path: Path | None) -> tuple[str, ...]:
    """Planning phrases, one a line; None = the built-in ones.

    Raises:
        InputError: not UTF-8.
    """
    if path is None:
        return PLANNING_PHRASES
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(path, expected="UTF-8 text, one phrase a line", found=str(error)) from error
    return tuple(line.strip() for line in lines if line.strip())
