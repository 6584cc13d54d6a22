"""The per-sample gradient engine against its limit and against the loop that it replaces, side by side.

A SmolLM2-135M-shaped model with random weights, 8 ragged rollouts (prompts 200-350 tokens, completions 100-300),
float32.

    limit           packed rows, frozen forward and backward down to the first adapted outputs, nothing per sample
    svd, svd 256    per_sample_gradients in the SVD basis: all singular triplets, the 256 largest of each module
    lora            the same in the LoRA basis, rank 32
    one prompt      the same in the SVD basis, of rollouts that all answer the longest prompt
    shared          their sum alone, for which the prompt passes once
    loop            what the engine replaces: a backward for each sample through y = W x + U diag(delta_S) Vh x, the
                    difference of `.grad` before and after; again for every (arm x condition) cell

Ratios are of CPU seconds, which other processes on the machine do not enter, the best of interleaved runs. The engine
is given one pass, as the limit has. About 10 minutes on two idle cores; `--quick` checks in a minute that all runs, and
its numbers mean nothing.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import interleaved
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

disable_progress_bar()

OUT = Path("out/bench")
RANK, TRUNCATED = 32, 256  # of LoRA; of the SVD, of at most 576
Read = tuple[LlamaForCausalLM, Frames]
ONE_PASS = 8192  # tokens_per_batch: all of the rollouts
TARGETS = {  # {ratio: (the most that it should be, or the least)}
    "svd / limit": ("<=", 1.30),
    "lora / limit": ("<=", 1.12),
    "shared / one prompt": ("<=", 0.6),
    "loop / svd, 1 cell": (">=", 1.6),
    "loop / svd, 12 cells": (">=", 15.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
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


def read(basis: str, model: LlamaForCausalLM, rank: int | None = None) -> Read:
    """The model, and its frames in one basis."""
    if basis == "lora":
        return model, lora_frames(model, rank=RANK)
    return model, svd_frames(model, rank=rank, cache_dir=OUT / "svd")


def rollouts(prompts: Sequence[int], completions: Sequence[int], vocabulary: int, *, same: bool = False) -> Batch:
    """Random ids of the given lengths; `same`: the longest prompt for all."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(vocabulary, (n,), generator=generator).tolist()  # noqa: E731
    drawn = [draw(n) for n in prompts]
    if same:
        drawn = [max(drawn, key=len)] * len(drawn)
    return make_batch(drawn, [draw(n) for n in completions], 0)


def engine(model: LlamaForCausalLM, frames: Frames, batch: Batch, *, share: bool = False) -> Mapping[str, Tensor]:
    """The engine, in one pass: {module: (G, r)}."""
    read = {frames.basis: frames}
    found = per_sample_gradients(model, read, batch, tokens_per_batch=ONE_PASS, share=share)
    return found.gradients[frames.basis]


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
        parent, _, name = module.rpartition(".")
        layer = model.get_submodule(module)
        assert isinstance(frame, SvdFrame)
        factors = both_factors(frame.held, layer.weight)
        setattr(model.get_submodule(parent), name, TwoProducts(layer, *factors))
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


def frames_of(sizes: Mapping[str, int], k: int) -> dict[str, Tensor]:
    """Random directions: {module: (k, r)} with orthonormal rows, as many as fit."""
    generator = torch.Generator().manual_seed(2)
    drawn = {module: torch.randn(r, min(k, r), generator=generator) for module, r in sizes.items()}
    return {module: torch.linalg.qr(columns)[0].T for module, columns in drawn.items()}


def evaluate(unit: Mapping[str, Tensor], vectors: Mapping[str, Tensor], cells: int) -> None:
    """What `cells` (arm x condition) cells add to one pass: weighted sums, each projected on the directions."""
    num_samples = len(next(iter(unit.values())))
    for advantages in torch.randn(cells, num_samples, generator=torch.Generator().manual_seed(3)):
        project_modules({m: advantages @ g for m, g in unit.items()}, vectors, side="one_sided")


def main() -> None:
    """Measure and print every time and every ratio, with its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, one run of each: does the bench work?")
    shape, repeats = (QUICK, 1) if parser.parse_args().quick else (FULL, 2)
    model, batch = model_of(shape), rollouts(shape.prompts, shape.completions, shape.vocabulary)
    one_prompt = rollouts(shape.prompts, shape.completions, shape.vocabulary, same=True)
    svd = read("svd", model)
    reference = reference_model(svd[1], shape)
    bases = {"svd": svd, f"svd {TRUNCATED}": read("svd", model, TRUNCATED), "lora": read("lora", model)}
    unit, vectors = engine(*svd, batch), frames_of(svd[1].sizes, 4)
    ways = {
        "limit": lambda: limit(*svd, batch),
        **{name: partial(engine, *one, batch) for name, one in bases.items()},
        "one prompt": partial(engine, *svd, one_prompt),
        "shared": partial(engine, *svd, one_prompt, share=True),
        "loop": lambda: loop(reference, batch),
        **{f"{cells} cells": partial(evaluate, unit, vectors, cells) for cells in (1, 12)},
    }
    taken = {way: seconds.cpu for way, seconds in interleaved(ways, repeats, warm_up=False).items()}
    for way, seconds in taken.items():
        print(f"  {way:<12} {seconds:8.2f} s CPU")
    ratios = {f"{name} / limit": taken[name] / taken["limit"] for name in bases}
    ratios["shared / one prompt"] = taken["shared"] / taken["one prompt"]
    for cells in (1, 12):
        once = taken["svd"] + taken[f"{cells} cells"]
        ratios[f"loop / svd, {cells} cell{'s' * (cells > 1)}"] = cells * taken["loop"] / once
    for name, ratio in ratios.items():
        text = f"  {name:<24} {ratio:6.2f}"
        if name in TARGETS:
            sign, target = TARGETS[name]
            met = ratio <= target if sign == "<=" else ratio >= target
            text += f"  target {sign} {target}: {'met' if met else 'MISSED'}"
        print(text)


if __name__ == "__main__":
    main()
