"""Batched sampling from a policy in this process.

Every token is recorded with its log-probability, in nats, under the distribution it was sampled from: after
temperature, top-k and top-p.

The seed of a rollout gives one uniform number for each token. Token t is where the cumulative distribution passes the
t-th number. So the noise of a rollout depends on its seed alone, not on the batch.
"""

import inspect
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessorList,
    PreTrainedModel,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicLayer

from replay_pools.base.errors import InputError
from replay_pools.policy.load import Policy, batch_bytes
from replay_pools.pool import Sampler
from replay_pools.rollout import Completion

VOCABULARY_ENTRY_BYTES = 44  # while a token is drawn: logits, their sorted copy with indices, cumulative sums
MIN_FINISHED_SHARE = 0.125  # finished rows are dropped from this share on: a drop copies the cache of the other rows


@final
@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine that samples in batches with a model in this process."""

    chat: Policy

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """Sample as `Engine.sample`.

        A completion depends on its prompt and seed. In another batch, rounding changes the last bits of its logits and
        log-probabilities, and a token only if its uniform number falls within that rounding. The same call gives the
        same bytes. The global random state is not used.

        Raises:
            InputError: the policy's logits are not finite, or its architecture needs a special cache.
        """
        completions, model = dict[int, Completion](), self.chat.model
        budget = batch_bytes(model.device, sum(parameter.nbytes for parameter in model.parameters()))
        for rows in split(model, [*map(len, prompts)], sampler.max_new_tokens, budget):
            sampled = _sample(self.chat, [prompts[row] for row in rows], sampler, [seeds[row] for row in rows])
            completions |= zip(rows, sampled, strict=True)
        return [completions[row] for row in range(len(prompts))]

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Return `policy`: base model, adapter, sha256 of the base's weights and their dtype."""
        policy = self.chat
        return {
            "policy": {
                "base_model": policy.base_model,
                "adapter": policy.adapter,
                "base_weights_sha256": policy.base_weights_sha,
                "dtype": str(policy.model.dtype).removeprefix("torch."),
            }
        }


@torch.no_grad()
def _sample(
    policy: Policy, prompts: Sequence[Sequence[int]], sampler: Sampler, seeds: Sequence[int]
) -> list[Completion]:
    """Sample one batch: read the distinct prompts, then draw and read one token of every unfinished row at a time."""
    model, device, limit = policy.model, policy.device, sampler.max_new_tokens
    if not model._supports_default_dynamic_cache():  # type: ignore[operator]
        found = f"{type(model).__name__}, which needs a special cache"
        raise InputError("sampling", expected="an architecture with transformers' DynamicCache", found=found)
    cache = DynamicCache(config=model.config)
    # The last token is drawn and never read, so it needs no room. Sliding windows and recurrences stay as they are.
    cache.layers = [_RoomyLayer(limit - 1) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    longest = max(map(len, distinct))
    # Padding on the left lets all completions start in the same column.
    padded = torch.tensor([[policy.pad_id] * (longest - len(prompt)) + [*prompt] for prompt in distinct], device=device)
    starts = torch.tensor([longest - len(prompt) for prompt in distinct], device=device)
    positions = torch.arange(longest + limit - 1, device=device) - starts[:, None]  # below 0: padding
    logits = _read(model, cache, padded, 0, positions)
    rows = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=device)
    cache.reorder_cache(rows)  # type: ignore[arg-type] (any index tensor works)
    logits, positions = logits[rows], positions[rows]
    noise = torch.stack([uniforms(seed, limit) for seed in seeds]).to(device)
    ends = torch.tensor(policy.eos_ids, device=device)
    ids = torch.zeros(len(prompts), limit, dtype=torch.long, device=device)
    logprobs = torch.zeros(len(prompts), limit, device=device)
    rows = torch.arange(len(prompts), device=device)  # rows that the cache still holds
    unfinished = torch.ones(len(prompts), dtype=torch.bool, device=device)  # rows that need another token
    for place in range(limit):
        law = next_token_logprobs(logits, sampler)
        tokens = draw(law, noise[rows, place])
        ids[rows, place], logprobs[rows, place] = tokens, law.gather(1, tokens[:, None])[:, 0]
        unfinished &= ~torch.isin(tokens, ends)
        num_unfinished = int(unfinished.sum())
        if num_unfinished == 0 or place + 1 == limit:
            break
        if len(rows) - num_unfinished >= MIN_FINISHED_SHARE * len(rows):
            kept = unfinished.nonzero()[:, 0]
            cache.reorder_cache(kept)  # type: ignore[arg-type]
            tokens, rows, positions, unfinished = (each[kept] for each in (tokens, rows, positions, unfinished))
        logits = _read(model, cache, tokens[:, None], longest + place, positions)
    return [_completion(policy, *row) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]


def _read(model: PreTrainedModel, cache: DynamicCache, ids: Tensor, start: int, positions: Tensor) -> Tensor:
    """Read tokens into a cache and return the logits after the last one, (B, vocabulary).

    Args:
        model: a causal language model in evaluation mode.
        cache: holds the columns before `start`.
        ids: (B, columns) from `start` on.
        start: number of columns read so far.
        positions: (B, all columns) of the tokens in their rows; below 0 for padding.
    """
    stop, takes = start + ids.shape[1], inspect.signature(model.forward).parameters
    # Pure recurrences take a mask of the new columns only, as their state already skipped the padding.
    is_recurrent = not any(isinstance(layer, DynamicLayer) for layer in cache.layers)
    mask = (positions[:, start if is_recurrent else 0 : stop] >= 0).long()
    # Not every architecture accepts positions, or can skip unneeded logits.
    options = {"position_ids": positions[:, start:stop].clamp(min=0), "logits_to_keep": 1}
    inputs = {name: value for name, value in options.items() if name in takes}
    return model(input_ids=ids, attention_mask=mask, use_cache=True, cache=cache, **inputs).logits[:, -1]  # type: ignore[operator]


def uniforms(seed: int, num: int) -> Tensor:
    """Return (num,) float64 numbers in [0, 1): the noise of a rollout, one for each token."""
    # Python's generator uses all bits of a seed and gives the same numbers in every version.
    generator = random.Random(seed)
    return torch.tensor([generator.random() for _ in range(num)], dtype=torch.float64)


def next_token_logprobs(logits: Tensor, sampler: Sampler) -> Tensor:
    """Return the log-probabilities of the next token, (B, vocabulary) float32; -inf = impossible."""
    warpers = LogitsProcessorList()
    if sampler.top_k > 0:
        warpers.append(TopKLogitsWarper(sampler.top_k))
    if sampler.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampler.top_p))
    # float32 for every dtype of the weights, because these log-probabilities are stored.
    scores = warpers(None, logits.float() / sampler.temperature)  # type: ignore[arg-type] (they read no ids)
    return torch.log_softmax(scores, dim=-1)


def draw(law: Tensor, noise: Tensor) -> Tensor:
    """Draw one token for each row, (B,).

    Args:
        law: (B, vocabulary) log-probabilities.
        noise: (B,) in [0, 1), float64.
    """
    # float32 sums would lose tokens with probabilities below 1e-7.
    sums = law.exp().cumsum(dim=-1, dtype=torch.float64)
    # Scaled by the total, which is 1 up to rounding. `right` skips impossible tokens, which leave the sum unchanged.
    tokens = torch.searchsorted(sums, noise[:, None] * sums[:, -1:], right=True)[:, 0]
    return tokens.clamp(max=law.shape[1] - 1)  # nan gives no token; `_completion` refuses it


def _completion(policy: Policy, ids: list[int], logprobs: list[float]) -> Completion:
    """Cut a row after its first end-of-turn id and return it as a completion.

    Raises:
        InputError: a log-probability is not finite.
    """
    end = next((i for i, token in enumerate(ids) if token in policy.eos_ids), None)
    length = len(ids) if end is None else end + 1
    # Checked after the cut, because tokens of a finished row are meaningless.
    if not all(map(math.isfinite, logprobs[:length])):
        fix = "the weights have diverged (use a lower learning rate) or overflow in this dtype"
        raise InputError(f"policy {policy.base_model}", expected="finite logits", found="nan or infinity", fix=fix)
    return Completion(ids=ids[:length], logprobs=logprobs[:length], finish_reason="length" if end is None else "stop")


# Memory: a row holds keys and values for its prompt and all tokens it may get. Attention windows are ignored.


def row_bytes(model: PreTrainedModel, positions: int) -> int:
    """Return the bytes of a row with `positions` positions: keys and values of all layers, logits of its next token."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", 0)  # without heads: a recurrence with a state of constant size
    size = getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1)
    numbers = 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size
    return positions * numbers * model.dtype.itemsize + config.vocab_size * VOCABULARY_ENTRY_BYTES


def split(model: PreTrainedModel, lengths: Sequence[int], num_new: int, budget: int) -> Iterator[list[int]]:
    """Split rows into batches that fit the budget, longest prompts first; a row too large for it is a batch by itself.

    Args:
        model: the model, for its shapes.
        lengths: prompt length of every row.
        num_new: largest number of new tokens of a row.
        budget: bytes of a batch.

    Yields:
        Indices of rows.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while order:
        # Padding makes all rows as long as the first one.
        fitting = max(1, budget // row_bytes(model, lengths[order[0]] + num_new - 1))
        yield order[:fitting]
        order = order[fitting:]


class _RoomyLayer(DynamicLayer):
    """Keys and values of one layer, preallocated, because `torch.cat` would copy them all at every step.

    The first `update` holds the prompts; the first `reorder_cache` allocates the room.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._whole: tuple[Tensor, ...] | None = None  # the allocations that `keys` and `values` are views of

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of new positions, (B, heads, positions, size), and return the states of all positions."""
        if self._whole is None:
            return super().update(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        self.keys, self.values = (whole[: len(key_states), :, :end] for whole in self._whole)
        self.keys[:, :, start:], self.values[:, :, start:] = key_states, value_states
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type] (any index tensor works)
        if self.keys is None or self.values is None:  # this layer shares the keys and values of another one
            return
        if self._whole is None:
            self._whole = tuple(
                states.new_empty(*states.shape[:2], states.shape[2] + self._room, states.shape[3])
                for states in (self.keys, self.values)
            )
        end, stored = self.keys.shape[2], zip(self._whole, (self.keys, self.values), strict=True)
        self.keys, self.values = (whole[: len(beam_idx), :, :end].copy_(states) for whole, states in stored)
