"""Adapters of tests: `Trained` in one line, what is read of it, and directions that mean nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from extraction.adapters.frames import Frames, lora_frames, svd_frames
from extraction.adapters.trained import Trained
from extraction.batch import Batch
from extraction.directions import Directions, haar_directions
from extraction.gradients import SampleGradients, per_sample_gradients
from extraction.settings import Basis
from probe.runs.policies import configured_frames
from probe.settings.training import ModelConfig
from replay_pools.policy.load import Policy


def framed(model: PreTrainedModel, basis: str, **options: Any) -> Frames:
    """The frames of a model in a basis; of the SVD without a cache unless one is given."""
    if basis == "lora":
        return lora_frames(model, **options)
    return svd_frames(model, **({"cache_dir": None} | options))


def adapt(model: PreTrainedModel, basis: str, **options: Any) -> Trained:
    """An adapter at zero on a model."""
    return Trained(model, framed(model, basis, **options))


def sampled(trained: Trained, batch: Batch, *, direction: Mapping[str, Tensor] | None = None, **options: Any) -> Any:
    """`SampleGradients` at the present coordinates, with `gradients` of the one basis: {module: (G, r)}."""
    axis = None if direction is None else (trained.basis, direction)
    with trained.folded():
        frames = {trained.basis: trained.frames()}
        found: SampleGradients = per_sample_gradients(trained.model, frames, batch, axis=axis, **options)
    gradients = found.gradients[trained.basis]
    return SimpleNamespace(gradients=gradients, token_logprobs=found.token_logprobs, token_dots=found.token_dots)


def token_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """(T,) float64 of a completion, by a plain forward of it alone."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1)[range(len(completion)), [*completion]]


def nll_gradient(trained: Trained, prompt: Sequence[int], completion: Sequence[int]) -> dict[str, Tensor]:
    """{module: (r,)} of -sum log p(completion), by autograd of a plain forward of it alone."""
    nll = -token_logprobs(trained.model, prompt, completion).sum()
    parts = torch.autograd.grad(nll, trained.parameters())
    return {module: part.flatten() for module, part in zip(trained.sizes, parts, strict=True)}


def padded_logprobs(model: Any, batch: Batch) -> Tensor:
    """(G, T), 0 off the completion mask, by an ordinary padded forward with full logits."""
    logits = model(batch.ids, attention_mask=batch.attention_mask.long()).logits[:, :-1]
    found = logits.log_softmax(-1).gather(2, batch.ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(found, (1, 0)) * batch.completion_mask


def members_of(trained: Trained) -> dict[str, Any]:
    """Arguments of `Bases` for a policy that may move."""
    return {"model": trained.model.get_base_model(), "frames": {trained.basis: trained.start}, "trained": trained}


def grads(trained: Trained) -> dict[str, Tensor]:
    """A copy of every `.grad`, {module: (r,)}; 0 for a parameter without one."""
    found = {}
    for module in trained.layers:
        parameter = trained.trainable(module)
        found[module] = (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten().clone()
    return found


def configured(policy: Policy, basis: Basis, config: ModelConfig, cache_dir: Path) -> Trained:
    """An adapter at zero on a policy, as the table `model` says."""
    return Trained(policy.model, configured_frames(policy, basis, config, cache_dir))


def move(trained: Trained, seed: int | torch.Generator, size: float = 0.2) -> dict[str, Tensor]:
    """Move an adapter at random; return where it is now."""
    generator = torch.Generator().manual_seed(seed) if isinstance(seed, int) else seed
    values = trained.values()
    moves = {m: size * torch.randn(v.shape, generator=generator).to(v) for m, v in values.items()}
    trained.load_values({m: v + moves[m] for m, v in values.items()})
    return trained.values()


def random_directions(
    coordinates: Trained | Frames, k: int = 2, seed: int = 0, numbers: Mapping[str, int] | None = None
) -> Directions:
    """`k` in every module, or as many as `numbers` says."""
    none = {module: torch.zeros((numbers or {}).get(module, k), r) for module, r in coordinates.sizes.items()}
    frames = coordinates.start if isinstance(coordinates, Trained) else coordinates
    metadata = {"fingerprint": dict(frames.fingerprint)}
    return haar_directions(Directions(vectors=none, singular_values={}, votes={}, metadata=metadata), seed=seed)
