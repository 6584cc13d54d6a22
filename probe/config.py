"""What one replay is told: frozen groups of settings, written whole to `config.json` and read back by `--config`."""

from dataclasses import asdict, dataclass, field
from typing import Any

from extraction.library import ExtractionSettings
from probe.objective import Objective
from probe.vocabulary import Gate, Match
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which policy, and where it runs; `name` None takes the base model that the pools' manifests name."""

    name: str | None = None
    dtype: str = "float32"
    device: str = "auto"
    lora_rank: int = 32  # of the arms in the LoRA basis


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """One replay: written to `config.json` whole."""

    arms: tuple[str, ...] = ("projected",)
    source: SourceConfig = field(default_factory=SourceConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: Objective = field(default_factory=Objective)
    extraction: ExtractionSettings = field(default_factory=ExtractionSettings)
    gate: GateConfig = field(default_factory=GateConfig)
    v_hack: str | None = None  # direction file; None extracts
    lr: float = 0.0
    seed: int = 0

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "ReplayConfig":
        """Inverse of `asdict`, for `--config`."""
        groups = {
            "source": SourceConfig,
            "model": ModelConfig,
            "objective": Objective,
            "extraction": ExtractionSettings,
            "gate": GateConfig,
        }
        try:
            nested = {name: kind(**row[name]) for name, kind in groups.items()}
            source = nested["source"]
            nested["source"] = SourceConfig(**{**asdict(source), "replay_dirs": tuple(source.replay_dirs)})
            return cls(**{**row, **nested, "arms": tuple(row["arms"])})
        except (TypeError, KeyError) as error:
            raise InputError(
                "--config", expected="the `replay` object of a run's config.json", found=str(error)
            ) from error
