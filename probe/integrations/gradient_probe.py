"""GradientProbe: cosines and the projection, on the gradients that another trainer made.

The trainer makes the gradients: its loss, accumulation and mean over processes. The mean has to come before the
projection, since a one-sided one does not commute with it. Only the modules of the directions are measured; all else
that the optimizer steps is left out of every norm and cosine.
"""

import logging
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from extraction.adapters.frames import SVD_CACHE
from extraction.adapters.svd import checksum
from extraction.directions import Directions, known_directions
from probe.integrations.measured import REPLACED_FIX, Measured
from probe.integrations.processes import Averaged, averaging_groups, unwrapped
from probe.records.records import GradientRecord
from probe.settings.training import ProjectionConfig
from probe.settings.words import Side
from probe.step.projection import haar_variance, project_modules, sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.base.files import append_jsonl, decode_jsonl, encode_jsonl, write_atomic
from replay_pools.base.tables import decode

LOGGER = logging.getLogger(__name__)
PREFIX = "probe/"
DIGITS = 16  # of the sha256 of all vectors, which names directions in a record
PROJECTED = ("cos_out", "mean_cos_out", "hackward_frac_out", "frac_fired")


class ProbeOptions(TypedDict, total=False):
    """The keywords that `probe.attach` and the callbacks of trainers pass to `GradientProbe`."""

    project: bool
    side: Side
    overshoot: float
    path: str | Path | None
    cache_dir: str | Path | None
    process_group: Averaged


class GradientProbe:
    """Measures the gradient between a backward and an optimizer step, and projects it where `project` is true.

    Arguments and refusals: see `probe.attach`; use: see `probe.integrations`.

    Attributes:
        records: list[GradientRecord], one a step.
        next_step: the number of the step after the last record, which may be in the file already.
    """

    def __init__(
        self,
        model: nn.Module,
        directions: Directions | str | Path,
        *,
        project: bool = False,
        side: Side = "one_sided",
        overshoot: float = 1.0,
        path: str | Path | None = None,
        cache_dir: str | Path | None = SVD_CACHE,
        process_group: Averaged = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.records: list[GradientRecord] = []
        decode(ProjectionConfig, {"side": side, "overshoot": overshoot}, "attach")
        where, directions = known_directions(directions)
        self._wrapped, self._scaler = model, scaler
        self._process_group: Averaged = process_group
        cache_dir = None if cache_dir is None else Path(cache_dir)
        self._measured = Measured(where, unwrapped(model), directions, project=project, cache_dir=cache_dir)
        self._vectors = directions.to(self._measured.device).vectors
        self._projection = partial(project_modules, directions=self._vectors, side=side, overshoot=overshoot)
        self._project, self._directions_sha = project, checksum(*directions.vectors.values())[:DIGITS]
        self._file = None if path is None else RecordFile(Path(path), self._directions_sha)
        self.next_step = 0 if self._file is None else self._file.next_step
        self._pending: dict[str, Any] = {}  # fields of the record, between before_step and after_step

    def start(self, optimizer: object, model: nn.Module | None = None) -> Optimizer:
        """Begin to watch the model; return the optimizer without accelerate's wrapper.

        Args:
            optimizer: steps the model in the loop.
            model: with its present wrappers, if it got them after the probe was made.

        Raises:
            InputError: no torch optimizer; else as `Measured.start`.
        """
        if isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        if not isinstance(optimizer, Optimizer):
            found, fix = type(optimizer).__qualname__, "in place of DeepSpeed use DistributedDataParallel or FSDP2"
            raise InputError("optimizer", expected="a torch optimizer", found=found, fix=fix)
        if model is not None:
            unwrapped(model)
            self._wrapped = model
        self._optimizer = optimizer
        groups = averaging_groups(self._wrapped, self._process_group)
        self._measured.start(stepped_by(optimizer), groups, self._scaler)
        return optimizer

    def stop(self) -> None:
        """Stop watching the model; the records stay."""
        self._measured.stop()
        if not self._project or not self.records:
            return
        if not any(record.projected and record.frac_fired for record in self.records):
            LOGGER.warning("the projection removed nothing in %d steps", len(self.records))
        elif (share := means(self.records).get("hackward_frac_update")) is not None:
            LOGGER.info("%.1f%% of the realised updates (norm) still point toward the hack", 100 * share)

    @torch.no_grad()
    def before_step(self, step: int, *, loss_scale: float = 1.0) -> None:
        """Measure the gradient in `.grad`; with `project`, replace it by the projected one.

        Args:
            step: number that the record gets.
            loss_scale: factor that a loss scaler left on the gradients. Cosines do not depend on it; the recorded norm
                is divided by it.

        Raises:
            InputError: the optimizer leaves out trained parameters, or none of its parameters has a gradient.
        """
        stepped = stepped_by(self._optimizer)
        has_changed = self._measured.refresh(stepped)
        if all(parameter.grad is None for parameter in stepped):
            raise InputError(
                "optimizer.step()",
                expected="a gradient in `.grad` of some parameter that it steps",
                found=f"none in {len(stepped)}",
                fix=f"call backward before step() and zero_grad() after it; {REPLACED_FIX}",
            )
        gradients = self._measured.gradients(loss_scale)
        projection = self._projection(gradients)
        haar_sd = haar_variance(gradients, self._vectors).sqrt()
        measures = _numbers(projection.measures() | {"norm": projection.before.norm, "haar_sd": haar_sd})
        norm, reason = measures.pop("norm"), self._measured.reason
        if reason is not None:
            norm = None
        elif not norm:
            reason = "gradient is not finite" if norm is None else "gradient is 0"
        projected = self._project and reason is None
        if projected:
            self._measured.project(self._vectors, projection.gradients)
            after = sample_cosines(self._measured.gradients(), self._vectors)
            measures |= _numbers(
                {"cos_out": after.cos, "mean_cos_out": after.mean_cos, "hackward_frac_out": after.hackward_frac}
            )
        self._pending = measures if reason is None else {}
        self._pending |= {
            "step": step,
            "grad_norm": None if norm is None else norm / loss_scale,
            "projected": projected,
            "changed": has_changed,
            "null_reason": reason,
        }
        self._measured.remember()

    @torch.no_grad()
    def after_step(self) -> GradientRecord:
        """Measure the realised update, before - after, which points uphill as a gradient does; write the record."""
        if (update := self._measured.update()) is not None:
            cosines = sample_cosines(update, self._vectors)
            self._pending |= _numbers({"cos_update": cosines.cos, "hackward_frac_update": cosines.hackward_frac})
        return self._keep(self._pending)

    def see_other(self, optimizer: Optimizer) -> None:
        """Record, without numbers, a step that another optimizer is making, if it moves modules of the directions."""
        if self._measured.is_moved_by(stepped_by(optimizer)):
            reason = "another optimizer than the attached one moved the modules: attach to the optimizer that trains"
            self._keep({"step": self.next_step, "null_reason": reason})

    def _keep(self, values: dict[str, Any]) -> GradientRecord:
        """Write a record, null in the fields without a value; warn at the first one without numbers."""
        null: dict[str, Any] = dict.fromkeys(field.name for field in fields(GradientRecord))
        standing = {"projected": False, "changed": False, "directions": self._directions_sha}
        record = GradientRecord(**null | standing | values)
        reason = record.null_reason
        if reason is not None and all(earlier.null_reason is None for earlier in self.records):
            effect = "nothing was projected" if self._project else "the step has no number"
            LOGGER.warning("step %d: %s: %s; later steps say it in null_reason", record.step, effect, reason)
        self.records.append(record)
        self.next_step = record.step + 1
        if self._file is not None:
            self._file.append(record)
        return record


def stepped_by(optimizer: Optimizer) -> set[nn.Parameter]:
    """Return the parameters of an optimizer."""
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def means(records: Sequence[GradientRecord]) -> dict[str, float]:
    """Return {field: mean over the records that have it}; effects of a projection not made are `would_cos_out` etc."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.to_json().items():
            if isinstance(value, float):
                is_would = name in PROJECTED and not record.projected
                values[f"would_{name}" if is_would else name].append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}


def _numbers(scalars: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Return the scalars as Python numbers; None for one that is not finite."""
    # Stacked: a GPU waits for one transfer instead of one for every number.
    values = torch.stack([scalar.float() for scalar in scalars.values()]).tolist()
    return {name: value if math.isfinite(value) else None for name, value in zip(scalars, values, strict=True)}


class RecordFile:
    """Appends records, a JSON line a step, to a new file or an earlier one; steps that are repeated are replaced.

    Raises:
        InputError: records along other `directions`, or another kind of file.
    """

    def __init__(self, path: Path, directions: str) -> None:
        self._path, self.next_step = path, 0  # the number after the last record
        if not path.exists():
            return
        # A process that was killed may have left a part of a line.
        complete = path.read_bytes().rpartition(b"\n")[0]
        for number, line in enumerate(complete.splitlines(), 1):
            record = GradientRecord.parse(line, f"{path} line {number}")
            self.next_step = record.step + 1
            if record.directions != directions:
                where, expected = f"{path} line {number}", f"a record along the directions {directions}"
                raise InputError(where, expected=expected, found=record.directions, fix="name another file")
        os.truncate(path, len(complete) + bool(complete))

    def append(self, record: GradientRecord) -> None:
        """Add a record; one of the same step or a later one, from before a requeue, is left out first."""
        if record.step < self.next_step:
            rows = decode_jsonl(self._path.read_bytes(), self._path)
            write_atomic(self._path, encode_jsonl(row for row in rows if row["step"] < record.step))
        append_jsonl(self._path, record.to_json())
        self.next_step = record.step + 1
