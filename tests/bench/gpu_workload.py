"""What `gpu.py` works on: Qwen3-4B's shapes with random weights in bfloat16, one group of random rollouts, arms.

Random orthonormal factors stand in for those of the SVD where only the time of a step matters: a product takes as long
with either, and the SVD of all modules would take longer than everything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from ways import frames_of

from extraction.adapters import delta_s
from extraction.adapters.coordinates import attach
from extraction.adapters.interface import Coordinates
from extraction.adapters.svd import Factorised, Factors, largest
from extraction.adapters.targets import find_targets, weight_matrix
from extraction.words import Storage
from probe.settings.arms import get_arm
from probe.step.groups import Group, RolloutKey
from probe.step.step import Measure
from replay_pools.policy.load import Policy, load_policy

DIRECTIONS = 4  # of each module
QWEN3_4B = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of the model and of the rollouts."""

    name: str = "Qwen3-4B"
    sizes: Mapping[str, int] = field(default_factory=lambda: QWEN3_4B)  # of the model's configuration
    rollouts: int = 8  # of a step
    prompt: int = 600  # tokens of each
    completion: int = 1000
    rank: int = 256  # of the truncated SVD
    sampled_prompts: int = 32
    group: int = 8  # rollouts of each sampled prompt
    new_tokens: int = 256  # of a sampled rollout at most

    @property
    def tokens(self) -> int:
        """Of all rollouts of a step."""
        return self.rollouts * (self.prompt + self.completion)


FULL = Shape()
SMALL = Shape(name="tiny", sizes=TINY, prompt=12, completion=20, rank=16, sampled_prompts=3, group=2, new_tokens=12)


def model_of(shape: Shape, device: torch.device) -> PreTrainedModel:
    """Random weights, drawn on the device."""
    torch.manual_seed(0)
    config = Qwen3Config(**shape.sizes, tie_word_embeddings=True, max_position_embeddings=40960)
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def adapted(shape: Shape, device: torch.device, rank: int | None = None) -> Coordinates:
    """The model in the SVD basis at zero, with random factors."""
    with patch.object(delta_s, "factorise_all", random_factors):
        return attach(model_of(shape, device), basis="svd", model_id=shape.name, cache_dir=None, rank=rank)


def random_factors(
    weights: Mapping[str, Tensor], cache_dir: Path | None, *, rank: int | None, storage: Storage
) -> dict[str, Factorised]:
    """In the place of `factorise_all`: factors of the same shapes, orthonormal, with singular values from 2 to 1."""
    frames: dict[tuple[int, torch.device], Tensor] = {}  # one of each size; every module gets a copy
    factorised = {}
    for name, weight in weights.items():
        d_out, d_in = weight.shape
        r = min(d_out, d_in)
        place = r, weight.device
        if place not in frames:
            frames[place] = torch.linalg.qr(torch.randn(r, r, device=weight.device))[0]
        U = frames[place].clone() if d_out <= d_in else None
        Vh = frames[place].clone() if d_in <= d_out else None
        factors = largest(Factors(U, torch.linspace(2, 1, r, device=weight.device), Vh), rank)
        factorised[name] = Factorised(factors, "random", None)
    return factorised


def weight_shapes(shape: Shape) -> list[tuple[int, int]]:
    """(d_out, d_in) of every adapted module."""
    model = model_of(shape, torch.device("meta"))
    shapes = []
    for name in find_targets(model):
        d_out, d_in = weight_matrix(model.get_submodule(name), name).shape
        shapes.append((d_out, d_in))
    return shapes


def group_of(shape: Shape) -> Group:
    """Random ids, of which every other rollout has the larger reward."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = shape.sizes["vocab_size"]
    size = shape.rollouts, shape.prompt + shape.completion
    ids = torch.randint(vocabulary, size, generator=generator)
    return Group(
        step=0,
        prompt_ids=tuple(ids[:, : shape.prompt].tolist()),
        completion_ids=tuple(ids[:, shape.prompt :].tolist()),
        rewards=tuple(3.5 if i % 2 else 0.5 for i in range(shape.rollouts)),
        sampling_logprobs=(None,) * shape.rollouts,
        keys=tuple(RolloutKey("random", 0, i) for i in range(shape.rollouts)),
        problem_id="random",
        mixed_prompt=False,
    )


def measures_of(coordinates: Coordinates, *arms: str) -> list[Measure]:
    """The arms along random directions; as in a replay, arms share those of one kind."""
    device, vectors, measures = coordinates.model.device, {}, []
    for arm in map(get_arm, arms):
        if arm.directions not in vectors:
            drawn = frames_of(coordinates.sizes, DIRECTIONS)
            vectors[arm.directions] = {module: rows.to(device) for module, rows in drawn.items()}
        measures.append(Measure(condition="plain", arm=arm, vectors=vectors[arm.directions], gate=arm.gate))
    return measures


def policy_of(shape: Shape, device: torch.device) -> Policy:
    """The model with any tokenizer; one id in `new_tokens` ends a turn, so that completions end one by one."""
    model = model_of(shape, device)
    model.generation_config.eos_token_id = list(range(0, shape.sizes["vocab_size"], shape.new_tokens))
    return Policy(model, load_policy("organism", device="cpu").tokenizer, shape.name, None, "")


def prompts_of(shape: Shape) -> list[list[int]]:
    """Every prompt as often as its group has rollouts."""
    generator = torch.Generator().manual_seed(2)
    size = shape.sampled_prompts, shape.prompt
    rows = torch.randint(1, shape.sizes["vocab_size"], size, generator=generator)
    return rows.repeat_interleave(shape.group, dim=0).tolist()
