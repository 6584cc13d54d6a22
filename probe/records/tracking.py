"""Experiment trackers (TensorBoard, W&B, Trackio, MLflow) through accelerate's adapters: a view of what a run wrote.

The records are the truth, trackers are told of them afterwards: after every step they get the lines of `steps.jsonl`
and `evals.jsonl` that are new to this process. A resumed run is therefore told whole, and a complete one can be told
again. A tracker that fails is given up; the run goes on.

Nothing leaves the machine unless the tracker's own environment variables say so: W&B runs offline, and everything is
stored under out/tracking/. No torch here until a tracker starts, after the first step.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from probe.records.records import DEFAULT_CONDITION
from probe.records.run import CONFIG_FILE, EVALS_FILE, STEPS_FILE
from replay_pools.errors import InputError
from replay_pools.files import decode_jsonl, flatten, read_json
from replay_pools.progress import heard_by

PROJECT = "gradient-probe"
PACKAGES = {  # tracker -> packages of which one is needed
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
}
TRACKERS = tuple(PACKAGES)


@contextmanager
def tracked(names: Sequence[str], directory: Path, *, out_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Tell the trackers what is new whenever progress is reported from within, and at the end.

    Args:
        names: of TRACKERS.
        directory: of the run, whose name is that of the tracked run.
        out_dir: its tracking/ holds what trackers store.
        say: told of a tracker that is given up.

    Raises:
        InputError: a tracker that is not installed.
    """
    for name in names:
        _check_installed(name)
    trackers = _Trackers(names, directory, out_dir / "tracking", say)
    try:
        with heard_by(lambda what, done, total: trackers.update()):
            yield
        trackers.update()
    finally:
        trackers.finish()


class _Trackers:
    """The trackers of one run; one that raises anything is said so and dropped."""

    def __init__(self, names: Sequence[str], directory: Path, place: Path, say: Callable[[str], None]) -> None:
        self._names, self._directory, self._place, self._say = dict.fromkeys(names), directory, place, say
        self._reader = _Reader(directory)
        self._running: dict[str, Any] = {}

    def update(self) -> None:
        """Tell what is new; the first time, start."""
        if config := self._reader.new_config():
            for name in self._names:
                self._attempt(name, partial(self._begin, name, config))
        for step, values in self._reader.new_values():
            for name, tracker in [*self._running.items()]:
                self._attempt(name, partial(tracker.log, values, step=step))

    def finish(self) -> None:
        """Close those that run."""
        for name, tracker in [*self._running.items()]:
            self._attempt(name, tracker.finish)

    def _begin(self, name: str, config: Mapping[str, Any]) -> None:
        self._running[name] = _start(name, self._directory.name, self._place)
        self._running[name].store_init_configuration(config)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            with redirect_stdout(sys.stderr):  # theirs is no part of what a verb prints
                action()
        except Exception as error:  # of any kind: no run is worth less than its tracker
            self._running.pop(name, None)
            self._say(f"tracker {name} is given up: {' '.join(str(error).split())}; records are in {self._directory}")


class _Reader:
    """What of a run's files has not been read yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = {STEPS_FILE: 0, EVALS_FILE: 0}  # bytes; lines are only ever added
        self._config_read = False

    def new_config(self) -> dict[str, Any]:
        """The flat config, once it is there; then {}."""
        path = self._directory / CONFIG_FILE
        if self._config_read or not path.is_file():
            return {}
        self._config_read = True
        flat = flatten(read_json(path))
        return {name: value if isinstance(value, int | float | str) else str(value) for name, value in flat.items()}

    def new_values(self) -> list[tuple[int, dict[str, float]]]:
        """(step, {name: number}) in order of the steps, as trackers want them."""
        found: dict[int, dict[str, float]] = defaultdict(dict)
        for row in self._rows(STEPS_FILE):
            found[row["step"]] |= step_values(row)
        for row in self._rows(EVALS_FILE):
            found[row["step"]] |= evaluation_values(row)
        return sorted(found.items())

    def _rows(self, name: str) -> list[Any]:
        path = self._directory / name
        if not path.is_file():
            return []
        plain = path.read_bytes()
        new, self._read[name] = plain[self._read[name] :], len(plain)
        return decode_jsonl(new, path)


def step_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one line of `steps.jsonl` as [CONDITION/]ARM/FIELD; nulls, flags and texts are left out."""
    condition = "" if row["condition"] == DEFAULT_CONDITION else f"{row['condition']}/"
    return {
        f"{condition}{row['arm']}/{name}": value
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def evaluation_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The rates of one line of `evals.jsonl` as eval/SETTING/METRIC."""
    return {
        f"eval/{setting.replace(' ', '_')}/{metric}": found["rate"]
        for setting, rates in row["rates"].items()
        for metric, found in rates.items()
        if isinstance(found, dict) and found["rate"] is not None
    }


def _check_installed(name: str) -> None:
    if not any(find_spec(package) for package in PACKAGES[name]):
        package = PACKAGES[name][0]
        fix = f"pip install {package}"
        raise InputError(f"--track {name}", expected=f"the package {package}", found="none", fix=fix)


def _start(name: str, run: str, place: Path) -> Any:
    """An accelerate tracker, started. What is set in the environment already is left as it is."""
    from accelerate.state import PartialState
    from accelerate.tracking import MLflowTracker, TensorBoardTracker, TrackioTracker, WandBTracker

    place.mkdir(parents=True, exist_ok=True)
    here = place.resolve()
    defaults = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(here),
        "TRACKIO_DIR": str(here / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{here / 'mlflow.db'}",
    }
    for variable, value in defaults.items():
        os.environ.setdefault(variable, value)
    makers: dict[str, Callable[[], Any]] = {
        "tensorboard": lambda: TensorBoardTracker(run, here / "tensorboard", purge_step=0),  # hides an earlier telling
        "wandb": lambda: WandBTracker(PROJECT, name=run),
        "trackio": lambda: TrackioTracker(PROJECT, name=run),
        "mlflow": lambda: MLflowTracker(PROJECT, logging_dir=str(here / "mlflow"), run_name=run),
    }
    PartialState(cpu=True)  # without it the adapters refuse to work
    tracker = makers[name]()
    tracker.start()
    return tracker
