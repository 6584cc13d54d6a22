"""Packed rows: causal attention within each of several samples that lie one after the other in a single row.

transformers looks attention up by name in a registry, so every architecture that asks the registry is served by the
one function below. Whether an architecture really keeps the samples of a row apart (some mix tokens elsewhere:
convolutions, recurrent states) is not assumed but measured, once a model: see `packs`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from extraction.batch import make_batch
from extraction.rows import make_rows
from extraction.words import Layout

NAME = "gradient_probe_packed"
TRIAL_LENGTHS = ((2, 3), (5, 6), (1, 4), (3, 1))  # prompt and completion tokens of the samples that `packs` tries

_found: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class SpanMasks:
    """The attention masks of the samples in a packed row, made when first asked for; the layers share them."""

    def __init__(self, mask_function: Callable[..., Tensor], device: torch.device) -> None:
        self.mask_function, self.device = mask_function, device
        self.known: dict[tuple[int, int], Tensor | None] = {}

    def __call__(self, span: tuple[int, int]) -> Tensor | None:
        """(1, 1, T_i, T_i) bool, or None where it is plainly causal, for which kernels have a fast path."""
        if span not in self.known:
            tokens = torch.arange(*span, device=self.device)
            zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=self.device)
            mask = self.mask_function(zero, zero, tokens[:, None], tokens)
            causal = tokens[:, None] >= tokens
            self.known[span] = None if torch.equal(mask, causal.expand_as(mask)) else mask
        return self.known[span]


def span_masks(*, mask_function: Callable[..., Tensor], device: torch.device, **_unused: Any) -> SpanMasks:
    """The entry of transformers' registry of masks: whole-row masks are never made."""
    return SpanMasks(mask_function, device)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: SpanMasks | None,
    *,
    spans: Sequence[tuple[int, int]],
    **options: Any,
) -> tuple[Tensor, None]:
    """The entry of the registry of attentions: `sdpa` on each span alone. q, k, v (1, heads, T, d_head)."""
    lengths = [stop - start for start, stop in spans]
    queries, keys, values = (states.split(lengths, dim=2) for states in (query, key, value))
    parts = [
        sdpa_attention_forward(module, q, k, v, None if attention_mask is None else attention_mask(span), **options)[0]
        for span, q, k, v in zip(spans, queries, keys, values, strict=True)
    ]
    return torch.cat(parts, dim=1), None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, span_masks)


@contextmanager
def attending(backbone: PreTrainedModel, layout: Layout) -> Iterator[None]:
    """While open, `backbone` attends as `layout` asks; the implementation of before is restored."""
    before = backbone.config._attn_implementation
    try:
        if layout == "packed":
            backbone.config._attn_implementation = NAME
        yield
    finally:
        backbone.config._attn_implementation = before


def packs(backbone: PreTrainedModel) -> bool:
    """Are hidden states of a packed row those of its samples alone? Tried on random ids once, then remembered.

    Only models that attend by `sdpa` are tried: packed rows attend by `sdpa` too, and to change the implementation of
    another model would change what is measured.
    """
    if backbone not in _found:
        _found[backbone] = backbone.config._attn_implementation == "sdpa" and equal_when_packed(backbone)
    return _found[backbone]


@torch.no_grad()
def equal_when_packed(backbone: PreTrainedModel) -> bool:
    """Compare a packed row with its samples one at a time, up to half of the digits of the dtype."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = backbone.config.get_text_config().vocab_size
    draw = lambda count: torch.randint(vocabulary, (count,), generator=generator).tolist()  # noqa: E731
    parts = [(draw(prompt), draw(completion)) for prompt, completion in TRIAL_LENGTHS]
    batch = make_batch(*zip(*parts, strict=True), pad_id=0).to(backbone.device)
    alone = [backbone(**make_rows(batch, "padded", [i]).inputs, use_cache=False) for i in range(len(batch))]
    expected = torch.cat([states.last_hidden_state[0] for states in alone])
    try:
        with attending(backbone, "packed"):
            found = backbone(**make_rows(batch, "packed").inputs, use_cache=False).last_hidden_state[0]
    except (TypeError, AttributeError, RuntimeError):  # `spans` are not passed on, or the mask is computed with
        return False
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    return bool(error.max() < torch.finfo(expected.dtype).eps ** 0.5)
