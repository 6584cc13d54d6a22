"""What the arms of a run adapt in a model and hold in memory, read off shapes: for `probe plan` and `--dry-run`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from extraction.pairs import load_pairs
from probe.runs.config import ModelConfig
from probe.runs.coverage import Coverage, coverage
from probe.runs.memory import Memory, memory
from probe.settings.arms import get_arm
from replay_pools.policy import load_skeleton


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Adapted modules, and sizes beside activations, which depend on the lengths of the rollouts."""

    model: str | None = None  # None: not known, and so is the rest
    modules: list[Coverage] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """The sum."""
        return sum(row.num_bytes for row in self.memory)


def footprint(
    model: str, arms: Sequence[str], config: ModelConfig, *, num_samples: int, k: int, pairs: str, trains: bool
) -> Footprint:
    """Of a step in which all `arms` are measured.

    Args:
        model: `organism`, a directory or a hub id; no weights are loaded.
        config: dtype, ranks and storage; its name is not read.
        num_samples: of all groups of a step.
        k: directions in a module.
        pairs: that directions are extracted from.
        trains: with an optimizer, references and a quarantine.

    Raises:
        InputError: no such model, arm or pairs.
    """
    rows, skeleton = [get_arm(name) for name in arms], load_skeleton(model)
    return Footprint(
        model=model,
        modules=coverage(skeleton),
        memory=memory(
            skeleton,
            dtype=config.dtype,
            bases={arm.basis for arm in rows},
            lora_rank=config.lora_rank,
            svd_rank=config.svd_rank,
            svd_storage=config.svd_storage,
            num_samples=num_samples,
            k=k,
            num_direction_sets=len({arm.directions for arm in rows}),
            num_pairs=len(load_pairs(pairs)),
            trains=trains,
        ),
    )
