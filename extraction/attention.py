"""Attention for packed rows: each of the samples that share a row attends to its own tokens only.

    with attending(backbone, "packed"):
        backbone(**make_rows(batch, "packed").inputs)

transformers looks attention up by name in a registry, so one function serves every architecture that uses the registry.
Whether an architecture really keeps the samples of a row apart (some mix tokens elsewhere: convolutions, recurrent
states) is not assumed but measured, once per model: see `packs`. One that does not is given padded rows instead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from extraction.batch import make_batch, make_rows
from extraction.words import Layout

NAME = "gradient_probe_packed"  # in the registries of transformers
TRIAL_LENGTHS = ((2, 3), (5, 6), (1, 4), (3, 1))  # prompt and completion tokens of the samples that `packs` tries

_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # answers of `packs`, gone with their model


class SpanMasks:
    """The attention masks of the samples in a packed row, made on first use and shared by all layers."""

    def __init__(self, mask_function: Callable[..., Tensor], device: torch.device) -> None:
        self.mask_function = mask_function
        self.device = device
        self.cached: dict[tuple[int, int], Tensor | None] = {}

    def __call__(self, span: tuple[int, int]) -> Tensor | None:
        """The mask (1, 1, T_i, T_i) bool of one sample; None where it is plainly causal."""
        if span not in self.cached:
            tokens = torch.arange(*span, device=self.device)
            zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=self.device)
            # transformers' mask functions take (batch, head, query, key) indices. A sliding window, for instance, is
            # in that function: a causal triangle alone would change the model.
            mask = self.mask_function(zero, zero, tokens[:, None], tokens)
            causal = tokens[:, None] >= tokens
            # Without a mask tensor the kernels take their fast causal path.
            self.cached[span] = None if torch.equal(mask, causal.expand_as(mask)) else mask
        return self.cached[span]


def span_masks(*, mask_function: Callable[..., Tensor], device: torch.device, **_unused: Any) -> SpanMasks:
    """What transformers calls to make masks: one per sample, never one of a whole row."""
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
    """What transformers calls for attention: `sdpa` on each span alone. query, key, value (1, heads, T, d_head)."""
    lengths = [stop - start for start, stop in spans]
    queries, keys, values = query.split(lengths, dim=2), key.split(lengths, dim=2), value.split(lengths, dim=2)
    outputs = []
    for span, q, k, v in zip(spans, queries, keys, values, strict=True):
        mask = None if attention_mask is None else attention_mask(span)
        output, _ = sdpa_attention_forward(module, q, k, v, mask, **options)
        outputs.append(output)
    return torch.cat(outputs, dim=1), None


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, span_masks)


@contextmanager
def attending(backbone: PreTrainedModel, layout: Layout) -> Iterator[None]:
    """While open, `backbone` attends as `layout` needs; its previous attention is restored after."""
    before = backbone.config._attn_implementation
    try:
        if layout == "packed":
            backbone.config._attn_implementation = NAME
        yield
    finally:
        backbone.config._attn_implementation = before


def packs(backbone: PreTrainedModel) -> bool:
    """Whether packed rows give the same hidden states as separate samples: tried on random ids once per model.

    False for a model that does not attend by `sdpa`: packed rows do, and another implementation than the model's own
    would change what is measured.
    """
    if backbone not in _packs:
        _packs[backbone] = backbone.config._attn_implementation == "sdpa" and equal_when_packed(backbone)
    return _packs[backbone]


@torch.no_grad()
def equal_when_packed(backbone: PreTrainedModel) -> bool:
    """Compare a packed row of random ids with its samples one at a time, up to half of the digits of the dtype."""
    generator = torch.Generator().manual_seed(0)
    vocabulary_size = backbone.config.get_text_config().vocab_size
    prompts, completions = [], []
    for prompt_length, completion_length in TRIAL_LENGTHS:
        prompts.append(torch.randint(vocabulary_size, (prompt_length,), generator=generator).tolist())
        completions.append(torch.randint(vocabulary_size, (completion_length,), generator=generator).tolist())
    batch = make_batch(prompts, completions, pad_id=0).to(backbone.device)
    alone = []
    for sample in range(len(batch)):
        inputs = make_rows(batch, "padded", [sample]).inputs
        alone.append(backbone(**inputs, use_cache=False).last_hidden_state[0])
    expected = torch.cat(alone)
    try:
        with attending(backbone, "packed"):
            packed = backbone(**make_rows(batch, "packed").inputs, use_cache=False).last_hidden_state[0]
    # An architecture that does not pass `spans` on to attention, or that computes with the mask itself.
    except (TypeError, AttributeError, RuntimeError):
        return False
    error = (packed - expected).norm(dim=1) / expected.norm(dim=1)
    return bool(error.max() < torch.finfo(expected.dtype).eps ** 0.5)
