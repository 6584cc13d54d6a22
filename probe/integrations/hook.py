"""probe.attach: a GradientProbe on the hooks of a torch optimizer, for any training loop.

`optimizer.step()` triggers it: whatever ran before (accumulation, `unscale_`, `clip_grad_norm_`) has been done to the
gradient that is measured. Clipping changes `grad_norm` and no cosine; the gates one_sided and two_sided only shorten a
gradient, so that one that was clipped stays below its cap.
"""

from pathlib import Path
from typing import Any, Self

from peft import PeftModel
from torch.optim import Optimizer

from extraction.directions import Directions
from probe.integrations.gradient_probe import GradientProbe
from probe.records.records import GradientRecord
from probe.step.projection import Gate
from replay_pools.errors import InputError


def attach(
    optimizer: Optimizer,
    directions: Directions | str | Path,
    *,
    model: PeftModel,
    project: bool = False,
    gate: Gate = "one_sided",
    overshoot: float = 1.0,
    preserve_magnitude: bool = False,
    path: str | Path | None = None,
    allow_scaled: bool = False,
) -> "Attached":
    """Measure every optimizer step against `directions`, and project its gradient first when `project` is true.

    Args:
        optimizer: any torch optimizer, or accelerate's wrapper of one, that steps the adapter of `model`.
        directions: a file of `probe extract`, or `Directions`, of the basis of `model`.
        model: the peft model itself, without DistributedDataParallel around it; its adapter is `delta_S` or LoRA.
        project: put the gated gradient into `.grad`; otherwise `*_out` and `frac_fired` say what the gate would do.
        gate: one_sided | two_sided | reverse, with `overshoot` and `preserve_magnitude`: see `probe.step.projection`.
        path: a new file for the records, a JSON line a step (`GradientRecord` in spec/SCHEMA.md); with several
            processes, name it in one of them.
        allow_scaled: accept gradients that a GradScaler leaves for a fused optimizer to unscale. They are gated as they
            are, and recorded without the scale.

    Returns:
        A handle with `records`; `detach()` or leaving its `with` block ends it.

    Raises:
        InputError: directions of another basis, parameters that the optimizer does not step or that are sharded,
            DeepSpeed, a `path` that exists; inside `optimizer.step()`: scaled gradients, a closure.
    """
    probe = GradientProbe(
        model,
        directions,
        project=project,
        gate=gate,
        overshoot=overshoot,
        preserve_magnitude=preserve_magnitude,
        path=path,
    )
    return Attached(probe, probe.check_optimizer(optimizer), allow_scaled=allow_scaled)


class Attached:
    """A probe on the hooks of an optimizer, until `detach()`."""

    def __init__(self, probe: GradientProbe, optimizer: Optimizer, *, allow_scaled: bool) -> None:
        self._probe, self._allow_scaled = probe, allow_scaled
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    @property
    def records(self) -> list[GradientRecord]:
        """One a step since the probe was attached."""
        return self._probe.records

    def detach(self) -> None:
        """Take the hooks off; the records stay."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(value is not None for value in (*args[1:], kwargs.get("closure"))):
            raise InputError(
                "optimizer.step()",
                expected="no closure, which would make new gradients",
                found="one",
                fix="call backward, then step()",
            )
        self._probe.before_step(len(self.records), loss_scale=self._loss_scale(optimizer))

    def _after(self, *_: object) -> None:
        self._probe.after_step()

    def _loss_scale(self, optimizer: Optimizer) -> float:
        """What a GradScaler left on the gradients: torch sets `grad_scale` while a fused optimizer steps."""
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
