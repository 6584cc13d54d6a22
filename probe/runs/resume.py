"""Begin, resume or refuse a run directory (compares config.json), and write the checkpoints of a run that trains.

    open_run, find_run                          begin or continue a run; refuse a directory that holds another
    check_same                                  refuse what was begun with another configuration
    save_, load_checkpoint, drop_checkpoints    the state after N steps, in a file that is written whole or not at all

There is no random state to keep: what a run draws depends on its seed and the step alone. A run that was killed goes
back to its newest checkpoint and does the steps after it again, to the same bytes.
"""

import hashlib
import io
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from probe.records.records import StepRecord
from probe.records.run import (
    CHECKPOINT_DIR,
    CONFIG_FILE,
    MANIFEST_FILE,
    STEPS_FILE,
    read_steps,
    settings_of,
)
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_atomic, write_json
from replay_pools.base.tables import first_difference

# The temporary file of a run that was killed in its very first write.
LEFTOVERS = f".{CONFIG_FILE}.*.tmp"
DIGEST_BYTES = 32  # of a sha256, the end of a checkpoint


def open_run(directory: Path, config: Mapping[str, Any]) -> list[StepRecord]:
    """Start or resume a run: writes `config.json` first; returns the step records that are already there.

    Raises:
        InputError: the directory holds a run with another configuration, or something that is not a run.
    """
    done = find_run(directory, config)
    if done is not None:
        return done
    # What a run left that was stopped before its first step is of its settings, not of these.
    # `config.json` stays: it marks the directory as that of a run if this one is killed here.
    for path in directory.iterdir() if directory.exists() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != CONFIG_FILE:
            path.unlink()
    write_json(directory / CONFIG_FILE, config)
    return []


def find_run(directory: Path, config: Mapping[str, Any], *, whole: bool = True) -> list[StepRecord] | None:
    """The step records of a run in `directory` with this configuration; None if the run is still to begin. Only reads.

    Args:
        whole: whether `config` is all that the run's `config.json` would hold; else the keys that it has are compared.

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
        # Stopped before its first step, mostly by bad input: nothing is lost by beginning again with other settings.
        return None
    check_same(directory, stored if whole else {key: stored.get(key) for key in config}, config)
    return read_steps(steps)


def is_complete(directory: Path) -> bool:
    """Whether the run has its manifest, which is written last."""
    return (directory / MANIFEST_FILE).exists()


def check_same(directory: Path, stored: Any, config: Mapping[str, Any]) -> None:
    """Refuse a stored configuration that differs from the given one; the first key that differs is named."""
    # The patience with a server changes nothing that is recorded.
    if difference := first_difference(stored, config, free="settings.rollouts.server_timeout_s"):
        key, there, wanted = difference
        raise InputError(
            directory,
            expected=f"the run being resumed to have {key} = {wanted!r}",
            found=repr(there),
            fix="use another --name, or remove the directory",
        )


class Resumable(Protocol):
    """What `save_checkpoint` takes; `probe.runs.control.TrainingState` is one."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a step changes."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        ...


def save_checkpoint(directory: Path, done: int, state: Resumable) -> None:
    """Write the state after `done` steps to `checkpoint/step_NNNNNN.pt`, with its sha256 as the last 32 bytes."""
    buffer = io.BytesIO()
    # Into memory first: the file has to appear whole.
    torch.save(_interned(state.state_dict()), buffer)
    data = buffer.getvalue()
    # torch checks nothing when it loads; it does not read what comes after its own data.
    write_atomic(_path(directory, done), data + hashlib.sha256(data).digest())


def drop_checkpoints(directory: Path, recorded: int, *, keep: int = 2) -> None:
    """Delete checkpoints ahead of the `recorded` steps, and all but the newest `keep` of the others.

    Call it once the steps are recorded: a run killed between a checkpoint and the line in `steps.jsonl` has one
    that is ahead by one step, and needs the one before.
    """
    usable = [done for done in _all(directory) if done <= recorded]
    for done in set(_all(directory)) - set(usable[-keep:]):
        _path(directory, done).unlink()


def load_checkpoint(directory: Path, state: Resumable) -> int:
    """Restore the newest checkpoint into `state`.

    Returns:
        The number of steps that it was written after; 0 if there is none, and `state` is as it was.

    Raises:
        InputError: the checkpoint is not as it was written.
    """
    done = max(_all(directory), default=0)
    if done:
        path = _path(directory, done)
        content = path.read_bytes()
        data, stored = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != stored:
            fix = "delete it: the run goes on from the checkpoint before it, or from the start"
            raise InputError(path, expected="a checkpoint with its sha256 at the end", found="a damaged one", fix=fix)
        state.load_state_dict(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    return done


def _interned(value: Any) -> Any:
    """The value with equal strings as one object.

    pickle writes a string again for each further object: after a resume, when equal strings are several objects, the
    same state would be written in other bytes.
    """
    if isinstance(value, dict):
        return {_interned(key): _interned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_interned(item) for item in value]
    if isinstance(value, str):
        return sys.intern(value)
    return value


def _all(directory: Path) -> list[int]:
    """The numbers of steps that there are checkpoints of, ascending."""
    return sorted(int(path.stem.removeprefix("step_")) for path in (directory / CHECKPOINT_DIR).glob("step_*.pt"))


def _path(directory: Path, done: int) -> Path:
    return directory / CHECKPOINT_DIR / f"step_{done:06d}.pt"
