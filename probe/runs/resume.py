"""A run's directory: begin, resume or refuse it (by config.json), and the checkpoints of a training.

    running                                     the processes, the lock and the trackers of a run
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from probe.records.records import StepRecord
from probe.records.run import CHECKPOINT_DIR, CONFIG_FILE, STEPS_FILE, read_records
from probe.records.tracking import tracked
from probe.runs.control import TrainingState
from probe.settings.training import ModelConfig
from probe.step.distributed import World, joined
from replay_pools.base.errors import InputError
from replay_pools.base.files import locked, read_json, write_atomic, write_json
from replay_pools.base.tables import first_difference

DIGEST_BYTES = 32  # length of the sha256 at the end of a checkpoint


@contextmanager
def running(
    model: ModelConfig, directory: Path, out: Path, say: Callable[[str], None], track: Sequence[str] = ()
) -> Iterator[World]:
    """Join the processes of a run; rank 0 locks its directory and starts its trackers.

    Raises:
        InputError: another process runs in the same directory; or as in `joined` and `tracked`.
    """
    with joined(model.device, shards_base=model.shard_base) as world:
        if not world.is_main:
            yield world
            return
        # Trackers come first, to refuse a missing package before anything is written.
        with tracked(track, directory, out_dir=out, say=say), locked(directory):
            yield world


def open_run(directory: Path, config: Mapping[str, Any]) -> list[StepRecord]:
    """Start or resume a run: write `config.json` first, and return the existing step records.

    Raises:
        InputError: the directory holds a run with another configuration, or other files.
    """
    if (done := find_run(directory, config)) is not None:
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

    `config` is the whole `config.json`; without `whole`, only its keys are compared. Errors as in `open_run`.
    """
    path, steps = directory / CONFIG_FILE, directory / STEPS_FILE
    if not path.exists():
        # A run that was killed in its first write leaves a hidden temporary file.
        if directory.exists() and {*directory.iterdir()} - {*directory.glob(f".{CONFIG_FILE}.*.tmp")}:
            raise InputError(directory, expected="a run or an empty directory", found="other files", fix="use --name")
        return None
    stored = read_json(path)
    if stored.get("settings", {}).get("verb") == config["settings"]["verb"] and not steps.exists():
        # The run stopped before its first step, usually by bad input, so other settings may replace it.
        return None
    check_same(directory, stored if whole else {key: stored.get(key) for key in config}, config)
    return read_records(StepRecord, steps)


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
    write_atomic(directory / CHECKPOINT_DIR / f"step_{done:06d}.pt", data + hashlib.sha256(data).digest())


def drop_checkpoints(directory: Path, recorded: int) -> None:
    """Delete checkpoints after the `recorded` steps, and all but the newest two of the others.

    Call it after recording the steps: a run killed between a checkpoint and its line in `steps.jsonl` needs the
    checkpoint before it.
    """
    checkpoints = _checkpoints(directory)
    usable = [done for done in checkpoints if done <= recorded]
    for done in checkpoints.keys() - {*usable[-2:]}:
        checkpoints[done].unlink()


def load_checkpoint(directory: Path, state: TrainingState) -> int:
    """Restore the newest checkpoint into `state`, and return the steps before it; 0 without one.

    Raises:
        InputError: the checkpoint is damaged.
    """
    if not (checkpoints := _checkpoints(directory)):
        return 0
    done, path = [*checkpoints.items()][-1]
    content = path.read_bytes()
    data = content[:-DIGEST_BYTES]
    if hashlib.sha256(data).digest() != content[-DIGEST_BYTES:]:
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
        return [*map(_interned, value)]
    return sys.intern(value) if isinstance(value, str) else value


def _checkpoints(directory: Path) -> dict[int, Path]:
    """Return {steps done: checkpoint}, ascending."""
    return {int(path.stem.removeprefix("step_")): path for path in sorted((directory / CHECKPOINT_DIR).glob("*.pt"))}
