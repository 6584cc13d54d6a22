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
    # {tracker: it runs, or None before the first numbers}; a tracker that raises is left out.
    trackers: dict[str, Any] = dict.fromkeys(names)
    read = {STEPS_FILE: 0, EVALS_FILE: 0}  # bytes of each file: while a process runs, files only grow

    def attempt(name: str, action: str, *arguments: Any, **options: Any) -> None:
        try:
            # Trackers print greetings, and with --json stdout must be one object.
            with redirect_stdout(sys.stderr):
                trackers[name] = trackers[name] or _start(name, directory, out_dir / "tracking")
                getattr(trackers[name], action)(*arguments, **options)
        # Trackers may raise anything, and no run should be lost to one.
        except Exception as error:
            del trackers[name]
            say(f"tracker {name} is dropped: {' '.join(str(error).split())}; records are in {directory}")

    def update() -> None:
        numbers: dict[int, dict[str, float]] = defaultdict(dict)
        for file, num_read in read.items():
            path = directory / file
            plain = read_plain(path) if path.is_file() else b""
            read[file] = len(plain)
            for row in decode_jsonl(plain[num_read:], path):
                numbers[row["step"]] |= numbers_of(row)
        for step in sorted(numbers):  # trackers expect ascending steps
            for name in [*trackers]:
                attempt(name, "log", numbers[step], step=step)

    try:
        with on_progress(lambda what, done, total: update()):
            yield
        update()
    finally:
        for name in [name for name, tracker in trackers.items() if tracker is not None]:
            attempt(name, "finish")


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line: [CONDITION/]ARM/FIELD of a step, eval/FIELD, as eval/rates/all/hack/rate."""
    place = f"{row.get('arm', 'eval')}/"
    if row.get("condition", DEFAULT_CONDITION) != DEFAULT_CONDITION:
        place = f"{row['condition']}/{place}"
    values = {}
    for name, value in flat(row).items():
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            values[place + name.replace(".", "/").replace(" ", "_")] = value
    return values


def _start(name: str, directory: Path, folder: Path) -> Any:
    """Start an accelerate tracker that stores in `folder`. Environment variables that are already set win."""
    from accelerate.state import PartialState
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    folder.mkdir(parents=True, exist_ok=True)
    folder, run = folder.resolve(), directory.name
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
    settings = flat(read_json(directory / CONFIG_FILE), lists=True).items()
    tracker.store_init_configuration(
        {key: value if isinstance(value, int | float | str) else str(value) for key, value in settings}
    )
    return tracker
