"""Taps: coordinates of dL/dW from the forwards and backwards of a trainer, whether or not W is trained.

    coordinates of dL/dW = sum over tokens t of a function of x_t and dL/dy_t       extraction.adapters.coordinates

The Linear below all adapters reads x and gives y, so this is the gradient of W itself. Padding has dL/dy = 0. Forwards
without gradients (generation, a reference) are not watched, a forward that is repeated under activation checkpointing
has one backward, and `torch.autograd.grad` and `torch.func.grad`, which add to no `.grad`, are left out. Sums live as
long as `.grad` does: over the micro-batches of a step, until the trainer zeroes the gradients.

One trained parameter, the witness, shows when the trainer zeroes gradients. Zeros in the place of None are compared on
the device, so that nothing waits for a GPU. Two checks make the sums the step's gradient: every layer was seen (a
kernel that reads its weight goes round the layer), and the witness's `.grad` is what the backwards gave it, up to a
factor (clipping, a loss scale). Gradients that a loop combines itself, as PCGrad does, fail the second.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.distributed.tensor import DTensor

from extraction.adapters.coordinates import Frame
from extraction.adapters.targets import whole
from extraction.batch import Segments
from extraction.gradients import watch_input, watch_output
from probe.integrations.processes import Groups, average
from replay_pools.base.errors import InputError

NO_BACKWARD = -1  # torch's number of the running backward, outside of any
# False in `torch.autograd.grad`, which adds to no `.grad`, and in a backward that names its `inputs`.
adds_to_grad = torch.autograd._is_checkpoint_valid
SAMPLED = 256  # entries of the witness's gradient that are compared
BY_HAND = "`.grad` is not the sum of the backwards: combined, clipped by value, changed by hand, or of some `inputs`"


class Taps:
    """Hooks on layers, until `stop`.

    Args:
        layers: {module: Linear or Conv1D}.
        frames: {module: Frame} of all modules of the directions.
        witness: a parameter that the trainer steps, with a `.grad` that it zeroes.
        stepped: all that it steps; a backward that reaches none of them, as of a critic with an optimizer of its own,
            does not count.
        groups: over which the trainer averages gradients.
        scaler: scales the trainer's loss; without one, float16 gradients are refused.

    Attributes:
        reason: why the sums that `gradients` last returned are not the step's gradient; None where they are.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        frames: Mapping[str, Frame],
        witness: nn.Parameter,
        stepped: Collection[nn.Parameter],
        groups: Groups,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        self._modules, self._witness, self._groups, self._scaler = list(frames), witness, groups, scaler
        self.reason: str | None = None
        self._backward = NO_BACKWARD  # the last one with a callback at its end
        self._is_empty, self._may_be_zeroed = True, False
        sizes = [frames[module].size for module in layers]
        device = next(next(iter(layers.values())).parameters()).device
        # In one piece, so that one operation sets all of it to 0: the sums, how often each layer was seen, and entries
        # of the witness's gradient, the last one for what taps left out. All frames of a model have one dtype.
        self._sizes = [*sizes, len(sizes), SAMPLED + 1]
        self._total = torch.zeros(sum(self._sizes), dtype=next(iter(frames.values())).dtype, device=device)
        *sums, counts, self._given = self._total.split(self._sizes)
        self._sums = dict(zip(layers, sums, strict=True))
        self._counts = dict(zip(layers, counts, strict=True))
        self._was_filled, self._version = torch.zeros((), dtype=torch.bool, device=device), 0
        self._before, self._has_reached = self._total.clone(), True  # the sums before the last backward
        self._handles = [
            # Before and after a gradient is added to `.grad`, which may come before or after the layers' own.
            witness.register_hook(self._see_witness),
            witness.register_post_accumulate_grad_hook(self._fill),
            *(parameter.register_post_accumulate_grad_hook(self._reach) for parameter in stepped),
        ]
        for module, layer in layers.items():
            frame = frames[module]
            # Before a hook of the user's (steering), which may change the output.
            first = partial(layer.register_forward_hook, prepend=True)
            register = layer.register_forward_pre_hook if frame.reads_input else first
            self._handles.append(register(partial(self._watch, module, frame)))

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def gradients(self, loss_scale: float) -> dict[str, Tensor]:
        """Return {module: (r,)}, the mean over processes, with the factor `loss_scale` that `.grad` has too."""
        total = (self._total if self._has_reached else self._before).clone()
        total.split(self._sizes)[-2].clamp_(max=1)
        *means, seen, given = average(total, self._groups).split(self._sizes)
        # A mean lacks the part of a process that has not seen the module.
        shares = dict(zip(self._sums, seen.tolist(), strict=True))
        unseen = [module for module, share in shares.items() if share < 1]
        self.reason = BY_HAND if self._differs(given) else None
        if unseen:
            advice = (
                "" if any(shares.values()) else ": attach to the model that is trained, before it is compiled and runs"
            )
            self.reason = f"no backward came through {named(unseen, self._modules)}{advice}"
        if self._scaler is not None:
            means = [part * (loss_scale / self._scaler.get_scale()) for part in means]
        return dict(zip(self._sums, means, strict=True))

    def stepped(self) -> None:
        """Note that the optimizer has stepped: the next gradients start anew, unless the trainer keeps the old ones."""
        self._is_empty, self._may_be_zeroed = False, True
        self._was_filled = torch.ones_like(self._was_filled)  # zeros are now the trainer's, whatever the backward gave

    def _reach(self, _parameter: Tensor) -> None:
        """Hook after a gradient was added to the `.grad` of a parameter that is stepped."""
        self._empty_with_grad()
        self._has_reached = True
        if not adds_to_grad():  # a backward to some `inputs` alone, which taps left out
            self._given[-1] += 1

    def _see_witness(self, gradient: Tensor) -> None:
        """Hook before `gradient` is added to the `.grad` of the witness."""
        self._empty_with_grad()
        if adds_to_grad():
            sampled = _sample(gradient)
            self._given[: len(sampled)] += sampled

    def _differs(self, given: Tensor) -> bool:
        """Return whether the witness's `.grad` is no positive multiple of what the backwards gave it."""
        gradient = self._witness.grad
        # FSDP2 fills `.grad` past the hooks of a parameter.
        if isinstance(self._witness, DTensor) or (gradient is not None and gradient.layout is not torch.strided):
            return False
        if gradient is None:
            return bool(given.any())
        if bool(given[-1]):
            return True
        sampled = _sample(gradient).to(given.dtype)
        given = given[: len(sampled)]
        scale = (given @ sampled).clamp(min=0) / sampled.square().sum().clamp(min=torch.finfo(given.dtype).tiny)
        tolerance = max(torch.finfo(gradient.dtype).eps, torch.finfo(given.dtype).eps) ** 0.5
        rest = given - scale * sampled
        return bool((rest.norm() > tolerance * given.norm()) | (~given.any() & sampled.any()))

    def _empty_with_grad(self) -> None:
        """Set the sums to 0 if the trainer has zeroed `.grad` since they were last added to.

        The optimizer's step alone does not show it: a loop skips steps after an overflow.
        """
        gradient = self._witness.grad
        is_none = gradient is None and not self._is_empty
        # Once a backward: from its first gradient on, `.grad` may have zeros that are not yet added to.
        if not (self._may_be_zeroed or is_none):
            return
        if not self._has_reached:
            self._total.copy_(self._before)
        if is_none:
            self._total.zero_()
            self._is_empty = True
        elif gradient is not None:
            # Zeros may also be what the last backward gave; if not changed since, they are.
            was_filled = self._was_filled | (gradient._version != self._version)
            is_zeroed = was_filled & ~whole(gradient.any())
            self._total.masked_fill_(is_zeroed, 0.0)
            self._was_filled = self._was_filled & ~is_zeroed
        self._before, self._may_be_zeroed = self._total.clone(), False
        self._has_reached = isinstance(self._witness, DTensor)  # FSDP2 sets `.grad` past the hooks of a parameter

    def _fill(self, *_: Tensor) -> None:
        """Note that the sums are no longer empty, if the trainer let the backward's gradients into `.grad`."""
        if self._witness.grad is not None:
            self._is_empty = False
            self._was_filled, self._version = whole(self._witness.grad.any()), self._witness.grad._version

    def _watches(self) -> bool:
        """Return whether a backward that adds to `.grad` can follow the forward of a layer."""
        if not torch.compiler.is_compiling() and peek_interpreter_stack() is not None:  # torch.func.grad
            return False
        # A forward within a backward, as under checkpointing, comes after its first gradient; compiled code has none.
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == NO_BACKWARD:
            self._may_be_zeroed = True
        return torch.is_grad_enabled()

    def _watch(self, module: str, frame: Frame, layer: nn.Module, inputs: tuple[Tensor, ...], *output: Tensor) -> Any:
        """Hook before the forward, or after it with `output`: let dL/dx, or dL/dy, pass by `_add`."""
        if not self._watches():
            return None
        device = inputs[0].device.type
        # Under autocast dL/dx may be float32, of a product in float16.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        receive = partial(self._add, module, frame, dtype)
        if frame.reads_input:
            return watch_input(receive, layer, inputs)
        return watch_output(receive, frame.keep, layer, inputs, *output)

    def _add(self, module: str, frame: Frame, dtype: torch.dtype | None, kept: Tensor, gradient: Tensor) -> None:
        """Add the gradient of a backward; `dtype`: what autocast makes the products of the layer, if it is on."""
        if not adds_to_grad():
            return
        if torch.float16 in (dtype, gradient.dtype) and self._scaler is None:
            raise InputError(
                f"gradient of module {module}",
                expected="a known loss scale",
                found="float16 without a scaler",
                fix="attach with scaler=, the GradScaler of the loop",
            )
        self._empty_with_grad()
        backward = torch._C._current_graph_task_id()
        if isinstance(self._witness, DTensor) and backward != self._backward:
            # FSDP2 sets `.grad` at the end of a backward, past the hooks of the parameter.
            torch.autograd.Variable._execution_engine.queue_callback(self._fill)
            self._backward = backward
        self._counts[module] += 1
        kept, gradient = kept.flatten(0, -2), gradient.flatten(0, -2)
        everything = torch.ones(1, len(kept), dtype=torch.bool, device=kept.device)
        self._sums[module] += frame.sums(kept, gradient, Segments(((0, len(kept)),), everything))[0]


def _sample(gradient: Tensor) -> Tensor:
    """Return at most SAMPLED entries, evenly spaced."""
    if gradient.layout is not torch.strided or isinstance(gradient, DTensor):
        return torch.zeros(0, device=gradient.device)
    entries = gradient.detach().flatten()
    return entries[:: -(-len(entries) // SAMPLED)]


def named(modules: Collection[str], of: Collection[str]) -> str:
    """Return "2 of 14 modules, such as NAME"."""
    return f"{len(modules)} of {len(of)} modules, such as {next(iter(modules))}"
