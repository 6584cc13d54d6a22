"""probe.attach: measure, and optionally project, the gradients of any training loop with a torch optimizer.

    with probe.attach(optimizer, "v_hack.safetensors", model=model) as attached:
        for batch in batches:
            loss(model, batch).backward()
            optimizer.step()                        # a record before and after; with project=True, on g'
            optimizer.zero_grad()
    attached.records[-1].cos_in

The probe runs on the hooks of `optimizer.step()`, after everything that the loop did to the gradient (accumulation,
`unscale_`, `clip_grad_norm_`). Clipping by norm changes no cosine. The one_sided and two_sided projections only shorten
a gradient, so a clipped one stays below its cap.
"""

import sys
from collections.abc import Callable
from pathlib import Path
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
from replay_pools.errors import InputError


def attach(
    optimizer: Optimizer,
    directions: Directions | str | Path,
    *,
    model: nn.Module,
    scaler: torch.amp.GradScaler | None = None,
    allow_scaled: bool = False,
    first_step: int | None = None,
    log: Callable[..., object] | None = None,
    **options: Unpack[ProbeOptions],
) -> "Attached":
    """Measure every optimizer step against `directions`; with `project`, the optimizer gets the projected gradient.

    Any model is measured: g is the gradient of the loss with respect to its weights, in the coordinates of the
    directions (with svd directions diag(U^T dL/dW V)), whatever moves the weights. `cos_update` and
    `hackward_frac_update` describe the step that the optimizer made of it. With `project` on a LoRA, g is the gradient
    of the step instead: `probe.integrations.measured`.

    Each step takes what is trained at that moment; `changed` in the record marks a difference from the step before. A
    step that cannot be measured has no numbers, is not projected, and says why in `null_reason`.

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
        model: a plain model, trained whole or in part, or one with adapters of peft; in its wrapper of
            DistributedDataParallel, or after `fully_shard`: the gradient is averaged over their processes.
        scaler: the GradScaler of the loop, needed where taps measure, since they see gradients before `unscale_`.
            Accelerate's wrapper brings its own.
        allow_scaled: accept gradients that a GradScaler leaves for a fused optimizer to unscale. They are projected as
            they are; the recorded norm is without the scale.
        project: put the projected gradient into `.grad` (False); needs trained weights, plain LoRA or `delta_S`.
            Without it, `*_out` and `frac_fired` say what a projection would do (`means()`: `would_cos_out` and so on).
        gate: "one_sided" (the default) or "two_sided", with `overshoot` (1.0): see `probe.step.projection`.
        first_step: the number of the first step; None goes on after the last record in `path`. A loop that resumes from
            an older checkpoint gives its own; later records are replaced.
        log: called as log({name: mean}, step=number) after every step: `accelerator.log`, `wandb.log` and so on.
        path: a file for the records, a JSON line a step (`GradientRecord` in spec/SCHEMA.md), which goes on if it
            exists. With several processes, attach in all of them, and give it in one.
        cache_dir: the folder where `probe extract` left the SVDs (out/cache/svd); None computes them.
        process_group: over which the gradient is averaged, where several processes run and no wrapper of `model` says
            it; "self" where this process trains a model of its own.

    Returns:
        A handle with `records` and their `means()`. `detach()`, or the end of its `with` block, removes the probe.

    Raises:
        InputError: directions of other weights, an adapter that uses its weight twice, `project` where no projection is
            defined, parameters that the optimizer does not step, DeepSpeed, FSDP1, processes that do not attach, an
            unknown gate, a `path` of other directions. In the loop: scaled gradients, a closure, `create_graph=True`, a
            model that is not the one that is trained, parameters that the optimizer no longer steps.
    """
    if scaler is None and isinstance(optimizer, AcceleratedOptimizer):
        scaler = optimizer.scaler
    probe = GradientProbe(model, directions, scaler=scaler, **options)
    return Attached(probe, probe.start(optimizer), allow_scaled=allow_scaled, first_step=first_step, log=log)


class Attached:
    """A GradientProbe on the hooks of an optimizer, until `detach()`; made by `attach`."""

    def __init__(
        self,
        probe: GradientProbe,
        optimizer: Optimizer,
        *,
        allow_scaled: bool,
        first_step: int | None = None,
        log: Callable[..., object] | None = None,
    ) -> None:
        self._probe, self._allow_scaled, self._log = probe, allow_scaled, log
        self._next_step = probe.next_step if first_step is None else first_step
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

    def __repr__(self) -> str:
        """Return one line."""
        last = self.records[-1] if self.records else None
        if last is None or last.cos_in is None:
            return f"Attached({len(self.records)} steps)"
        share = "" if last.hackward_frac_update is None else f", hackward_frac_update {last.hackward_frac_update:.3f}"
        return f"Attached({len(self.records)} steps, the last with cos_in {last.cos_in:+.3f}{share})"

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
        # A subclass may call super().step(), which has hooks too: the outermost call is the step. One that is no longer
        # on the stack has raised.
        if self._step is not None and self._step in _stack():
            return
        # args[0] is the optimizer; what else `step` was given is a closure, by position or by name.
        if any(value is not None for value in (*args[1:], kwargs.get("closure"))):
            raise InputError(
                "optimizer.step()",
                expected="no closure, which would make new gradients",
                found="one",
                fix="call backward, then step()",
            )
        self._probe.before_step(self._next_step, loss_scale=self._loss_scale(optimizer))
        self._step = sys._getframe(1)

    def _after(self, *_: object) -> None:
        if sys._getframe(1) is self._step:
            self._step = None
            record = self._probe.after_step()
            self._next_step += 1
            if self._log is not None:
                self._log({PREFIX + name: mean for name, mean in means([record]).items()}, step=record.step)

    def _before_any(self, optimizer: Optimizer, *_: object) -> None:
        if optimizer is not self._optimizer:
            self._num_before = len(self.records)

    def _after_any(self, optimizer: Optimizer, *_: object) -> None:
        """Record the step of an optimizer made after attach, which neither wraps the attached one nor lies in it."""
        is_inside = self._step is not None and self._step in _stack()
        has_recorded = len(self.records) > self._num_before
        is_other = optimizer is not self._optimizer and not is_inside and not has_recorded
        if is_other and self._probe.is_moved_by(optimizer):
            self._probe.skip_step(self._next_step)
            self._next_step += 1

    def _loss_scale(self, optimizer: Optimizer) -> float:
        """Return the factor that a GradScaler left on the gradients; 1 where they are unscaled."""
        # torch sets the attribute while a fused optimizer steps, which unscales inside its kernel, after this hook.
        scale = getattr(optimizer, "grad_scale", None)
        if scale is None:
            return 1.0
        if not self._allow_scaled:
            raise InputError(
                "gradients",
                expected="unscaled ones",
                found=f"ones scaled by {float(scale):g} for a fused optimizer",
                fix="call scaler.unscale_(optimizer) before scaler.step(optimizer), or attach with allow_scaled=True",
            )
        return float(scale)


def _weak(method: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that keeps its object, and with it a model, no longer alive than the attached optimizer does."""
    reference = WeakMethod(method)

    def hook(*args: object) -> None:
        if (alive := reference()) is not None:
            alive(*args)

    return hook


def _stack() -> list[FrameType]:
    """Return the calls that are running, the innermost first."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames
