"""Batch: prompts and completions of different lengths as rectangular tensors, padded on the right.

Shapes: G samples, T tokens of the longest sample, r coordinates, k directions, M modules.
Masks are made from lengths, never by comparing ids with the pad id: many tokenizers pad with the end-of-sequence id,
and a comparison would mask the real end of a completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

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
        InputError: no samples, unequal numbers of prompts and completions, or an empty prompt (its first completion
            token would have no predecessor to be predicted from) or completion; the sample is named.
    """
    if len(prompt_ids) != len(completion_ids) or not prompt_ids:
        raise InputError(
            "batch",
            expected="as many prompts as completions, at least one",
            found=f"{len(prompt_ids)} prompts and {len(completion_ids)} completions",
        )
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
