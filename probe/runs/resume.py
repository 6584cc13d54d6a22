"""Begin, resume or refuse a run directory (by config.json), and write the checkpoints of a training.

    open_run, find_run                          begin or continue a run; refuse a directory of another run
    check_same                                  refuse another configuration
    save_, load_checkpoint, drop_checkpoints    the state after N steps, written atomically

No random state is kept, because draws depend only on the seed and the step. A killed run returns to its newest
checkpoint and repeats the steps after it with the same bytes.
"""

import hashlib
import io
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from probe.records.records import StepRecord
from probe.records.run import CHECKPOINT_DIR, CONFIG_FILE, MANIFEST_FILE, STEPS_FILE, read_records
from probe.runs.control import TrainingState
from replay_pools.base.errors import InputError
from replay_pools.base.files import read_json, write_atomic, write_json
from replay_pools.base.tables import first_difference

# The temporary file of a run that was killed in its first write.
LEFTOVERS = f".{CONFIG_FILE}.*.tmp"
DIGEST_BYTES = 32  # length of the sha256 at the end of a checkpoint


def open_run(directory: Path, config: Mapping[str, Any]) -> list[StepRecord]:
    """Start or resume a run: write `config.json` first, and return the existing step records.

    Raises:
        InputError: the directory holds a run with another configuration, or other files.
    """
    done = find_run(directory, config)
    if done is not None:
        return done
    # Files of a run that stopped before its first step may belong to other settings.
    # `config.json` stays, to mark the directory as a run if this process is killed here.
    for path in directory.iterdir() if directory.exists() else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != CONFIG_FILE:
            path.unlink()
    write_json(directory / CONFIG_FILE, config)
    return []


def find_run(directory: Path, config: Mapping[str, Any], *, whole: bool = True) -> list[StepRecord] | None:
    """Return the step records of a run in `directory` with this configuration; None if it has not begun. Only reads.

    Args:
        whole: `config` is the whole `config.json`; False compares only its keys.

    Raises:
        InputError: as in `open_run`.
    """
    path, steps = directory / CONFIG_FILE, directory / STEPS_FILE
    if not path.exists():
        if directory.exists() and {*directory.iterdir()} - {*directory.glob(LEFTOVERS)}:
            raise InputError(directory, expected="a run or an empty directory", found="other files", fix="use --name")
        return None
    stored = read_json(path)
    if stored.get("settings", {}).get("verb") == config["settings"]["verb"] and not steps.exists():
        # The run stopped before its first step, usually by bad input, so other settings may replace it.
        return None
    check_same(directory, stored if whole else {key: stored.get(key) for key in config}, config)
    return read_records(StepRecord, steps)


def is_complete(directory: Path) -> bool:
    """Return True if the run has its manifest, which is written last."""
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


def save_checkpoint(directory: Path, done: int, state: TrainingState) -> None:
    """Write the state after `done` steps to `checkpoint/step_NNNNNN.pt`, with its sha256 as the last 32 bytes."""
    buffer = io.BytesIO()
    # Into memory first, because the file must appear whole.
    torch.save(_interned(state.state_dict()), buffer)
    data = buffer.getvalue()
    # torch.load checks nothing and ignores the bytes after its data.
    write_atomic(_path(directory, done), data + hashlib.sha256(data).digest())


def drop_checkpoints(directory: Path, recorded: int) -> None:
    """Delete checkpoints after the `recorded` steps, and all but the newest two of the others.

    Call it after recording the steps: a run killed between a checkpoint and its line in `steps.jsonl` needs the
    checkpoint before it.
    """
    usable = [done for done in _all(directory) if done <= recorded]
    for done in set(_all(directory)) - set(usable[-2:]):
        _path(directory, done).unlink()


def load_checkpoint(directory: Path, state: TrainingState) -> int:
    """Restore the newest checkpoint into `state`.

    Returns:
        The number of steps before the checkpoint; 0 without a checkpoint, and `state` stays unchanged.

    Raises:
        InputError: the checkpoint is damaged.
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
    """Replace equal strings by one object.

    pickle writes every string object separately, so after a resume the same state would give other bytes.
    """
    if isinstance(value, dict):
        return {_interned(key): _interned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_interned(item) for item in value]
    if isinstance(value, str):
        return sys.intern(value)
    return value


def _all(directory: Path) -> list[int]:
    """Return the step numbers of all checkpoints, ascending."""
    return sorted(int(path.stem.removeprefix("step_")) for path in (directory / CHECKPOINT_DIR).glob("step_*.pt"))


def _path(directory: Path, done: int) -> Path:
    return directory / CHECKPOINT_DIR / f"step_{done:06d}.pt"
