"""Batch: prompts and completions as rectangular tensors. Rows: the input of one forward pass over some of its samples.

    packed   [a a a b b c c c c]                    1 row; `extraction.attention` keeps the samples apart
    padded   [a a a .], [b b . .], [c c c c]        a row per sample, padding on the right

Masks are made from lengths, never by comparing ids with the pad id: many tokenizers pad with the end-of-sequence id,
and a comparison would mask the real end of a completion.

Shapes: G samples, T tokens of the longest sample; R rows of W tokens, N completion tokens of a pass; r coordinates of a
module. Tokens of rows are numbered 0..R W - 1, flattened: in both layouts a sample is one contiguous span of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from extraction.words import Layout
from replay_pools.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """G samples: prompt, then completion, then padding.

    Example: prompts [[5, 6], [7]] and completions [[8], [8, 9, 2]] with pad id 2 give

        ids              [[5, 6, 8, 2], [7, 8, 9, 2]]
        attention_mask   [[1, 1, 1, 0], [1, 1, 1, 1]]
        completion_mask  [[0, 0, 1, 0], [0, 1, 1, 1]]
        lengths          [3, 4]
    """

    ids: Tensor  # (G, T) int64
    attention_mask: Tensor  # (G, T) bool: prompt or completion
    completion_mask: Tensor  # (G, T) bool: the token AT this position belongs to the completion
    lengths: Tensor  # (G,) int64: tokens of prompt and completion

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def completion_lengths(self) -> Tensor:
        """(G,) tokens of each completion."""
        return self.completion_mask.sum(dim=1)

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        return type(self)(
            ids=self.ids.to(device),
            attention_mask=self.attention_mask.to(device),
            completion_mask=self.completion_mask.to(device),
            lengths=self.lengths.to(device),
        )

    def rows(self, start: int, stop: int) -> Self:
        """Samples start..stop-1, trimmed to the longest of them."""
        width = int(self.lengths[start:stop].max())
        return type(self)(
            ids=self.ids[start:stop, :width],
            attention_mask=self.attention_mask[start:stop, :width],
            completion_mask=self.completion_mask[start:stop, :width],
            lengths=self.lengths[start:stop],
        )


def make_batch(prompt_ids: Sequence[Sequence[int]], completion_ids: Sequence[Sequence[int]], pad_id: int) -> Batch:
    """Join each prompt with its completion and pad on the right with `pad_id`.

    Raises:
        InputError: an empty prompt (its first completion token would have no predecessor to be predicted from) or
            completion; the sample is named.
    """
    samples = list(zip(prompt_ids, completion_ids, strict=True))
    for number, (prompt, completion) in enumerate(samples):
        for name, ids in (("prompt", prompt), ("completion", completion)):
            if len(ids) == 0:
                raise InputError(f"sample {number}", expected=f"a {name} of at least one token", found="none")
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompt_ids])
    lengths = prompt_lengths + torch.tensor([len(completion) for completion in completion_ids])
    width = int(lengths.max())
    rows = [[*prompt, *completion] for prompt, completion in samples]
    positions = torch.arange(width)
    attention_mask = positions < lengths[:, None]
    return Batch(
        ids=torch.tensor([row + [pad_id] * (width - len(row)) for row in rows]),
        attention_mask=attention_mask,
        completion_mask=attention_mask & (positions >= prompt_lengths[:, None]),
        lengths=lengths,
    )


NARROW_TOKENS = 128  # lower-precision tokens that are in float32 at a time on a CPU


@dataclass(frozen=True, slots=True)
class Segments:
    """Which flattened tokens belong to which sample: what a sum over the tokens of every sample needs."""

    spans: tuple[tuple[int, int], ...]  # start and stop of every sample
    membership: Tensor  # (G, R W) bool: token belongs to sample; False on padding

    def sums(self, a: Tensor, b: Tensor) -> Tensor:
        """Sum of a * b over the tokens of every sample, in at least float32: (R W, r), (R W, r) -> (G, r)."""
        dtype = torch.promote_types(a.dtype, torch.float32)
        total = torch.zeros(len(self.spans), a.shape[1], dtype=dtype, device=a.device)
        # A CPU widens a few tokens at a time, which stay in its cache; a GPU does better with few large products.
        size = NARROW_TOKENS if a.is_cpu and a.dtype != dtype else len(a)
        for members, left, right in zip(self.membership.split(size, 1), a.split(size), b.split(size), strict=True):
            total.addmm_(members.to(dtype), wide_product(left, right))
        return total

    def split(self, values: Tensor) -> list[Tensor]:
        """The tokens of every sample, (R W, d) -> G tensors (T_i, d)."""
        return [values[start:stop] for start, stop in self.spans]


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a * b in at least float32. Overwrites `a` where it is as wide."""
    return a.to(torch.promote_types(a.dtype, torch.float32)).mul_(b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The samples of one pass, ready for `model(**rows.inputs)`."""

    samples: Tensor  # (G,) indices into the batch, in the order of the rows
    inputs: dict[str, Any]  # keyword arguments of the model
    segments: Segments
    predicting: Tensor  # (N,) flattened positions of the states that predict a completion token, sample after sample
    targets: Tensor  # (N,) the predicted ids


def make_rows(batch: Batch, layout: Layout, samples: Sequence[int] | None = None) -> Rows:
    """Lay out `samples` (indices into the batch, all by default) in the order given.

    Packed, positions restart at 0 in every sample and the attention receives the spans (`extraction.attention`).
    Padded, every row is as wide as the longest of these samples.
    """
    if samples is None:
        samples = range(len(batch))
    index = torch.tensor(list(samples), device=batch.ids.device)
    lengths = batch.lengths[index].tolist()
    width = max(lengths)
    ids, is_token = batch.ids[index, :width], batch.attention_mask[index, :width]
    completion = batch.completion_mask[index, :width]
    starts = [0, *accumulate(lengths)] if layout == "packed" else range(0, width * len(lengths), width)
    spans = tuple((start, start + length) for start, length in zip(starts, lengths, strict=False))
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": is_token}
    if layout == "packed":
        positions = torch.arange(width, device=ids.device).expand_as(ids)
        ids, completion = ids[is_token], completion[is_token]
        inputs = {"input_ids": ids[None], "position_ids": positions[is_token][None], "spans": spans}
    tokens = torch.arange(ids.numel(), device=ids.device)
    membership = torch.stack([(tokens >= start) & (tokens < stop) for start, stop in spans])
    scored = completion.flatten().nonzero().squeeze(1)
    return Rows(
        samples=index,
        inputs=inputs,
        segments=Segments(spans, membership),
        # The state at position t predicts token t + 1. A prompt has at least one token, so that the position before a
        # completion token always lies in the same sample.
        predicting=scored - 1,
        targets=ids.flatten()[scored],
    )


def plan_passes(lengths: Sequence[int], budget: int, layout: Layout) -> list[list[int]]:
    """Split samples of the given lengths (tokens) into passes that cost at most `budget` tokens each.

    First-fit decreasing: the longest sample first, each into the first pass where it fits; so the rows of a padded pass
    have similar lengths. A sample longer than the budget has a pass of its own. Returns indices into `lengths`.
    """
    passes: list[list[int]] = []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for samples in passes:
            if cost([lengths[i] for i in [*samples, sample]], layout) <= budget:
                samples.append(sample)
                break
        else:
            passes.append([sample])
    return passes


def cost(lengths: Sequence[int], layout: Layout) -> int:
    """Tokens that the model processes in one pass: their sum when packed, rows times the longest when padded."""
    return sum(lengths) if layout == "packed" else len(lengths) * max(lengths)
