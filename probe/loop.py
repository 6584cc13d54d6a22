"""The loop: steps, records, checkpoints, resume. The step computes; only this file writes a run.

A run directory fills in this order: `config.json`; for every step what `before_step` and the source write (in training
evaluations and `rollouts/`), `gram/step_NNN.safetensors` (in a replay), `checkpoint/` (when it trains),
`step_NNN.cos.jsonl.gz` and last `steps.jsonl`, whose lines say which steps are done; at the end `manifest.json`. So a
run that was killed and resumed ends in the same bytes as one that was not. Wall-clock times differ from run to run and
live in `timings.jsonl`, which no hash covers.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from probe.additivity import summarise_additivity
from probe.checkpoint import load_checkpoint, save_checkpoint
from probe.gram import GramRecorder, gram_hashes
from probe.join import sample_records, step_record
from probe.objective import Objective
from probe.optimizer import Stepper
from probe.passes import Bases
from probe.records import StepRecord
from probe.runs import (
    CONFIG_FILE,
    MANIFEST_FILE,
    STEPS_FILE,
    file_hashes,
    other_hashes,
    read_steps,
    write_samples,
    write_steps,
)
from probe.sources import GroupSource
from probe.step import Measure, train_step
from probe.timings import Timings
from replay_pools.errors import InputError
from replay_pools.files import read_json, remove_leftovers, write_json

RUN_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What every step of a run is evaluated with."""

    bases: Bases
    conditions: Mapping[str, Objective]  # by name, the primary first
    measures: Sequence[Measure]  # every arm under every condition, in the order of the records
    planning: Callable[[Sequence[int]], Sequence[bool]]  # marks the planning tokens of a completion
    pad_id: int
    gram: GramRecorder | None  # records the sufficient statistics of the nulls, in the SVD basis
    dtype_noise: Mapping[str, Any] | None  # for the manifest: probe.precision


def open_run(directory: Path, config: Mapping[str, Any]) -> list[StepRecord]:
    """Start or resume a run: writes `config.json` first; returns the step records that are already there.

    Raises:
        InputError: the directory holds a run with another configuration, or something that is not a run.
    """
    path, steps = directory / CONFIG_FILE, directory / STEPS_FILE
    stored = read_json(path) if path.exists() else {}
    if stored.get("verb") == config["verb"] and not steps.exists():
        shutil.rmtree(directory)  # stopped before its first step, by bad input mostly: there is nothing to resume
    if not path.exists():
        if directory.exists() and any(directory.iterdir()):
            raise InputError(directory, expected="a run or an empty directory", found="other files", fix="use --name")
        write_json(path, config)
        return []
    there, wanted = _flat(stored), _flat(orjson.loads(orjson.dumps(config)))
    if different := sorted(key for key in there.keys() | wanted.keys() if there.get(key) != wanted.get(key)):
        key = different[0]
        raise InputError(
            directory,
            expected=f"the run being resumed to have {key} = {wanted.get(key)!r}",
            found=repr(there.get(key)),
            fix="use another --name, or remove the directory",
        )
    return read_steps(steps)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """{dotted name: leaf} of nested objects and lists."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        return {name: value}
    return {k: leaf for key, part in parts for k, leaf in _flat(part, f"{name}.{key}".strip(".")).items()}


def is_complete(directory: Path) -> bool:
    """The manifest, written last, is there."""
    return (directory / MANIFEST_FILE).exists()


def run_steps(
    directory: Path,
    source: GroupSource,
    setup: Setup,
    *,
    done: Sequence[StepRecord],
    timings: Timings,
    stepper: Stepper | None = None,
    before_step: Callable[[int], None] = lambda done: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Run every step that is not done and write the manifest.

    Args:
        done: what `open_run` returned.
        stepper: steps the one arm under the one condition; None leaves the weights frozen.
        before_step: called with the number of steps done, before every step and after the last, and again after a
            resume: it must leave alone what it has done already.
        progress: called with (steps done, steps in all) after every step.
    """
    records = list(done)
    first = 1 + max((record.step for record in records), default=-1)
    if stepper is not None:
        load_checkpoint(directory, first, stepper)
    for step in range(first, source.num_steps):
        start = time.monotonic()
        before_step(step)
        records += _run_step(directory, step, source, setup, stepper)
        write_steps(directory, records)
        timings.write_step(directory, step, time.monotonic() - start)
        progress(step + 1, source.num_steps)
    before_step(source.num_steps)
    if stepper is not None:
        stepper.coordinates.model.save_pretrained(str(directory / "adapter"))
    _write_manifest(directory, source, setup, records)


def _run_step(
    directory: Path, step: int, source: GroupSource, setup: Setup, stepper: Stepper | None
) -> list[StepRecord]:
    """Compute and write one step; its step records are returned for `steps.jsonl`."""
    groups = source.groups(step)
    rollouts = [source.rollout(key) for group in groups for key in group.keys]
    result = train_step(
        setup.bases,
        groups,
        setup.measures,
        conditions=setup.conditions,
        planning=[setup.planning(ids) for group in groups for ids in group.completion_ids],
        pad_id=setup.pad_id,
        stepper=stepper,
        check_whole=step == 0,
    )
    if setup.gram is not None:
        setup.gram.record(step, result.unit["svd"])
    if stepper is not None:
        save_checkpoint(directory, step + 1, stepper)
    write_samples(
        directory, step, [row for arm in result.arms for row in sample_records(groups, rollouts, result, arm)]
    )
    return [step_record(groups, result, arm, setup.conditions[arm.condition]) for arm in result.arms]


def _write_manifest(directory: Path, source: GroupSource, setup: Setup, records: Sequence[StepRecord]) -> None:
    errors = [(record.step, record.additivity_error) for record in records]
    rounding = {own.basis: own.rounding() for own in setup.bases.coordinates}
    dtype = setup.bases.coordinates[0].model.dtype
    manifest = {
        "schema": RUN_SCHEMA,
        "num_steps": source.num_steps,
        "conditions": list(setup.conditions),
        "arms": list(dict.fromkeys(measure.arm.name for measure in setup.measures)),
        "num_modules": {own.basis: len(own.sizes) for own in setup.bases.coordinates},
        "additivity": summarise_additivity(errors, dtype, rounded=any(rounding.values())),
        "dtype_noise": setup.dtype_noise,
        "rounding": rounding,
        "files": file_hashes(directory) | gram_hashes(directory) | other_hashes(directory),
    }
    remove_leftovers(directory)
    write_json(directory / MANIFEST_FILE, manifest)
