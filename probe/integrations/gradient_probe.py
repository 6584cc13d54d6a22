"""GradientProbe: the measures and the gate of the step, on gradients that another trainer left in `.grad`.

    before the optimizer steps   g from `.grad` -> cosines before and after the gate; where asked, `.grad` becomes g'
    after it                     u = before - after, the realised update -> its cosine

What reaches `.grad` is the trainer's business: its loss, its accumulation, its mean over processes (which does come
before the gate, as it must: a one-sided gate does not commute with the mean), its clipping. Only the adapter's
parameters are measured; others that the optimizer also steps count in nothing.

r coordinates of a module, k directions.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate.optimizer import AcceleratedOptimizer
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from extraction.adapters.coordinates import Coordinates, check_fingerprint
from extraction.adapters.existing import existing_coordinates
from extraction.directions import Directions, load_directions
from probe.records.records import GradientRecord
from probe.step.projection import Gate, haar_variance, project_modules, sample_cosines
from replay_pools.errors import InputError
from replay_pools.files import append_jsonl

NO_GRADIENT = "gradient is 0"
NOT_FINITE = "gradient is not finite"
SHARDED_FIX = "a gate needs whole gradients: train the adapter with plain data parallelism"
MEASURES = (
    *("cos_in", "cos_out", "mean_cos_in", "mean_cos_out", "hackward_frac_in", "hackward_frac_out", "frac_fired"),
    "norm_in",
)


class GradientProbe:
    """Measures, and gates when `project` says so, between a backward and an optimizer step.

    Args:
        model: an unwrapped peft model with an adapter `delta_S` or LoRA.
        directions: those of this very basis, or their file.
        project: hand the gated gradient to the optimizer.
        gate: with `overshoot` and `preserve_magnitude` as in `probe.step.projection`.
        path: a new file to which every record is added as a line of JSON; None keeps them in memory alone.

    Attributes:
        records: one a step.

    Raises:
        InputError: directions of another basis, or none at all; sharded parameters; `path` exists.
    """

    def __init__(
        self,
        model: PeftModel,
        directions: Directions | str | Path,
        *,
        project: bool = False,
        gate: Gate = "one_sided",
        overshoot: float = 1.0,
        preserve_magnitude: bool = False,
        path: str | Path | None = None,
    ) -> None:
        self.records: list[GradientRecord] = []
        self._coordinates, own = _matched(model, directions)
        self._vectors = own.to(self._coordinates.parameters()[0].device).vectors
        self._gated = partial(
            project_modules,
            directions=self._vectors,
            gate=gate,
            overshoot=overshoot,
            preserve_magnitude=preserve_magnitude,
        )
        self._project, self._path = project, None if path is None else Path(path)
        if self._path is not None and self._path.exists():
            raise InputError(self._path, expected="a new file", found="one that exists", fix="name another")
        self._pending: tuple[GradientRecord, dict[str, Tensor]] | None = None  # and the coordinates before the step

    def check_optimizer(self, optimizer: object) -> Optimizer:
        """The torch optimizer below accelerate's wrapper; refused unless it steps every coordinate itself."""
        if isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        if any(kind.__module__.partition(".")[0] == "deepspeed" for kind in type(optimizer).__mro__):
            raise InputError("optimizer", expected="a torch optimizer", found="one of DeepSpeed", fix=SHARDED_FIX)
        if not isinstance(optimizer, Optimizer):
            raise InputError("optimizer", expected="a torch optimizer", found=type(optimizer).__name__)
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for module in self._coordinates.layers:
            if any(id(parameter) not in stepped for parameter in self._coordinates.trainable(module)):
                raise InputError(
                    f"optimizer, adapter of {module}",
                    expected="every trainable parameter of the adapter",
                    found="one that it does not step",
                    fix="build the optimizer from the parameters of the adapted model",
                )
        return optimizer

    @torch.no_grad()
    def before_step(self, step: int, *, loss_scale: float = 1.0) -> None:
        """Measure what lies in `.grad`, and gate it there where that was asked for.

        Args:
            step: number of the record.
            loss_scale: what a loss scaler has multiplied the gradients with; cosines and gates do not depend on it.
        """
        gradients = self._coordinates.gradients()
        projection = self._gated(gradients)
        haar_sd = haar_variance(gradients, self._vectors).cos.sqrt()
        measures = _numbers({name: getattr(projection, name) for name in MEASURES} | {"haar_sd": haar_sd})
        norm = measures.pop("norm_in")
        reason = NOT_FINITE if norm is None else NO_GRADIENT if norm == 0 else None
        record = GradientRecord(
            step=step,
            **(measures if reason is None else dict.fromkeys(measures)),
            grad_norm=None if norm is None else norm / loss_scale,
            cos_update=None,
            hackward_frac_update=None,
            projected=self._project and reason is None,
            null_reason=reason,
        )
        if record.projected:
            self._coordinates.replace_gradients(projection.gradients)
        self._pending = record, self._coordinates.values()

    @torch.no_grad()
    def after_step(self) -> GradientRecord:
        """Measure the update that the optimizer made since `before_step`; the record is complete, and written."""
        assert self._pending is not None, "before_step comes first"
        record, before = self._pending
        after = self._coordinates.values()
        update = sample_cosines({module: before[module] - after[module] for module in before}, self._vectors)
        realised = _numbers({"cos_update": update.cos, "hackward_frac_update": update.hackward_frac})
        record, self._pending = replace(record, **realised), None
        self.records.append(record)
        if self._path is not None:
            append_jsonl(self._path, record.to_json())
        return record


def _matched(model: PeftModel, directions: Directions | str | Path) -> tuple[Coordinates, Directions]:
    """The coordinates of `model` and directions of the same basis."""
    if isinstance(directions, Directions):
        where, own = "directions", directions
    else:
        where, own = str(directions), load_directions(Path(directions))
    fingerprint = own.metadata.get("fingerprint")
    if not fingerprint or not own.num_directions():
        found = "no direction: all fell below the noise floor" if fingerprint else "no fingerprint"
        raise InputError(where, expected="directions with the fingerprint of their basis", found=found)
    _check_whole(model)
    coordinates = existing_coordinates(model, like=fingerprint)
    check_fingerprint(where, expected=coordinates.fingerprint(), found=fingerprint)
    return coordinates, own


def _check_whole(model: nn.Module) -> None:
    """Refuse parameters that hold a part only (FSDP 2 and other DTensors, FSDP 1), or that lie on several devices."""
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    if sharded or any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise InputError("model", expected="whole parameters", found="sharded ones", fix=SHARDED_FIX)
    devices = sorted({str(parameter.device) for parameter in model.parameters() if parameter.requires_grad})
    if len(devices) > 1:
        found = f"one on {', '.join(devices)}"
        raise InputError("model", expected="an adapter on one device", found=found, fix="load it without a device_map")


def _numbers(scalars: Mapping[str, Tensor]) -> dict[str, float | None]:
    """The scalars in one transfer from their device; None where one is not finite."""
    values = torch.stack([value.float() for value in scalars.values()]).tolist()
    return {name: value if math.isfinite(value) else None for name, value in zip(scalars, values, strict=True)}
