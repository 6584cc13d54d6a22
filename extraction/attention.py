"""Attention for packed rows: each sample in a row attends to its own tokens only, and to its prompt.

    with attending(backbone, "packed"):
        backbone(**make_rows(batch, "packed").inputs)

transformers finds attention by name in a registry, so one function serves every architecture that uses the registry.
Some architectures mix tokens elsewhere (convolutions, recurrent states): `packs` measures this once per model, and such
a model gets padded rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from extraction.batch import Span, make_batch, make_rows
from extraction.settings import Layout

NAME = "gradient_probe_packed"  # in the registries of transformers
TRIAL_LENGTHS = ((2, 3), (5, 6), (5, 4), (3, 1))  # prompt and completion tokens of the samples that `packs` tries

_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # answers of `packs`, gone with their model


SpanMask = Callable[[int, int], Tensor | None]


def span_masks(*, mask_function: Callable[..., Tensor], device: torch.device, **_unused: Any) -> SpanMask:
    """Make the masks of the spans of a row for transformers, each on first use and shared by all layers.

    Returns:
        A function that gives the mask (1, 1, length, before + length) bool of a span behind `before` tokens of its
        prompt; None for a causal triangle.
    """

    @cache
    def mask_of(before: int, length: int) -> Tensor | None:
        tokens = torch.arange(before + length, device=device)
        zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
        # transformers' mask functions take (batch, head, query, key) indices; they know of sliding windows.
        mask = mask_function(zero, zero, tokens[before:, None], tokens).expand(1, 1, length, before + length)
        # Without a mask tensor the kernels take their fast causal path.
        is_triangle = not before and torch.equal(mask[0, 0], tokens[:, None] >= tokens)
        return None if is_triangle else mask

    return mask_of


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: SpanMask | None,
    *,
    spans: Sequence[Span],
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend by `sdpa` on each span alone. query, key, value (1, heads, T, d_head)."""
    outputs = []
    for start, stop, prompt in spans:
        before = slice(*prompt)
        q, k, v = (part[:, :, start:stop] for part in (query, key, value))
        if prompt[1]:
            k, v = torch.cat([key[:, :, before], k], dim=2), torch.cat([value[:, :, before], v], dim=2)
        mask = None if attention_mask is None else attention_mask(k.shape[2] - q.shape[2], q.shape[2])
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
        if layout != "padded":
            backbone.config._attn_implementation = NAME
        yield
    finally:
        backbone.config._attn_implementation = before


def by_rotation(backbone: PreTrainedModel, samples: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Split the samples of a pass, indices into `lengths`, so that each is rotated as in a pass without the others.

    The rotary factors of longrope and dynamic NTK depend on the longest sample of a pass.
    """
    parts: dict[tuple[int, ...], list[int]] = {}
    kinds = _rotations(backbone)
    for sample in samples:
        # longrope has two sets of factors; dynamic NTK has one for every length beyond the original.
        key = tuple(
            max(lengths[sample], limit) if kind == "dynamic" else lengths[sample] > limit for kind, limit in kinds
        )
        parts.setdefault(key, []).append(sample)
    return list(parts.values())


def forget_lengths(backbone: PreTrainedModel) -> None:
    """Let the next pass choose its rotary factors: dynamic NTK keeps the factors of the longest pass so far."""
    if any(kind == "dynamic" for kind, _ in _rotations(backbone)):
        for module in backbone.modules():
            for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
                setattr(module, name, 0)


def _rotations(backbone: PreTrainedModel) -> list[tuple[str, int]]:
    """Return (kind, tokens up to which the factors are constant) of the rotations that depend on the length."""
    config = backbone.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or {}
    rotations = []
    # One table, or one for every type of layer.
    for table in (parameters, *(part for part in parameters.values() if isinstance(part, dict))):
        kind = table.get("rope_type", "default")
        if kind == "longrope":
            rotations.append((kind, table["original_max_position_embeddings"]))
        elif "dynamic" in kind:
            rotations.append(("dynamic", config.max_position_embeddings))
    return rotations


def packs(backbone: PreTrainedModel) -> bool:
    """Return whether packed rows give the same hidden states as separate samples, tried on random ids once per model.

    False for a model that does not attend by `sdpa`, which packed rows use.
    """
    if backbone not in _packs:
        _packs[backbone] = backbone.config._attn_implementation == "sdpa" and equal_when_packed(backbone)
    return _packs[backbone]


@torch.no_grad()
def equal_when_packed(backbone: PreTrainedModel) -> bool:
    """Compare the states that predict scored tokens in a row of random ids with the samples one at a time.

    Two of the samples share a prompt. States may differ by half of the digits of the dtype.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary_size = backbone.config.get_text_config().vocab_size
    prompts, completions = [], []
    for prompt_length, completion_length in TRIAL_LENGTHS:
        prompts.append(torch.randint(vocabulary_size, (prompt_length,), generator=generator).tolist())
        completions.append(torch.randint(vocabulary_size, (completion_length,), generator=generator).tolist())
    prompts[2] = prompts[1]
    batch = make_batch(prompts, completions, pad_id=0).to(backbone.device)
    alone = []
    for sample in range(len(batch)):
        rows = make_rows(batch, "padded", [sample])
        alone.append(backbone(**rows.inputs, use_cache=False).last_hidden_state[0, rows.predicting])
    expected, rows = torch.cat(alone), make_rows(batch, "shared")
    try:
        with attending(backbone, "shared"):
            packed = backbone(**rows.inputs, use_cache=False).last_hidden_state[0, rows.predicting]
    # An architecture that does not pass `spans` on to attention, or that computes with the mask itself.
    except (TypeError, AttributeError, RuntimeError):
        return False
    error = (packed - expected).norm(dim=1) / expected.norm(dim=1)
    return bool(error.max() < torch.finfo(expected.dtype).eps ** 0.5)
