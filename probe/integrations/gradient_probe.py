"""GradientProbe: cosines and the gate, on the gradients that another trainer made.

    before_step    g of the model: cosines before and after the gate; with `project`, `.grad` is gated
    after_step     u = coordinates before the step - coordinates after it, the realised update: its cosine

The trainer makes the gradients: its loss, accumulation and mean over processes. The mean has to come before the gate,
and does: a one-sided gate does not commute with it. Only the modules of the directions are measured; whatever else the
optimizer steps is left out of every norm and cosine.

What g is of which model: `probe.integrations.measured`. Mathematics and gates: `probe.step.projection`. To use it in a
new trainer: `probe.integrations`.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from extraction.adapters.frames import SVD_CACHE
from extraction.directions import Directions, known_directions
from probe.integrations.measured import MeasuredWeights
from probe.integrations.processes import Averaged, averaging_groups, unwrapped
from probe.integrations.record_file import RecordFile, directions_sha
from probe.records.records import GradientRecord
from probe.settings.training import GateConfig
from probe.settings.words import Gate
from probe.step.projection import haar_variance, project_modules, sample_cosines
from replay_pools.errors import InputError
from replay_pools.storage.tables import decode

LOGGER = logging.getLogger(__name__)
PREFIX = "probe/"
NO_GRADIENT = "gradient is 0"
NOT_FINITE = "gradient is not finite"
NO_TORCH_FIX = "DeepSpeed keeps gradients in partitions of its own: train with DistributedDataParallel or FSDP2"
REPLACED_FIX = "attach after fully_shard or accelerator.prepare, to the optimizer that trains"
MOST_NAMED = 3
GATED = ("cos_out", "mean_cos_out", "hackward_frac_out", "frac_fired")


class ProbeOptions(TypedDict, total=False):
    """The keywords that `GradientProbe`, `probe.attach` and the callbacks of trainers have in common."""

    project: bool
    gate: Gate
    overshoot: float
    path: str | Path | None
    cache_dir: str | Path | None
    process_group: Averaged


class GradientProbe:
    """Measures the gradient between a backward and an optimizer step, and gates it when `project` is true.

    >>> probe = GradientProbe(model, "v_hack.safetensors")                                          # doctest: +SKIP
    >>> probe.start(optimizer)                                                                      # doctest: +SKIP
    >>> loss.backward(); probe.before_step(0); optimizer.step()                                     # doctest: +SKIP
    >>> probe.after_step().cos_in                                                                   # doctest: +SKIP

    Arguments, and what is refused: as of `probe.attach`.

    Attributes:
        records: list[GradientRecord], one a step.
    """

    def __init__(
        self,
        model: nn.Module,
        directions: Directions | str | Path,
        *,
        project: bool = False,
        gate: Gate = "one_sided",
        overshoot: float = 1.0,
        path: str | Path | None = None,
        cache_dir: str | Path | None = SVD_CACHE,
        process_group: Averaged = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.records: list[GradientRecord] = []
        decode(GateConfig, {"gate": gate, "overshoot": overshoot}, "attach")
        where, directions = known_directions(directions)
        self._wrapped, self._model = model, unwrapped(model)
        self._process_group: Averaged = process_group
        cache_dir = None if cache_dir is None else Path(cache_dir)
        self._measured = MeasuredWeights(
            where, self._model, directions, project=project, cache_dir=cache_dir, scaler=scaler
        )
        _check_sizes(where, directions, self._measured.sizes)
        self._vectors = directions.to(self._measured.device).vectors
        self._gated = partial(project_modules, directions=self._vectors, gate=gate, overshoot=overshoot)
        self._project, self._directions_sha = project, directions_sha(directions)
        self._file = None if path is None else RecordFile(Path(path), self._directions_sha)
        self._has_warned = False
        self._pending: GradientRecord | None = None  # between before_step and after_step

    def start(self, optimizer: object, model: nn.Module | None = None) -> Optimizer:
        """Check the optimizer and begin to watch the model; returns the optimizer, without accelerate's wrapper.

        Args:
            optimizer: that of the loop.
            model: the model in the wrappers that it has got since the probe was made.

        Raises:
            InputError: no torch optimizer (as those of DeepSpeed), or one that does not step what is measured; as
                `probe.integrations.processes`, processes that are not known or not here.
        """
        if isinstance(optimizer, AcceleratedOptimizer):
            optimizer = optimizer.optimizer
        # Those of DeepSpeed, which hold shards of the gradients, are none.
        if not isinstance(optimizer, Optimizer):
            found = type(optimizer).__qualname__
            raise InputError("optimizer", expected="a torch optimizer", found=found, fix=NO_TORCH_FIX)
        if model is not None:
            self._wrapped, self._model = model, unwrapped(model)
        self._optimizer, self._parameters = optimizer, self._measured.stepped()
        stepped = self._stepped()
        # The last of each module: of LoRA that is B, which has a gradient at the start, where that of A is 0.
        witnesses: list[nn.Parameter] = []
        for module, parameters in self._parameters.items():
            if any(id(parameter) not in stepped for parameter in parameters):
                raise InputError(
                    f"optimizer, module {module}",
                    expected="every trained parameter of the module",
                    found="one that it does not step",
                    fix=f"{REPLACED_FIX}; freeze the parameters that it leaves out on purpose",
                )
            witnesses.append(parameters[-1])
        witnesses += [p for p in self._model.parameters() if p.requires_grad and id(p) in stepped]
        if not witnesses:
            raise InputError(
                "optimizer", expected="parameters of the model", found="none", fix="give attach the model it trains"
            )
        self._witness = witnesses[0]
        self._measured.start(self._witness, averaging_groups(self._wrapped, self._process_group))
        return optimizer

    def stop(self) -> None:
        """Stop watching the model; the records stay."""
        self._measured.stop()
        has_acted = any(record.projected and record.frac_fired for record in self.records)
        if self._project and self.records and not has_acted:
            LOGGER.warning("the gate removed nothing in %d steps", len(self.records))

    @property
    def next_step(self) -> int:
        """The number of the next step: that after the last record, which may be in the file already."""
        if self.records:
            return self.records[-1].step + 1
        return 0 if self._file is None else self._file.next_step

    @torch.no_grad()
    def before_step(self, step: int, *, loss_scale: float = 1.0) -> None:
        """Measure what is in `.grad`; with `project`, replace it by the gated gradient.

        Raises:
            InputError: the parameters were replaced since `start`, or none that the optimizer steps has a gradient.

        Args:
            step: number that the record gets.
            loss_scale: factor that a loss scaler left on the gradients. Cosines and gates do not depend on it; the
                recorded norm is divided by it.
        """
        self._check_parameters()
        gradients = self._measured.gradients(loss_scale)
        projection = self._gated(gradients)
        haar_sd = haar_variance(gradients, self._vectors).sqrt()
        measures = _numbers(projection.measures() | {"norm": projection.before.norm, "haar_sd": haar_sd})
        norm = measures.pop("norm")
        reason = None
        if self._measured.unseen:
            norm, reason = None, _not_seen(self._measured.unseen, len(gradients))
        elif norm is None:
            reason = NOT_FINITE
        elif norm == 0:
            reason = NO_GRADIENT
        if reason is not None:
            measures = dict.fromkeys(measures)
        projected = self._project and reason is None
        if projected:
            self._measured.replace_gradients(projection.gradients)
            after = sample_cosines(self._measured.gradients(), self._vectors)
            measures |= _numbers(
                {"cos_out": after.cos, "mean_cos_out": after.mean_cos, "hackward_frac_out": after.hackward_frac}
            )
        record = GradientRecord(
            step=step,
            **measures,
            grad_norm=None if norm is None else norm / loss_scale,
            cos_update=None,
            hackward_frac_update=None,
            projected=projected,
            null_reason=reason,
            directions=self._directions_sha,
        )
        if reason is not None and not self._has_warned:
            self._has_warned = True
            effect = "the gate did nothing" if self._project else "the step has no number"
            LOGGER.warning("step %d: %s: %s; later steps say it in null_reason", step, effect, reason)
        self._measured.remember()
        self._pending = record

    def _stepped(self) -> dict[int, nn.Parameter]:
        """What the optimizer steps, by identity: == of two tensors compares their values."""
        stepped = {}
        for group in self._optimizer.param_groups:
            stepped |= {id(parameter): parameter for parameter in group["params"]}
        return stepped

    def _check_parameters(self) -> None:
        """InputError where a step would be of other parameters than those that are measured and gated."""
        stepped = self._stepped()
        now = self._measured.stepped()
        replaced = [] if id(self._witness) in stepped else ["model"]
        for module, parameters in self._parameters.items():
            is_same = all(one is other for one, other in zip(parameters, now[module], strict=True))
            if not is_same or any(id(parameter) not in stepped for parameter in parameters):
                replaced.append(module)
        if replaced:
            raise InputError(
                f"optimizer.step(), {replaced[-1]}",
                expected="the parameters that the model and the optimizer had when the probe was attached",
                found="others, put in their place since then",
                fix=REPLACED_FIX,
            )
        if all(parameter.grad is None for parameter in stepped.values()):
            raise InputError(
                "optimizer.step()",
                expected="a gradient in `.grad` of some parameter that it steps",
                found=f"none in {len(stepped)}",
                fix=f"call backward before step() and zero_grad() after it; {REPLACED_FIX}",
            )

    @torch.no_grad()
    def after_step(self) -> GradientRecord:
        """Measure the update that the optimizer made since `before_step`; completes the record, writes and returns it.

        The update is turned round, u = before - after, so that like a gradient of the loss it points uphill.
        """
        assert self._pending is not None, "before_step comes first"
        record, update = self._pending, self._measured.update()
        if update is not None:
            cosines = sample_cosines(update, self._vectors)
            realised = _numbers({"cos_update": cosines.cos, "hackward_frac_update": cosines.hackward_frac})
            record = replace(record, **realised)
        self._pending = None
        self.records.append(record)
        if self._file is not None:
            self._file.append(record)
        return record


def means(records: Sequence[GradientRecord]) -> dict[str, float]:
    """{field: mean over the records}; nulls are left out, and so are fields that are no float.

    Where the optimizer got the gradient as it was, what the gate would do to it is called `would_cos_out` and so on.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for name, value in record.to_json().items():
            if isinstance(value, float):
                is_would = name in GATED and not record.projected
                values[f"would_{name}" if is_would else name].append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}


def _check_sizes(where: str, directions: Directions, sizes: Mapping[str, int]) -> None:
    """InputError unless there are directions, of the right length, for exactly these modules."""
    lengths = {module: V.shape[-1] for module, V in directions.vectors.items()}
    differing = [module for module in {**sizes, **lengths} if sizes.get(module) != lengths.get(module)]
    if differing:
        module = differing[0]
        raise InputError(
            f"{where}, module {module}",
            expected=f"{sizes.get(module, 'no')} coordinates",
            found=str(lengths.get(module, "no directions")),
            fix="run probe extract",
        )


def _not_seen(unseen: Sequence[str], num_modules: int) -> str:
    """The reason why a step has no number."""
    more = f" and {len(unseen) - MOST_NAMED} more" if len(unseen) > MOST_NAMED else ""
    named = ", ".join(unseen[:MOST_NAMED]) + more
    return f"no backward came through {len(unseen)} of {num_modules} modules: {named}"


def _numbers(scalars: Mapping[str, Tensor]) -> dict[str, float | None]:
    """The scalars as Python numbers; None for one that is not finite."""
    # Stacked: a GPU waits for one transfer instead of one for every number.
    values = torch.stack([scalar.float() for scalar in scalars.values()]).tolist()
    return {name: value if math.isfinite(value) else None for name, value in zip(scalars, values, strict=True)}
