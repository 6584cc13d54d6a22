"""The per-sample gradient engine against its limit and against the loop that it replaces, side by side.

A SmolLM2-135M-shaped model with random weights, 8 ragged rollouts (prompts 200-350 tokens, completions 100-300),
float32.

    limit           packed rows, frozen forward and backward down to the first adapted outputs, nothing per sample
    svd, lora       per_sample_gradients in the SVD basis; in the LoRA basis, rank 32
    one prompt      the first, of rollouts that all answer the longest prompt
    shared          their sum alone, for which the prompt passes once
    loop            what the engine replaces: a backward for each sample through y = W x + U diag(delta_S) Vh x, the
                    difference of `.grad` before and after; again for every (arm x condition) cell
    12 cells        what cells add to one pass: weighted sums, each projected on the directions

Ratios are of CPU seconds, which other processes on the machine do not enter, the best of interleaved runs. The engine
is given one pass, as the limit has. About 10 minutes on two idle cores.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timing import interleaved, is_quick, show
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from extraction.adapters.coordinates import SvdFrame
from extraction.adapters.frames import Frames, lora_frames, svd_frames
from extraction.adapters.svd import both_factors
from extraction.batch import Batch, make_batch, make_rows
from extraction.gradients import per_sample_gradients
from extraction.logprobs import completion_logprobs
from extraction.passes import each_pass
from probe.step.projection import project_modules

sys.path.append(str(Path(__file__).parents[1] / "support"))
from adapted import random_directions  # noqa: E402

disable_progress_bar()

ONE_PASS = 8192  # tokens_per_batch: all of the rollouts
TARGETS = {  # {ratio: (the most that it should be, or the least)}
    "svd / limit": ("<=", 1.30),
    "lora / limit": ("<=", 1.12),
    "shared / one prompt": ("<=", 0.6),
    "loop / svd": (">=", 1.6),
    "loop / svd, 12 cells": (">=", 15.0),
}


class Shape(NamedTuple):
    """Of the model and of the rollouts."""

    layers: int = 30
    vocabulary: int = 49152
    prompts: tuple[int, ...] = (200, 221, 243, 264, 286, 307, 329, 350)
    completions: tuple[int, ...] = (300, 100, 157, 271, 128, 214, 243, 186)


FULL = Shape()
QUICK = Shape(layers=2, vocabulary=2048, prompts=(20, 31, 42), completions=(30, 9, 16))


def model_of(shape: Shape) -> LlamaForCausalLM:
    """Random weights from a fixed seed."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary, hidden_size=576, intermediate_size=1536, num_hidden_layers=shape.layers,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def rollouts(shape: Shape, *, same: bool = False) -> Batch:
    """Random ids; `same`: the longest prompt for all."""
    generator = torch.Generator().manual_seed(1)
    prompts, completions = (
        [torch.randint(shape.vocabulary, (n,), generator=generator).tolist() for n in lengths]
        for lengths in (shape.prompts, shape.completions)
    )
    return make_batch([max(prompts, key=len)] * len(prompts) if same else prompts, completions, 0)


def engine(model: LlamaForCausalLM, frames: Frames, batch: Batch, *, share: bool = False) -> Mapping[str, Tensor]:
    """The engine, in one pass: {module: (G, r)}."""
    read = {frames.basis: frames}
    measured = per_sample_gradients(model, read, batch, tokens_per_batch=ONE_PASS, share=share)
    return measured.gradients[frames.basis]


def limit(model: LlamaForCausalLM, frames: Frames, batch: Batch) -> None:
    """The frozen forward and backward, down to the first outputs, that any exact way must at least do."""
    start = lambda _layer, _inputs, output: output.requires_grad_()  # noqa: E731
    handles = [layer.register_forward_hook(start) for layer in frames.layers.values()]
    try:
        run = lambda rows, _: (-completion_logprobs(model, rows).sum()).backward()  # noqa: E731
        each_pass(model, batch, run, tokens_per_batch=ONE_PASS)
    finally:
        for handle in handles:
            handle.remove()


class TwoProducts(nn.Module):
    """y = W x + U diag(delta_S) Vh x as the reference line writes it."""

    def __init__(self, base: nn.Module, U: Tensor, Vh: Tensor) -> None:
        super().__init__()
        self.base, self.U, self.Vh = base, U, Vh
        self.delta_S = nn.Parameter(torch.zeros(len(Vh)))

    def forward(self, x: Tensor) -> Tensor:
        """Three products a token."""
        return self.base(x) + F.linear(F.linear(x, self.Vh) * self.delta_S, self.U)


def reference_model(frames: Frames, shape: Shape) -> LlamaForCausalLM:
    """The model with `TwoProducts` in the place of every target."""
    model = model_of(shape)
    for module, frame in frames.items():
        layer = model.get_submodule(module)
        assert isinstance(frame, SvdFrame)
        model.set_submodule(module, TwoProducts(layer, *both_factors(frame.held, layer.weight)))
    return model


def loop(model: nn.Module, batch: Batch) -> None:
    """Each sample's gradient as the difference of accumulated `.grad`s."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for i in range(len(batch)):
        before = torch.cat([parameter.grad for parameter in parameters])
        (-completion_logprobs(model, make_rows(batch, "padded", [i])).sum()).backward()
        torch.cat([parameter.grad for parameter in parameters]) - before


def evaluate(unit: Mapping[str, Tensor], vectors: Mapping[str, Tensor], num_samples: int) -> None:
    """What 12 cells add to one pass."""
    for advantages in torch.randn(12, num_samples, generator=torch.Generator().manual_seed(3)):
        project_modules({m: advantages @ g for m, g in unit.items()}, vectors, side="one_sided")


def main() -> None:
    """Measure and print every time and every ratio, with its target."""
    shape, repeats = (QUICK, 1) if is_quick(__doc__) else (FULL, 2)
    model, batch, one_prompt = model_of(shape), rollouts(shape), rollouts(shape, same=True)
    svd, lora = svd_frames(model, cache_dir=Path("out/bench/svd")), lora_frames(model, rank=32)
    reference, vectors = reference_model(svd, shape), random_directions(svd, k=4).vectors
    ways = {
        "limit": partial(limit, model, svd, batch),
        "svd": partial(engine, model, svd, batch),
        "lora": partial(engine, model, lora, batch),
        "one prompt": partial(engine, model, svd, one_prompt),
        "shared": partial(engine, model, svd, one_prompt, share=True),
        "loop": partial(loop, reference, batch),
        "12 cells": partial(evaluate, engine(model, svd, batch), vectors, len(batch)),
    }
    print("per-sample gradients, CPU seconds")
    cpu = {way: taken.cpu for way, taken in interleaved(ways, repeats, warm_up=False).items()}
    show("taken", **cpu)
    cpu["loop / svd, 12 cells"] = 12 * cpu["loop"] / (cpu["svd"] + cpu["12 cells"])
    for name, (sign, target) in TARGETS.items():
        ratio = cpu[name] if name in cpu else cpu[name.split(" / ")[0]] / cpu[name.split(" / ")[1]]
        is_met = ratio <= target if sign == "<=" else ratio >= target
        show(name, ratio=ratio, target=f"{sign} {target}: {'met' if is_met else 'MISSED'}")


if __name__ == "__main__":
    main()
