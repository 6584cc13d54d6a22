"""What a run would do, found without loading weights and without writing: `--dry-run` of `probe replay` and `train`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.arms import get_arm
from probe.config import ModelConfig
from probe.coverage import Coverage, coverage
from probe.loop import check_same, is_complete
from probe.memory import Memory, memory
from probe.runs import CONFIG_FILE, STEPS_FILE, read_steps
from replay_pools.errors import InputError
from replay_pools.files import read_json
from replay_pools.policy import load_skeleton


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A run that has not been started, or not been finished."""

    path: str
    state: str  # new, continues after N steps, complete
    work: dict[str, int]  # steps, rollouts, tokens, ...
    model: str
    modules: list[Coverage]
    memory: list[Memory]

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and texts."""
        return asdict(self)


def make_preview(
    directory: Path,
    record: Mapping[str, Any],
    *,
    work: Mapping[str, int],
    model: str,
    config: ModelConfig,
    arms: tuple[str, ...],
    num_samples: int,
    k: int,
    num_pairs: int,
    trains: bool,
) -> Preview:
    """The preview of the run of `record`, a part of what its `config.json` will hold.

    Args:
        num_samples: of all groups of a step.
        num_pairs: that directions are extracted from.

    Raises:
        InputError: `directory` holds another run, or something that is not a run; no such model.
    """
    rows = [get_arm(name) for name in arms]
    skeleton = load_skeleton(model)
    return Preview(
        path=str(directory),
        state=state_of(directory, record),
        work=dict(work),
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
            num_pairs=num_pairs,
            trains=trains,
        ),
    )


def state_of(directory: Path, record: Mapping[str, Any]) -> str:
    """Whether the run of `record` would begin in `directory`, continue, or find nothing to do.

    Raises:
        InputError: as `probe.loop.open_run`.
    """
    path = directory / CONFIG_FILE
    if not path.exists():
        if directory.exists() and any(directory.iterdir()):
            raise InputError(directory, expected="a run or an empty directory", found="other files", fix="use --name")
        return "new"
    stored = read_json(path)
    steps = directory / STEPS_FILE
    if stored.get("verb") == record["verb"] and not steps.exists():
        return "new"
    check_same(directory, {key: stored.get(key) for key in record}, record)
    if is_complete(directory):
        return "complete, nothing to do"
    return f"continues after {len({row.step for row in read_steps(steps)})} steps"
