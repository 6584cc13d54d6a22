"""probe.attach: a `GradientProbe` on the hooks of `optimizer.step()`.

The hooks run after everything that the loop did to the gradient (accumulation, `unscale_`, `clip_grad_norm_`). Clipping
by norm changes no cosine. The one_sided and two_sided projections only shorten a gradient, so a clipped one stays below
its cap.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, Self, Unpack
from weakref import WeakMethod

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from extraction.directions import Directions
from probe.integrations.gradient_probe import PREFIX, GradientProbe, ProbeOptions, means
from probe.records.records import GradientRecord
from replay_pools.base.errors import InputError


def attach(
    optimizer: Optimizer,
    directions: Directions | str | Path,
    *,
    model: nn.Module,
    scaler: torch.amp.GradScaler | None = None,
    first_step: int | None = None,
    log: Callable[..., object] | None = None,
    **options: Unpack[ProbeOptions],
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
        scaler: the GradScaler of the loop, needed where taps measure, since they see gradients before `unscale_`.
            Accelerate's wrapper brings its own.
        project: put the projected gradient into `.grad` (False); needs trained weights, plain LoRA or `delta_S`.
        side: "one_sided" (the default) or "two_sided", with `overshoot` (1.0): see `probe.step.projection`.
        first_step: the number of the first step; None goes on after the last record in `path`. A loop that resumes from
            an older checkpoint gives its own; later records are replaced.
        log: called as log({name: mean}, step=number) after every step: `accelerator.log`, `wandb.log` and so on.
        path: a file for the records, a JSON line a step (`GradientRecord` in spec/SCHEMA.md), which goes on if it
            exists. With several processes, attach in all of them, and give it in one.
        cache_dir: the folder where `probe extract` left the SVDs (out/cache/svd); None computes them.
        process_group: over which the gradient is averaged, where several processes run and no wrapper of `model` says
            it; "self" where every process trains another model.

    Returns:
        A handle with `records` and their `means()`. `detach()`, or the end of its `with` block, removes the probe.

    Raises:
        InputError: directions of other weights, an adapter that uses its weight twice, `project` where no projection is
            defined, parameters that the optimizer does not step, DeepSpeed, FSDP1, processes that do not attach, an
            unknown side, a `path` of other directions. In the loop: a closure, `create_graph=True`, parameters that the
            optimizer no longer steps.
    """
    if scaler is None and isinstance(optimizer, AcceleratedOptimizer):
        scaler = optimizer.scaler
    probe = GradientProbe(model, directions, scaler=scaler, **options)
    if first_step is not None:
        probe.next_step = first_step
    return Attached(probe, probe.start(optimizer), log)


class Attached:
    """A GradientProbe on the hooks of an optimizer, until `detach()`; made by `attach`."""

    def __init__(self, probe: GradientProbe, optimizer: Optimizer, log: Callable[..., object] | None) -> None:
        self._probe, self._log = probe, log
        self._step: FrameType | None = None  # the running call of `optimizer.step()`
        self._optimizer, self._num_before = optimizer, 0
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            register_optimizer_step_pre_hook(_weak(self._before_any)),
            register_optimizer_step_post_hook(_weak(self._after_any)),
        ]

    @property
    def records(self) -> list[GradientRecord]:
        """One record for every step since the probe was attached."""
        return self._probe.records

    def means(self) -> dict[str, float]:
        """Return {field: mean over the records}; effects of a projection that was not made are `would_cos_out` etc."""
        return means(self.records)

    def detach(self) -> None:
        """Remove the hooks; the records stay."""
        self._probe.stop()
        for handle in self._handles:
            handle.remove()

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
        self._probe.before_step(self._probe.next_step, loss_scale=1.0 if scale is None else float(scale))
        self._step = sys._getframe(1)

    def _after(self, *_: object) -> None:
        if sys._getframe(1) is self._step:
            self._step = None
            record = self._probe.after_step()
            if self._log is not None:
                self._log({PREFIX + name: mean for name, mean in means([record]).items()}, step=record.step)

    def _before_any(self, optimizer: Optimizer, *_: object) -> None:
        if optimizer is not self._optimizer:
            self._num_before = len(self.records)

    def _after_any(self, optimizer: Optimizer, *_: object) -> None:
        """Record the step of an optimizer made after attach, which neither wraps the attached one nor lies in it."""
        has_recorded = len(self.records) > self._num_before
        if optimizer is not self._optimizer and not has_recorded and not self._is_stepping():
            self._probe.see_other(optimizer)

    def _is_stepping(self) -> bool:
        """Return whether the step is still on the stack; one that has raised is not."""
        return any(frame is self._step for frame, _ in walk_stack(sys._getframe(1)))


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that does not keep its object, and with it a model, alive."""
    reference = WeakMethod(method)
    return lambda *args: None if (alive := reference()) is None else alive(*args)
