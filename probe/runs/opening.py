"""Whether a directory holds the run of a configuration: a run is begun, continued or refused by what is there."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.records.records import StepRecord
from probe.records.run import CONFIG_FILE, MANIFEST_FILE, STEPS_FILE, read_steps
from replay_pools.errors import InputError
from replay_pools.files import first_difference, read_json, write_json

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
    if stored.get("verb") == config["verb"] and not steps.exists():
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
