"""Ways to the same per-sample gradients: the engine, its limit, and the loop that it replaces."""

from collections.abc import Mapping
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from workload import Shape, adapted, model_of

from extraction.adapters.interface import Coordinates
from extraction.adapters.singular import DeltaSCoordinates
from extraction.attention import attending
from extraction.batch import Batch, Segments, make_rows
from extraction.gradients import one_pass, per_sample_gradients
from extraction.logprobs import completion_logprobs, split_model
from extraction.passes import checkpointed, planned
from probe.step.projection import project_modules

ONE_PASS = 8192  # tokens_per_batch: all of the rollouts, as the limit has them


def engine(coordinates: Coordinates, batch: Batch) -> dict[str, Tensor]:
    """The engine, in one pass: {module: (G, r)}."""
    return per_sample_gradients(coordinates, batch, tokens_per_batch=ONE_PASS).gradients


def limit(coordinates: Coordinates, batch: Batch, tokens_per_batch: int | None = ONE_PASS) -> None:
    """The frozen forward and backward, down to the first outputs, that any exact way must at least do."""
    backbone, _ = split_model(coordinates.model)
    start = lambda _layer, _inputs, output: output.requires_grad_()  # noqa: E731
    handles = [layer.register_forward_hook(start) for layer in coordinates.layers.values()]
    try:
        with planned(coordinates, batch, tokens_per_batch, int) as plan:
            for samples, _ in plan.all_passes:
                rows = make_rows(batch, plan.layout, samples)
                with attending(backbone, plan.layout), checkpointed(backbone, plan.is_too_long(rows)):
                    one_pass(coordinates, rows, torch.ones_like(rows.targets))
    finally:
        for handle in handles:
            handle.remove()


def products(coordinates: Coordinates, batch: Batch) -> None:
    """The limit and the products of tokens with U and Vh, without their sums over tokens: what the engine must do."""

    def no_sums(self: Segments, a: Tensor, _b: Tensor) -> Tensor:
        return torch.zeros(len(self.spans), a.shape[1])

    with patch.object(Segments, "sums", no_sums):
        engine(coordinates, batch)


class TwoProducts(nn.Module):
    """y = W x + U diag(delta_S) Vh x as the reference line writes it."""

    def __init__(self, base: nn.Module, U: Tensor, Vh: Tensor) -> None:
        super().__init__()
        self.base, self.U, self.Vh = base, U, Vh
        self.delta_S = nn.Parameter(torch.zeros(len(Vh)))

    def forward(self, x: Tensor) -> Tensor:
        """Three products a token."""
        return self.base(x) + F.linear(F.linear(x, self.Vh) * self.delta_S, self.U)


def reference_model(shape: Shape) -> LlamaForCausalLM:
    """The model with `TwoProducts` in the place of every target."""
    coordinates = adapted("svd", shape)
    assert isinstance(coordinates, DeltaSCoordinates)
    model = model_of(shape)
    for module in coordinates.sizes:
        parent, _, name = module.rpartition(".")
        frames = coordinates.layer(module).frames()
        setattr(model.get_submodule(parent), name, TwoProducts(model.get_submodule(module), *frames))
    return model


def loop(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Each sample's gradient as the difference of accumulated `.grad`s."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    found = []
    for i in range(len(batch)):
        before = torch.cat([parameter.grad for parameter in parameters])
        (-completion_logprobs(model, make_rows(batch, "padded", [i])).sum()).backward()
        found.append(torch.cat([parameter.grad for parameter in parameters]) - before)
    return found


def frames_of(sizes: Mapping[str, int], k: int) -> dict[str, Tensor]:
    """Random directions: {module: (k, r)} with orthonormal rows, as many as fit."""
    generator = torch.Generator().manual_seed(2)
    drawn = {module: torch.randn(r, min(k, r), generator=generator) for module, r in sizes.items()}
    return {module: torch.linalg.qr(columns)[0].T for module, columns in drawn.items()}


def evaluate(unit: Mapping[str, Tensor], vectors: Mapping[str, Tensor], cells: int) -> None:
    """What `cells` (arm x condition) cells add to one pass: weighted sums, each projected on the directions."""
    num_samples = len(next(iter(unit.values())))
    for advantages in torch.randn(cells, num_samples, generator=torch.Generator().manual_seed(3)):
        project_modules({m: advantages @ g for m, g in unit.items()}, vectors, gate="one_sided")
