"""Checkpoints of a run that trains: its state after so many steps, written whole or not at all.

There is no random state to keep: what a run draws depends on its seed and the step alone. A run that was killed goes
back to its newest checkpoint and does the steps after it again, to the same bytes.
"""

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from probe.records.run import CHECKPOINT_DIR
from replay_pools.files import write_atomic


class Resumable(Protocol):
    """What is checkpointed."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a step changes."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many stay. The last step has one, too."""

    every: int = 1  # steps
    keep: int = 2

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ValueError(f"every, keep: expected at least 1, found {self.every}, {self.keep}")


def save_checkpoint(directory: Path, done: int, state: Resumable) -> None:
    """Write the state after `done` steps."""
    buffer = io.BytesIO()
    torch.save(_interned(state.state_dict()), buffer)
    write_atomic(_path(directory, done), buffer.getvalue())


def drop_checkpoints(directory: Path, recorded: int, *, keep: int) -> None:
    """Drop what is ahead of the `recorded` steps, and all but the newest `keep` of the others.

    To be called once the steps are recorded: a run killed between a checkpoint and the line in `steps.jsonl` has one
    that is ahead by one step, and needs the one before.
    """
    usable = [done for done in _all(directory) if done <= recorded]
    for done in set(_all(directory)) - set(usable[-keep:]):
        _path(directory, done).unlink()


def load_checkpoint(directory: Path, state: Resumable) -> int:
    """Restore the newest state.

    Returns:
        The number of steps that it is after; 0 = the start, and `state` is as it was.
    """
    done = max(_all(directory), default=0)
    if done:
        state.load_state_dict(torch.load(_path(directory, done), map_location="cpu", weights_only=True))
    return done


def _interned(value: Any) -> Any:
    """Equal names as one object: pickle writes a name once an object, and those that were loaded are other objects."""
    if isinstance(value, dict):
        return {_interned(key): _interned(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_interned(own) for own in value]
    return sys.intern(value) if isinstance(value, str) else value


def _all(directory: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step_")) for path in (directory / CHECKPOINT_DIR).glob("step_*.pt"))


def _path(directory: Path, done: int) -> Path:
    return directory / CHECKPOINT_DIR / f"step_{done:06d}.pt"
