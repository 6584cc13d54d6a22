"""How the samples of one pass lie before the model: packed one after the other in a single row, or padded, a row each.

Shapes: G samples, R rows of W tokens, N completion tokens of the pass; r coordinates, k directions, M modules.
Everything per token is read in flattened order, 0..R W - 1, where every sample is one contiguous span.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from extraction.batch import Batch
from extraction.words import Layout


@dataclass(frozen=True, slots=True)
class Segments:
    """Which flattened tokens belong to which sample."""

    spans: tuple[tuple[int, int], ...]  # start and stop of every sample
    membership: Tensor  # (G, R W) bool

    def sums(self, values: Tensor) -> Tensor:
        """Sum over the tokens of every sample, (R W, r) -> (G, r), as one matrix product."""
        return self.membership.to(values.dtype) @ values

    def split(self, values: Tensor) -> list[Tensor]:
        """The tokens of every sample, (R W, d) -> G times (T_i, d)."""
        return [values[start:stop] for start, stop in self.spans]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The samples of one pass. `inputs` is what the model is called with."""

    layout: Layout
    samples: Tensor  # (G,) which samples of the batch, in the order of the rows
    inputs: dict[str, Any]
    segments: Segments
    predicting: Tensor  # (N,) flattened positions of the states that predict a completion token, sample after sample
    targets: Tensor  # (N,) the predicted ids


def make_rows(batch: Batch, layout: Layout, samples: Sequence[int] | None = None) -> Rows:
    """Lay out `samples` of the batch (all by default) in the order given.

    Packed, positions start at 0 in every sample and the attention is told the spans (extraction.attention); padded,
    rows end in padding where a sample is shorter than the longest.
    """
    chosen = list(range(len(batch)) if samples is None else samples)
    index = torch.tensor(chosen, device=batch.ids.device)
    lengths = batch.lengths[index].tolist()
    width = max(lengths)
    ids, inside = batch.ids[index, :width], batch.attention_mask[index, :width]
    completion = batch.completion_mask[index, :width]
    starts = [sum(lengths[:i]) if layout == "packed" else i * width for i in range(len(chosen))]
    spans = tuple((start, start + length) for start, length in zip(starts, lengths, strict=True))
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": inside}
    if layout == "packed":
        positions = torch.arange(width, device=ids.device).expand_as(ids)
        ids, completion = ids[inside], completion[inside]
        inputs = {"input_ids": ids[None], "position_ids": positions[inside][None], "spans": spans}
    tokens = torch.arange(ids.numel(), device=ids.device)
    membership = torch.stack([(tokens >= start) & (tokens < stop) for start, stop in spans])
    scored = completion.flatten().nonzero().squeeze(1)
    return Rows(
        layout=layout,
        samples=index,
        inputs=inputs,
        segments=Segments(spans, membership),
        predicting=scored - 1,  # a prompt has at least one token: the predecessor is in the same sample
        targets=ids.flatten()[scored],
    )


def plan_passes(lengths: Sequence[int], budget: int, layout: Layout) -> list[list[int]]:
    """Which samples share a pass: first fit, longest first, so that padded rows are of like length.

    A pass costs the tokens that the model sees: those of its samples when packed, rows times the longest when padded.
    No pass costs more than `budget`, except that of a single sample which is longer than that.
    """
    passes: list[list[int]] = []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = (own for own in passes if cost([lengths[i] for i in [*own, sample]], layout) <= budget)
        found = next(fitting, None)
        if found is None:
            passes.append([sample])
        else:
            found.append(sample)
    return passes


def cost(lengths: Sequence[int], layout: Layout) -> int:
    """Tokens that the model sees."""
    return sum(lengths) if layout == "packed" else len(lengths) * max(lengths)
