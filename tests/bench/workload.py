"""What the engine's bench works on: a model in SmolLM2-135M's shape with random weights, and ragged random rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from extraction.adapters.coordinates import attach
from extraction.adapters.interface import Coordinates
from extraction.adapters.targets import find_targets, weight_matrix
from extraction.batch import Batch, make_batch

disable_progress_bar()

OUT = Path("out/bench")
RANK = 32  # of LoRA
TRUNCATED = 256  # of the SVD, of at most 576


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of the model and of the rollouts."""

    layers: int = 30
    vocabulary: int = 49152
    prompts: tuple[int, ...] = (200, 221, 243, 264, 286, 307, 329, 350)
    completions: tuple[int, ...] = (300, 100, 157, 271, 128, 214, 243, 186)

    @property
    def tokens(self) -> int:
        """Of all rollouts."""
        return sum(self.prompts) + sum(self.completions)

    def rollouts(self) -> Batch:
        """Random ids."""
        return rollouts(self.prompts, self.completions, self.vocabulary)


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


def adapted(basis: str, shape: Shape, rank: int | None = None) -> Coordinates:
    """The model in one basis, at zero."""
    options = {"rank": RANK} if basis == "lora" else {"rank": rank, "cache_dir": OUT / "svd"}
    return attach(model_of(shape), basis=basis, model_id="bench", **options)


def rollouts(prompts: Sequence[int], completions: Sequence[int], vocabulary: int) -> Batch:
    """Random ids of the given lengths."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randint(vocabulary, (n,), generator=generator).tolist()  # noqa: E731
    return make_batch([draw(n) for n in prompts], [draw(n) for n in completions], 0)


def flops(shape: Shape) -> dict[str, float]:
    """Floating-point operations of the matrix products of each way, frozen weights, logits of completions alone.

    A product of T tokens with a weight costs 2 T d_in d_out; causal attention forward and backward 7 T_i^2 d a sample.
    """
    with torch.device("meta"):
        model = model_of(shape)
    sizes = [tuple(weight_matrix(model.get_submodule(name), name).shape) for name in find_targets(model)]
    lengths = [p + c for p, c in zip(shape.prompts, shape.completions, strict=True)]
    attention = 7 * sum(length**2 for length in lengths) * model.config.hidden_size * shape.layers
    head = 4 * sum(shape.completions) * model.config.hidden_size * shape.vocabulary
    limit = 4 * shape.tokens * sum(d_out * d_in for d_out, d_in in sizes) + attention + head
    lean = {rank: 4 * shape.tokens * sum(min(*s, rank) * min(s) for s in sizes) for rank in (10**9, TRUNCATED)}
    return {
        "limit": limit,
        "svd": limit + lean[10**9],
        f"svd {TRUNCATED}": limit + lean[TRUNCATED],
        "lora": limit + 2 * shape.tokens * RANK * sum(map(sum, sizes)),
        "loop": limit + 4 * shape.tokens * sum(min(s) * sum(s) for s in sizes),
    }
