"""Experiment trackers (TensorBoard, W&B), through accelerate's adapters.

A tracker mirrors the files of a run, which stay the record. At every progress report it gets the lines of `steps.jsonl`
and `evals.jsonl` that this process has not sent yet. So a resumed run is sent from its first step, and a complete run
can be sent again. A tracker that raises is dropped; the run continues.

Nothing leaves the machine unless a tracker's environment variables ask for it: W&B runs offline, and everything is
stored under out/tracking/. Torch is imported when a tracker starts, after the first step.

To add a tracker, add a row to PACKAGES and to `makers` in `_start` (any subclass of accelerate's GeneralTracker).
"""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from typing import Any

from probe.records.run import CONFIG_FILE, EVALS_FILE, STEPS_FILE
from probe.settings.words import DEFAULT_CONDITION
from replay_pools.base.errors import InputError
from replay_pools.base.files import decode_jsonl, read_json, read_plain
from replay_pools.base.tables import flat
from replay_pools.base.terminal import on_progress

PROJECT = "gradient-probe"
PACKAGES = {  # tracker: alternative packages, one of them needed
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
}
TRACKERS = tuple(PACKAGES)


@contextmanager
def tracked(names: Sequence[str], directory: Path, *, out_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Send a run's records to trackers, at every progress report inside the block and at its end.

    Args:
        names: names in TRACKERS.
        directory: the run; the tracked run takes its name.
        out_dir: trackers store in its folder tracking/.
        say: called with a line about each tracker that failed and was dropped.

    Raises:
        InputError: a tracker is not installed.
    """
    for name in names:
        if not any(find_spec(package) for package in PACKAGES[name]):
            package = PACKAGES[name][0]
            fix = f"pip install {package}"
            raise InputError(f"--track {name}", expected=f"the package {package}", found="none", fix=fix)
    # {tracker: it runs, or None until the run has a config}; a tracker that raises is left out.
    trackers: dict[str, Any] = dict.fromkeys(names)
    read = {STEPS_FILE: 0, EVALS_FILE: 0}  # bytes of each file: while a process runs, files only grow

    def attempt(name: str, action: Callable[[Any], Any]) -> None:
        try:
            # Trackers print greetings, and with --json stdout must be one object.
            with redirect_stdout(sys.stderr):
                action(trackers[name])
        # Trackers may raise anything, and no run should be lost to one.
        except Exception as error:
            del trackers[name]
            say(f"tracker {name} is dropped: {' '.join(str(error).split())}; records are in {directory}")

    def begin(name: str) -> None:
        trackers[name] = _start(name, directory.name, out_dir / "tracking")
        values = flat(read_json(directory / CONFIG_FILE), lists=True).items()
        trackers[name].store_init_configuration(
            {key: value if isinstance(value, int | float | str) else str(value) for key, value in values}
        )

    def update() -> None:
        if not (directory / CONFIG_FILE).is_file():
            return
        numbers: dict[int, dict[str, float]] = defaultdict(dict)
        for file, numbers_of in ((STEPS_FILE, step_values), (EVALS_FILE, evaluation_values)):
            path = directory / file
            plain = read_plain(path) if path.is_file() else b""
            new, read[file] = plain[read[file] :], len(plain)
            for row in decode_jsonl(new, path):
                numbers[row["step"]] |= numbers_of(row)
        for name in [name for name, tracker in trackers.items() if tracker is None]:
            attempt(name, lambda _, name=name: begin(name))
        for step in sorted(numbers):  # trackers expect ascending steps
            for name in [*trackers]:
                attempt(name, methodcaller("log", numbers[step], step=step))

    try:
        with on_progress(lambda what, done, total: update()):
            yield
        update()
    finally:
        for name in [name for name, tracker in trackers.items() if tracker is not None]:
            attempt(name, methodcaller("finish"))


def step_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one line of `steps.jsonl` as [CONDITION/]ARM/FIELD."""
    condition = "" if row["condition"] == DEFAULT_CONDITION else f"{row['condition']}/"
    values = {}
    for name, value in row.items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            values[f"{condition}{row['arm']}/{name}"] = value
    return values


def evaluation_values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one line of `evals.jsonl`, without rates over no rollouts.

    Rates are eval/SETTING/METRIC, a monitor's numbers eval/monitor/WEIGHTS/METRIC.
    """
    values = {}
    for setting, metrics in row["rates"].items():
        for metric, counted in metrics.items():
            # num_rollouts and num_problems are plain counts.
            if isinstance(counted, dict) and counted["rate"] is not None:
                values[f"eval/{setting.replace(' ', '_')}/{metric}"] = counted["rate"]
    if row.get("cca") is not None:
        values["eval/cca"] = row["cca"]
    for weights, found in row.get("monitor", {}).items():
        for metric in ("auroc", "recall", "fpr"):
            if found[metric] is not None:
                values[f"eval/monitor/{weights}/{metric}"] = found[metric]
    return values


def _start(name: str, run: str, folder: Path) -> Any:
    """Start an accelerate tracker that stores in `folder`. Environment variables that are already set win."""
    from accelerate.state import PartialState
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_DIR", str(folder))
    makers: dict[str, Callable[[], Any]] = {
        # purge_step=0 hides earlier data of this run, because all of it is sent again.
        "tensorboard": lambda: TensorBoardTracker(run, folder / "tensorboard", purge_step=0),
        "wandb": lambda: WandBTracker(PROJECT, name=run),
    }
    # accelerate's trackers need a process state.
    PartialState(cpu=True)
    tracker = makers[name]()
    tracker.start()
    return tracker
