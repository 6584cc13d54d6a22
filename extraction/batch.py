"""Batch: prompts and completions as rectangular tensors. Rows: the input of one forward pass over some of the samples.

    packed   [p p a p p b b q c c]                       1 row; `extraction.attention` keeps the samples apart
    shared   [p p a b b q c c]                           a prompt once, for all neighbours that answer it
    padded   [p p a .], [p p b b], [q c c .]             a row per sample, padding on the right

Masks are made from lengths, never by comparing ids with the pad id: many tokenizers pad with the end-of-sequence id,
and a comparison would mask the real end of a completion.

A completion is a mask of scored tokens, with holes where a tool or a user wrote. The token at t is predicted from t - 1
of its sample, scored or not. The prompt is everything before the first scored token.

Shapes: G samples, T tokens of the longest sample; R rows of W tokens, N scored tokens of a pass; r coordinates of a
module. Tokens of rows are numbered 0..R W - 1, flattened. A segment is a contiguous span of them: one sample, or all
samples that share a prompt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from extraction.settings import Layout
from replay_pools.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """G samples: prompt, then completion, then padding.

    Example: prompts [[5, 6], [7]], completions [[8], [8, 9, 3, 2]] where 9 and 3 are a tool's answer, pad id 2

        ids              [[5, 6, 8, 2, 2], [7, 8, 9, 3, 2]]
        attention_mask   [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
        completion_mask  [[0, 0, 1, 0, 0], [0, 1, 0, 0, 1]]     the last 2 is predicted from 7 8 9 3
    """

    ids: Tensor  # (G, T) int64
    attention_mask: Tensor  # (G, T) bool: prompt or completion
    completion_mask: Tensor  # (G, T) bool: the token AT this position is scored; at least one a sample, not its first

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def lengths(self) -> Tensor:
        """(G,) tokens of prompt and completion."""
        return self.attention_mask.sum(dim=1)

    @property
    def completion_lengths(self) -> Tensor:
        """(G,) scored tokens, which a loss divides by."""
        return self.completion_mask.sum(dim=1)

    @property
    def prompt_lengths(self) -> Tensor:
        """(G,) tokens before the first scored one."""
        return self.completion_mask.byte().argmax(dim=1)

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to another device."""
        return self._each(lambda part: part.to(device))

    def rows(self, start: int, stop: int) -> "Batch":
        """Return samples start..stop-1, trimmed to the longest of them."""
        width = int(self.lengths[start:stop].max())
        return self._each(lambda part: part[start:stop, :width])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            ids=change(self.ids),
            attention_mask=change(self.attention_mask),
            completion_mask=change(self.completion_mask),
        )


def make_batch(
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Sequence[Sequence[int]],
    pad_id: int,
    completion_masks: Sequence[Sequence[bool] | None] | None = None,
) -> Batch:
    """Join each prompt with its completion and pad on the right with `pad_id`.

    Args:
        prompt_ids, completion_ids: (G,) ragged.
        pad_id: any id; it is never read.
        completion_masks: (G,) ragged, True for every completion id that the policy sampled. The others (a tool's or a
            user's turn) are context and have no loss. None, for a sample or for all: every completion id is scored.

    Raises:
        InputError: as `masked_batch`, or a mask and its completion differ in length; the sample is named.
    """
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompt_ids])
    lengths = prompt_lengths + torch.tensor([len(completion) for completion in completion_ids])
    width = int(lengths.max())
    rows = [[*prompt, *completion] for prompt, completion in zip(prompt_ids, completion_ids, strict=True)]
    positions = torch.arange(width)
    attention_mask = positions < lengths[:, None]
    completion_mask = attention_mask & (positions >= prompt_lengths[:, None])
    if completion_masks is not None:
        is_scored: list[bool] = []
        for number, (ids, mask) in enumerate(zip(completion_ids, completion_masks, strict=True)):
            if mask is not None and len(mask) != len(ids):
                expected = f"{len(ids)} entries, one for each completion id"
                raise InputError(f"sample {number} completion_mask", expected=expected, found=str(len(mask)))
            is_scored += [True] * len(ids) if mask is None else mask
        completion_mask = completion_mask.masked_scatter(completion_mask, torch.tensor(is_scored, dtype=torch.bool))
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
    return masked_batch(ids, attention_mask, completion_mask)


def masked_batch(ids: Tensor, attention_mask: Tensor, completion_mask: Tensor) -> Batch:
    """Make a batch of ids (G, T) int64, padded on the right, and their masks (G, T) bool, which score no padding.

    Raises:
        InputError: a sample that scores no token, or its first token, which nothing predicts.
    """
    for expected, is_wrong in (
        ("a completion with a scored token", ~completion_mask.any(1)),
        ("a prompt before the first scored token", completion_mask[:, :1].any(1)),
    ):
        if bool(is_wrong.any()):
            raise InputError(f"sample {int(is_wrong.byte().argmax())}", expected=expected, found="none")
    return Batch(ids=ids, attention_mask=attention_mask, completion_mask=completion_mask)


NARROW_TOKENS = 128  # lower-precision tokens that are in float32 at a time on a CPU


@dataclass(frozen=True, slots=True)
class Segments:
    """S segments of flattened tokens, over which gradients are summed."""

    spans: tuple[tuple[int, int], ...]  # start and stop of every segment
    membership: Tensor  # (S, R W) bool: token belongs to segment; False on padding

    def sums(self, a: Tensor, b: Tensor) -> Tensor:
        """Sum a * b over the tokens of every segment, in at least float32: (R W, r), (R W, r) -> (S, r)."""
        dtype = torch.promote_types(a.dtype, torch.float32)
        total = torch.zeros(len(self.spans), a.shape[1], dtype=dtype, device=a.device)
        # A CPU widens a few tokens at a time, which stay in its cache; a GPU does better with few large products.
        size = NARROW_TOKENS if a.is_cpu and a.dtype != dtype else len(a)
        for members, left, right in zip(self.membership.split(size, 1), a.split(size), b.split(size), strict=True):
            total.addmm_(members.to(dtype), wide_product(left, right))
        return total

    def split(self, values: Tensor) -> list[Tensor]:
        """Split tokens by segment, (R W, d) -> S tensors (T_i, d)."""
        return [values[start:stop] for start, stop in self.spans]


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a * b in at least float32. Overwrites `a` if its dtype is that wide already."""
    return a.to(torch.promote_types(a.dtype, torch.float32)).mul_(b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The samples of one pass, ready for `model(**rows.inputs)`."""

    samples: Tensor  # (G,) indices into the batch, in the order of the rows
    inputs: dict[str, Any]  # keyword arguments of the model
    segments: Segments
    firsts: Tensor  # (S,) index into the batch of the first sample of every segment
    predicting: Tensor  # (N,) flattened positions of the states that predict a scored token, sample after sample
    targets: Tensor  # (N,) the predicted ids


class Span(NamedTuple):
    """The tokens start..stop-1 of a row, which attend to one another and to a prompt before them."""

    start: int
    stop: int
    prompt: tuple[int, int] = (0, 0)  # start and stop of the prompt; empty if the prompt is among the tokens


def make_rows(batch: Batch, layout: Layout, samples: Sequence[int] | None = None) -> Rows:
    """Lay out `samples` (indices into the batch, all by default) in the order given.

    In one row, positions restart at 0 in every sample and the attention receives the spans (`extraction.attention`).
    In `shared`, a sample with the same prompt as the one before it leaves the prompt out, and both are one segment.
    """
    if samples is None:
        samples = range(len(batch))
    index = torch.tensor(list(samples), device=batch.ids.device)
    width = int(batch.lengths[index].max())
    ids, is_token = batch.ids[index, :width], batch.attention_mask[index, :width]
    completion, prompt_lengths = batch.completion_mask[index, :width], batch.prompt_lengths[index]
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": is_token}
    heads = [*range(len(index))]  # for every sample, the sample that holds its prompt
    if layout == "shared":
        in_prompt = torch.arange(width, device=ids.device) < prompt_lengths[:, None]
        prompts = ids.masked_fill(~in_prompt, -1)
        for place in (1 + (prompts[1:] == prompts[:-1]).all(1).nonzero()).flatten().tolist():
            heads[place] = heads[place - 1]
            is_token[place] &= ~in_prompt[place]
    sizes = is_token.sum(1).tolist()
    starts = range(0, ids.numel(), width) if layout == "padded" else [0, *accumulate(sizes)][:-1]
    stops = [start + size for start, size in zip(starts, sizes, strict=True)]
    prompt_sizes = prompt_lengths.tolist()
    prompt_spans = [(starts[head], starts[head] + prompt_sizes[head]) for head in heads]
    if layout != "padded":
        positions = torch.arange(width, device=ids.device).expand_as(ids)[is_token]
        ids, completion = ids[is_token], completion[is_token]
        spans = []
        for place, prompt in enumerate(prompt_spans):
            ends = starts[place], stops[place]
            spans.append(Span(*ends) if heads[place] == place else Span(*ends, prompt))
        inputs = {"input_ids": ids[None], "position_ids": positions[None], "spans": tuple(spans)}
        # Without a mask transformers would separate samples where positions restart, and miss shared prompts.
        inputs["attention_mask"] = torch.ones_like(ids[None], dtype=torch.bool)
    segments = {head: (starts[head], stop) for head, stop in zip(heads, stops, strict=True)}  # the last stop counts
    tokens = torch.arange(ids.numel(), device=ids.device)
    membership = torch.stack([(tokens >= start) & (tokens < stop) for start, stop in segments.values()])
    scored = completion.flatten().nonzero().squeeze(1)
    # The state at t predicts token t + 1. The last state of a prompt predicts the first scored token of each sample.
    predicting = scored - 1
    num_scored = batch.completion_lengths[index]
    begins = num_scored.cumsum(0) - num_scored
    predicting[begins] = torch.tensor([stop - 1 for _, stop in prompt_spans], device=ids.device)
    return Rows(
        samples=index,
        inputs=inputs,
        segments=Segments(tuple(segments.values()), membership),
        firsts=index[[*segments]],
        predicting=predicting,
        targets=ids.flatten()[scored],
    )


def sharing(batch: Batch, budget: int) -> list[list[int]]:
    """Split the samples into parts with one prompt each and at most `budget` tokens, the prompt counted once."""
    parts: list[list[int]] = []
    filling: dict[tuple[int, ...], tuple[list[int], int]] = {}  # {prompt: (its last part, the tokens of that)}
    prompt_lengths, own_lengths = batch.prompt_lengths.tolist(), (batch.lengths - batch.prompt_lengths).tolist()
    for sample, ids in enumerate(batch.ids.tolist()):
        prompt = tuple(ids[: prompt_lengths[sample]])
        part, size = filling.get(prompt, ([], budget))
        if size + own_lengths[sample] > budget:
            part, size = [], len(prompt)
            parts.append(part)
        part.append(sample)
        filling[prompt] = part, size + own_lengths[sample]
    return parts


def plan_passes(lengths: Sequence[int], budget: int, layout: Layout) -> list[list[int]]:
    """Split samples of the given lengths (tokens) into passes that cost at most `budget` tokens each.

    First-fit decreasing, so that the rows of a padded pass have similar lengths. A sample longer than the budget is
    alone in its pass. Returns indices into `lengths`.
    """
    passes: list[list[int]] = []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for samples in passes:
            together = [lengths[i] for i in (*samples, sample)]
            # Tokens of a pass: their sum in one row, rows times the longest when padded.
            if (len(together) * max(together) if layout == "padded" else sum(together)) <= budget:
                samples.append(sample)
                break
        else:
            passes.append([sample])
    return passes
