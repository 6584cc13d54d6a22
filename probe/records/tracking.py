"""Experiment trackers (TensorBoard, W&B, Trackio, MLflow), through accelerate's adapters.

A tracker is a view of the files of a run, which stay the record: whenever progress is reported, it gets the lines of
`steps.jsonl` and `evals.jsonl` that this process has not sent yet. A resumed run is therefore sent whole, and a
complete run can be sent again. A tracker that raises is dropped; the run goes on.

Nothing leaves the machine unless a tracker's own environment variables say so: W&B runs offline, and everything is
stored under out/tracking/. Torch is imported when a tracker starts, which is after the first step.

To add a tracker: a row in PACKAGES, and a row in `makers` of `_start` (any subclass of accelerate's GeneralTracker).
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

from probe.records.run import CONFIG_FILE, EVALS_FILE, STEPS_FILE
from probe.settings.words import DEFAULT_CONDITION
from replay_pools.base.errors import InputError
from replay_pools.base.files import decode_jsonl, read_json, read_plain
from replay_pools.base.tables import flat
from replay_pools.base.terminal import on_progress

PROJECT = "gradient-probe"
PACKAGES = {  # tracker: packages, any one of which it needs
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
}
TRACKERS = tuple(PACKAGES)


@contextmanager
def tracked(names: Sequence[str], directory: Path, *, out_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Send what the run wrote to the trackers, at every report of progress inside the block and at its end.

    Args:
        names: of TRACKERS.
        directory: of the run; the tracked run has its name.
        out_dir: trackers store in its folder tracking/.
        say: receives a line about each tracker that failed and was dropped.

    Raises:
        InputError: a tracker is not installed.
    """
    for name in names:
        _check_installed(name)
    trackers = _Trackers(names, directory, out_dir / "tracking", say)
    try:
        with on_progress(lambda what, done, total: trackers.update()):
            yield
        trackers.update()
    finally:
        trackers.finish()


class _Trackers:
    """The trackers of one run. Whatever one of them raises is said, and that one is dropped."""

    def __init__(self, names: Sequence[str], directory: Path, folder: Path, say: Callable[[str], None]) -> None:
        self._names = dict.fromkeys(names)  # each once
        self._directory, self._folder, self._say = directory, folder, say
        # Bytes read of each file. Both files only grow while a process runs: lines are added, none is changed.
        self._read = {STEPS_FILE: 0, EVALS_FILE: 0}
        self._begun = False
        self._running: dict[str, Any] = {}

    def update(self) -> None:
        """Send what is new. The trackers start when the run has a config."""
        path = self._directory / CONFIG_FILE
        if not self._begun and path.is_file():
            self._begun = True
            config: dict[str, Any] = {}
            for name, value in flat(read_json(path), lists=True).items():
                config[name] = value if isinstance(value, int | float | str) else str(value)
            for name in self._names:
                self._attempt(name, partial(self._begin, name, config))
        numbers: dict[int, dict[str, float]] = defaultdict(dict)
        for name, numbers_of in ((STEPS_FILE, step_values), (EVALS_FILE, evaluation_values)):
            for row in self._unread(name):
                numbers[row["step"]] |= numbers_of(row)
        for step in sorted(numbers):  # the order that trackers expect
            # A copy: a tracker that fails leaves `_running` inside the loop.
            for name, tracker in [*self._running.items()]:
                self._attempt(name, partial(tracker.log, numbers[step], step=step))

    def finish(self) -> None:
        """Close the trackers that still run."""
        for name, tracker in [*self._running.items()]:
            self._attempt(name, tracker.finish)

    def _begin(self, name: str, config: Mapping[str, Any]) -> None:
        self._running[name] = _start(name, self._directory.name, self._folder)
        self._running[name].store_init_configuration(config)

    def _attempt(self, name: str, action: Callable[[], None]) -> None:
        try:
            # With --json the verb's stdout is one object, and trackers print greetings.
            with redirect_stdout(sys.stderr):
                action()
        # Trackers raise anything, from network to disk errors, and no run should be lost to one.
        except Exception as error:
            self._running.pop(name, None)
            self._say(f"tracker {name} is given up: {' '.join(str(error).split())}; records are in {self._directory}")

    def _unread(self, name: str) -> list[Any]:
        """The lines of a file that were not read yet; this reads them."""
        path = self._directory / name
        plain = read_plain(path) if path.is_file() else b""
        unread, self._read[name] = plain[self._read[name] :], len(plain)
        return decode_jsonl(unread, path)


def step_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one line of `steps.jsonl` as [CONDITION/]ARM/FIELD; nulls, flags and texts are left out."""
    condition = "" if row["condition"] == DEFAULT_CONDITION else f"{row['condition']}/"
    values = {}
    for name, value in row.items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            values[f"{condition}{row['arm']}/{name}"] = value
    return values


def evaluation_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one line of `evals.jsonl`; rates over no rollouts are left out.

    Rates are eval/SETTING/METRIC. Elo is elo/NAME on the ladder of solving, elo/LADDER/NAME on another one.
    """
    values = {}
    for setting, metrics in row["rates"].items():
        for metric, counted in metrics.items():
            # Beside the rates stand plain counts (num_rollouts, num_problems).
            if isinstance(counted, dict) and counted["rate"] is not None:
                values[f"eval/{setting.replace(' ', '_')}/{metric}"] = counted["rate"]
    for ladder, ratings in (row.get("elo") or {}).items():
        for name, rating in ratings.items():
            if rating is not None:  # an end of an interval that nothing bounds
                values[f"elo/{name}" if ladder == "solve" else f"elo/{ladder}/{name}"] = rating
    return values


def _check_installed(name: str) -> None:
    if not any(find_spec(package) for package in PACKAGES[name]):
        package = PACKAGES[name][0]
        fix = f"pip install {package}"
        raise InputError(f"--track {name}", expected=f"the package {package}", found="none", fix=fix)


def _start(name: str, run: str, folder: Path) -> Any:
    """An accelerate tracker, started, that stores in `folder`. Environment variables that are set already win."""
    from accelerate.state import PartialState
    from accelerate.tracking import MLflowTracker, TensorBoardTracker, TrackioTracker, WandBTracker

    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    defaults = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
    }
    for variable, value in defaults.items():
        os.environ.setdefault(variable, value)
    makers: dict[str, Callable[[], Any]] = {
        # purge_step=0 hides what was sent of this run before, since now all of it is sent.
        "tensorboard": lambda: TensorBoardTracker(run, folder / "tensorboard", purge_step=0),
        "wandb": lambda: WandBTracker(PROJECT, name=run),
        "trackio": lambda: TrackioTracker(PROJECT, name=run),
        "mlflow": lambda: MLflowTracker(PROJECT, logging_dir=str(folder / "mlflow"), run_name=run),
    }
    # accelerate's trackers refuse to work in a process without a state.
    PartialState(cpu=True)
    tracker = makers[name]()
    tracker.start()
    return tracker
