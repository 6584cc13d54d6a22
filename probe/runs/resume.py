"""Resume or refuse a run directory: compare its config.json with the run's, and keep checkpoints of one that trains.

    open_run, find_run      begin, continue, or refuse a directory that holds another run
    *_checkpoint(s)         the state of a run that trains after so many steps, written whole or not at all

There is no random state to keep: what a run draws depends on its seed and the step alone. A run that was killed goes
back to its newest checkpoint and does the steps after it again, to the same bytes.
"""

import io
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from probe.records.records import StepRecord
from probe.records.run import CHECKPOINT_DIR, CONFIG_FILE, MANIFEST_FILE, STEPS_FILE, read_steps, settings_of
from replay_pools.errors import InputError
from replay_pools.files import first_difference, read_json, write_atomic, write_json

LEFTOVERS = f".{CONFIG_FILE}.*.tmp"  # of a run killed in its very first write


def open_run(directory: Path, config: Mapping[str, Any]) -> list[StepRecord]:
    """Start or resume a run: writes `config.json` first; returns the step records that are already there.

    Raises:
        InputError: the directory holds a run with another configuration, or something that is not a run.
    """
    done = find_run(directory, config)
    if done is not None:
        return done
    _clear(directory)
    write_json(directory / CONFIG_FILE, config)
    return []


def find_run(directory: Path, config: Mapping[str, Any], *, whole: bool = True) -> list[StepRecord] | None:
    """The step records of the run of `config` that `directory` holds; None where it would begin. Only reads.

    Args:
        whole: `config` is all that the run's `config.json` would hold, not some of its keys.

    Raises:
        InputError: as `open_run`.
    """
    path, steps = directory / CONFIG_FILE, directory / STEPS_FILE
    if not path.exists():
        if directory.exists() and {*directory.iterdir()} - {*directory.glob(LEFTOVERS)}:
            raise InputError(directory, expected="a run or an empty directory", found="other files", fix="use --name")
        return None
    stored = read_json(path)
    if settings_of(stored).get("verb") == settings_of(config)["verb"] and not steps.exists():
        return None  # stopped before its first step, by bad input mostly: there is nothing to resume
    _check_same(directory, stored if whole else {key: stored.get(key) for key in config}, config)
    return read_steps(steps)


def is_complete(directory: Path) -> bool:
    """The manifest, written last, is there."""
    return (directory / MANIFEST_FILE).exists()


def _clear(directory: Path) -> None:
    """Remove everything except `config.json`, by which a run that is killed here is known for one the next time."""
    for path in directory.iterdir() if directory.exists() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != CONFIG_FILE:
            path.unlink()


def _check_same(directory: Path, stored: Any, config: Mapping[str, Any]) -> None:
    """InputError unless the stored configuration is the given one."""
    if difference := first_difference(stored, config):
        key, there, wanted = difference
        raise InputError(
            directory,
            expected=f"the run being resumed to have {key} = {wanted!r}",
            found=repr(there),
            fix="use another --name, or remove the directory",
        )


class Resumable(Protocol):
    """What is checkpointed."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a step changes."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        ...


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
        return {_interned(key): _interned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_interned(item) for item in value]
    return sys.intern(value) if isinstance(value, str) else value


def _all(directory: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step_")) for path in (directory / CHECKPOINT_DIR).glob("step_*.pt"))


def _path(directory: Path, done: int) -> Path:
    return directory / CHECKPOINT_DIR / f"step_{done:06d}.pt"
