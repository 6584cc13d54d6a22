"""Checkpoints of a run that trains: its state after so many steps, written whole or not at all.

There is no random state to keep: what a run draws depends on its seed and the step alone.
"""

import io
from pathlib import Path

import torch

from probe.optimizer import Stepper
from replay_pools.errors import InputError
from replay_pools.files import write_atomic

KEEP = 2  # the newest may be one step ahead of steps.jsonl when a run is killed between the two


def save_checkpoint(directory: Path, done: int, stepper: Stepper) -> None:
    """Write the state after `done` steps and drop all but the newest KEEP."""
    buffer = io.BytesIO()
    torch.save(stepper.state_dict(), buffer)
    write_atomic(_path(directory, done), buffer.getvalue())
    for old in sorted((directory / "checkpoint").glob("step_*.pt"))[:-KEEP]:
        old.unlink()


def load_checkpoint(directory: Path, done: int, stepper: Stepper) -> None:
    """Restore the state after `done` steps (0: as it is)."""
    if done == 0:
        return
    path = _path(directory, done)
    if not path.is_file():
        raise InputError(path, expected=f"the checkpoint after {done} steps", found="no such file", fix="use --name")
    stepper.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))


def _path(directory: Path, done: int) -> Path:
    return directory / "checkpoint" / f"step_{done:06d}.pt"
