"""probe.attach: cosines and the projection in another trainer's loop, on the hooks of `optimizer.step()`.

The trainer makes the gradients: its loss, accumulation and mean over processes. The mean has to come before the
projection, since a one-sided one does not commute with it. The hooks run after everything that the loop did to the
gradient (accumulation, `unscale_`, `clip_grad_norm_`). Clipping by norm changes no cosine. The one_sided and two_sided
projections only shorten a gradient, so a clipped one stays below its cap. Only the modules of the directions are
measured; all else that the optimizer steps is left out of every norm and cosine.
"""

import logging
import math
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, Self, final
from weakref import WeakMethod

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from extraction.adapters.frames import SVD_CACHE
from extraction.adapters.svd import checksum
from extraction.directions import Directions, known_directions
from probe.integrations.measured import REPLACED_FIX, Measured
from probe.integrations.processes import averaging_groups, unwrapped
from probe.records.records import GradientRecord
from probe.settings.training import ProjectionConfig
from probe.settings.words import Side
from probe.step.projection import Projection, haar_variance, project_modules, sample_cosines
from replay_pools.base.errors import InputError
from replay_pools.base.files import append_jsonl, decode_jsonl, encode_jsonl, write_atomic
from replay_pools.base.tables import decode

LOGGER = logging.getLogger(__name__)
PREFIX = "probe/"
DIGITS = 16  # of the sha256 of all vectors, which names directions in a record
PROJECTED = ("cos_out", "mean_cos_out", "hackward_frac_out", "frac_fired")


def attach(
    optimizer: Optimizer,
    directions: Directions | str | Path,
    *,
    model: nn.Module,
    project: bool = False,
    side: Side = "one_sided",
    overshoot: float = 1.0,
    scaler: torch.amp.GradScaler | None = None,
    first_step: int | None = None,
    log: Callable[..., object] | None = None,
    path: str | Path | None = None,
    cache_dir: str | Path | None = SVD_CACHE,
) -> "Attached":
    """Measure every optimizer step against `directions`; with `project`, the optimizer gets the projected gradient.

    Any model is measured, whatever is trained of it (spec/guide/trainers.md). Each step takes the parameters that are
    trained then; `changed` in the record marks a difference from the step before. A step that cannot be measured has no
    numbers, is not projected, and gives the cause in `null_reason`.

    >>> import torch
    >>> model = probe.load("organism").model.requires_grad_(True)
    >>> optimizer, ids = torch.optim.SGD(model.parameters(), lr=1e-3), torch.arange(8)[None]
    >>> with probe.attach(optimizer, "v_hack", model=model) as attached:
    ...     model(input_ids=ids, labels=ids).loss.backward()
    ...     optimizer.step()
    >>> len(attached.records)
    1

    Args:
        optimizer: any torch optimizer, or accelerate's wrapper of one, that trains `model`.
        directions: `Directions`, or a file of `probe extract`, or its name; of the weights that `model` has now.
        model: any model, also with adapters of peft, in DistributedDataParallel, or after `fully_shard`.
        project: put the projected gradient into `.grad`; needs trained weights, plain LoRA or `delta_S`.
        side: "one_sided" or "two_sided", with `overshoot`: see `probe.step.projection`.
        scaler: the GradScaler of the loop, needed where taps measure, since they see gradients before `unscale_`.
            Accelerate's wrapper brings its own.
        first_step: the number of the first step; None goes on after the last record in `path`. A loop that resumes from
            an older checkpoint gives its own; later records are replaced.
        log: called as log({name: mean}, step=number) after every step: `accelerator.log`, `wandb.log` and so on.
        path: a file for the records, a JSON line a step (`GradientRecord` in spec/SCHEMA.md), which goes on if it
            exists. With several processes, attach in all of them, and give it in one.
        cache_dir: the folder where `probe extract` left the SVDs; None computes them.

    Returns:
        A handle with `records` and their `means()`. `detach()`, or the end of its `with` block, removes the probe.

    Raises:
        InputError: directions of other weights, an adapter that uses its weight twice, `project` where no projection is
            defined, parameters that the optimizer does not step, DeepSpeed, FSDP1, several processes without a wrapper
            that says which of them train `model`, or that do not attach, an
            unknown side, a `path` of other directions. In the loop: a closure, `create_graph=True`, `maximize=True`,
            parameters that the optimizer no longer steps.
    """
    decode(ProjectionConfig, {"side": side, "overshoot": overshoot}, "attach")
    if isinstance(optimizer, AcceleratedOptimizer):
        scaler, optimizer = scaler or optimizer.scaler, optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        found, fix = type(optimizer).__qualname__, "in place of DeepSpeed use DistributedDataParallel or FSDP2"
        raise InputError("optimizer", expected="a torch optimizer", found=found, fix=fix)
    where, directions = known_directions(directions)
    cache_dir = None if cache_dir is None else Path(cache_dir)
    name = checksum(*directions.vectors.values())[:DIGITS]
    file = None if path is None else RecordFile(Path(path), name)
    groups, options = averaging_groups(model), {"project": project, "cache_dir": cache_dir}
    measured = Measured(where, unwrapped(model), directions, stepped_by(optimizer), groups, scaler, **options)
    vectors = directions.to(measured.device).vectors
    projection = partial(project_modules, directions=vectors, side=side, overshoot=overshoot)
    first = first_step if first_step is not None else 0 if file is None else file.next_step
    return Attached(optimizer, measured, vectors, projection, first, project=project, name=name, file=file, log=log)


@final
class Attached:
    """A probe on the hooks of an optimizer, until `detach()`; made by `attach`.

    Attributes:
        records: list[GradientRecord], one for every step since the probe was attached.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        measured: Measured,
        vectors: Mapping[str, Tensor],
        projection: Callable[[Mapping[str, Tensor]], Projection],
        first_step: int,
        *,
        project: bool,
        name: str,
        file: "RecordFile | None",
        log: Callable[..., object] | None,
    ) -> None:
        self.records: list[GradientRecord] = []
        self._next_step = first_step
        self._optimizer, self._measured, self._vectors, self._projection = optimizer, measured, vectors, projection
        self._project, self._name, self._file, self._log = project, name, file, log
        self._pending: dict[str, Any] = {}  # fields of the record, between the hooks before and after a step
        self._step: FrameType | None = None  # the running call of `optimizer.step()`
        self._num_before = 0
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            register_optimizer_step_pre_hook(_weak(self._before_any)),
            register_optimizer_step_post_hook(_weak(self._after_any)),
        ]

    def means(self) -> dict[str, float]:
        """Return {field: mean over the records}; effects of a projection that was not made are `would_cos_out` etc."""
        return means(self.records)

    def detach(self) -> None:
        """Remove the hooks; the records stay."""
        for handle in self._handles:
            handle.remove()
        self._measured.stop()
        if not self._project or not self.records:
            return
        if not any(record.projected and record.frac_fired for record in self.records):
            LOGGER.warning("the projection removed nothing in %d steps", len(self.records))
        elif (share := self.means().get("hackward_frac_update")) is not None:
            LOGGER.info("%.1f%% of the realised updates (norm) still point toward the hack", 100 * share)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A subclass may call super().step(), which has hooks too: the outermost call is the step.
        if self._is_stepping():
            return
        # args[0] is the optimizer; what else `step` was given is a closure, by position or by name.
        if any(value is not None for value in (*args[1:], kwargs.get("closure"))):
            raise InputError(
                "optimizer.step()",
                expected="no closure, which would make new gradients",
                found="one",
                fix="call backward, then step()",
            )
        # torch sets the attribute while a fused optimizer steps, which unscales inside its kernel, after this hook.
        scale = getattr(optimizer, "grad_scale", None)
        self._pending = self._measure(1.0 if scale is None else float(scale))
        self._step = sys._getframe(1)

    def _after(self, *_: object) -> None:
        if sys._getframe(1) is self._step:
            self._step = None
            record = self._keep(self._pending | self._realised())
            if self._log is not None:
                self._log({PREFIX + name: mean for name, mean in means([record]).items()}, step=record.step)

    def _before_any(self, optimizer: Optimizer, *_: object) -> None:
        if optimizer is not self._optimizer:
            self._num_before = len(self.records)

    def _after_any(self, optimizer: Optimizer, *_: object) -> None:
        """Record the step of an optimizer made after attach, which neither wraps the attached one nor lies in it."""
        has_recorded = len(self.records) > self._num_before
        if optimizer is self._optimizer or has_recorded or self._is_stepping():
            return
        if self._measured.is_moved_by(stepped_by(optimizer)):
            reason = "another optimizer than the attached one moved the modules: attach to the optimizer that trains"
            self._keep({"step": self._next_step, "null_reason": reason})

    def _is_stepping(self) -> bool:
        """Return whether the step is still on the stack; one that has raised is not."""
        return any(frame is self._step for frame, _ in walk_stack(sys._getframe(1)))

    @torch.no_grad()
    def _measure(self, loss_scale: float) -> dict[str, Any]:
        """Measure the gradient in `.grad`, and with `project` replace it by the projected one; return what is recorded.

        Args:
            loss_scale: factor that a loss scaler left on the gradients. Cosines do not depend on it; the recorded norm
                is divided by it.

        Raises:
            InputError: the optimizer maximises, leaves out trained parameters, or has no gradient in any.
        """
        if any(group.get("maximize") for group in self._optimizer.param_groups):
            where, expected = "optimizer", "a loss that it minimises, since a step along +g turns every sign"
            raise InputError(where, expected=expected, found="maximize=True", fix="minimise the loss times -1")
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
        self._measured.remember()
        return (measures if reason is None else {}) | {
            "step": self._next_step,
            "grad_norm": None if norm is None else norm / loss_scale,
            "projected": projected,
            "changed": has_changed,
            "null_reason": reason,
        }

    @torch.no_grad()
    def _realised(self) -> dict[str, float | None]:
        """Measure the realised update, before - after, which points uphill as a gradient does."""
        if (update := self._measured.update()) is None:
            return {}
        cosines = sample_cosines(update, self._vectors)
        return _numbers({"cos_update": cosines.cos, "hackward_frac_update": cosines.hackward_frac})

    def _keep(self, values: dict[str, Any]) -> GradientRecord:
        """Write a record, null in the fields without a value; warn at the first one without numbers."""
        null: dict[str, Any] = dict.fromkeys(field.name for field in fields(GradientRecord))
        standing = {"projected": False, "changed": False, "directions": self._name}
        record = GradientRecord(**null | standing | values)
        reason = record.null_reason
        if reason is not None and all(earlier.null_reason is None for earlier in self.records):
            effect = "nothing was projected" if self._project else "the step has no number"
            LOGGER.warning("step %d: %s: %s; later steps say it in null_reason", record.step, effect, reason)
        self.records.append(record)
        self._next_step = record.step + 1
        if self._file is not None:
            self._file.append(record)
        return record


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that does not keep its object, and with it a model, alive."""
    reference = WeakMethod(method)
    return lambda *args: None if (alive := reference()) is None else alive(*args)


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
