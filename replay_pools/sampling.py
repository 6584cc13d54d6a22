"""Batched sampling from a policy in this process.

Every token is recorded with its log-probability, in nats, under the distribution that it was sampled from: after
temperature, top-k and top-p. This distribution is called the law of the sampler.

Token t of a rollout is the one at which the cumulative law passes the t-th of the uniform numbers of the rollout's
seed. So the noise of a rollout depends on its seed alone: not on the batch, nor on how it is split.
"""

import inspect
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import psutil
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicLayer

from replay_pools.base.errors import InputError
from replay_pools.engines import Sampler
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import Policy
from replay_pools.rollout import Completion

SHARE = 0.5  # of the memory left by the weights; the rest is for what a step keeps, and for activations
LAW_BYTES = 44  # of an entry of the vocabulary while a token is drawn: logits, their sorted copy with indices, sums
DROPPED = 0.125  # share of finished rows at which they are dropped: a drop copies the cache of the others


@final
@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Samples in batches with a model in this process."""

    policy: Policy

    @property
    def chat(self) -> Chat:
        """The policy itself."""
        return self.policy

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """See `Engine.sample`. The same call gives the same completions."""
        return sample(self.policy, prompts, sampler, seeds=seeds)

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """`policy`: base model, adapter, sha256 of the base's weights and their dtype."""
        policy = self.policy
        return {
            "policy": {
                "base_model": policy.base_model,
                "adapter": policy.adapter,
                "base_weights_sha256": policy.base_weights_sha,
                "dtype": str(policy.model.dtype).removeprefix("torch."),
            }
        }


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    sampler: Sampler,
    *,
    seeds: Sequence[int],
) -> list[Completion]:
    """One completion for each prompt, a function of the prompt and its seed.

    In other company the logits differ by their rounding, and with them the last bits of the log-probabilities; a token
    differs only where its uniform number falls within that rounding. The same call gives the same bytes.

    Args:
        policy: the model.
        prompts: token ids; equal prompts are read once.
        sampler: temperature, top-p, top-k and the largest length.
        seeds: of the sampling noise, one for each prompt; the global random state is not used.

    Raises:
        InputError: the policy's logits are not finite, or its architecture has a cache of its own.
    """
    completions: dict[int, Completion] = {}
    budget, lengths = memory_budget(policy.model), [len(prompt) for prompt in prompts]
    for rows in split(policy.model, lengths, sampler.max_new_tokens, budget):
        sampled = _sample(policy, [prompts[row] for row in rows], sampler, [seeds[row] for row in rows])
        completions |= zip(rows, sampled, strict=True)
    return [completions[row] for row in range(len(prompts))]


def _sample(
    policy: Policy, prompts: Sequence[Sequence[int]], sampler: Sampler, seeds: Sequence[int]
) -> list[Completion]:
    """`sample` in one batch."""
    num_rows, limit = len(prompts), sampler.max_new_tokens
    decoder = Decoder(policy.model, prompts, limit, policy.pad_id)
    device = decoder.logits.device
    noise = torch.stack([uniforms(seed, limit) for seed in seeds]).to(device)
    ends = torch.tensor(policy.eos_ids, device=device)
    ids = torch.zeros(num_rows, limit, dtype=torch.long, device=device)
    logprobs = torch.zeros(num_rows, limit, device=device)
    rows = torch.arange(num_rows, device=device)  # those that the decoder still has
    unfinished = torch.ones(num_rows, dtype=torch.bool, device=device)  # which of them want a further token
    for position in range(limit):
        law = next_law(decoder.logits, sampler)
        tokens = draw(law, noise[rows, position])
        ids[rows, position], logprobs[rows, position] = tokens, law.gather(1, tokens[:, None])[:, 0]
        unfinished &= ~torch.isin(tokens, ends)
        num_unfinished = int(unfinished.sum())
        if num_unfinished == 0 or position + 1 == limit:
            break
        if len(rows) - num_unfinished >= DROPPED * len(rows):
            decoder.keep(unfinished.nonzero()[:, 0])
            tokens, rows, unfinished = tokens[unfinished], rows[unfinished], unfinished[unfinished]
        decoder.advance(tokens)
    return [_completion(policy, *row) for row in zip(ids.tolist(), logprobs.tolist(), strict=True)]


def uniforms(seed: int, num: int) -> Tensor:
    """`num` numbers in [0, 1), float64: the noise of a rollout, one for each of its tokens."""
    # Python's generator takes all bits of a seed, and promises the same numbers in every version.
    generator = random.Random(seed)
    return torch.tensor([generator.random() for _ in range(num)], dtype=torch.float64)


def next_law(logits: Tensor, sampler: Sampler) -> Tensor:
    """Log-probabilities of the next token, float32 of the shape of `logits` (B, vocabulary); -inf = impossible."""
    warpers = LogitsProcessorList()
    if sampler.top_k > 0:
        warpers.append(TopKLogitsWarper(sampler.top_k))
    if sampler.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampler.top_p))
    # In float32, whatever the dtype of the weights: these log-probabilities are stored.
    scores = warpers(None, logits.float() / sampler.temperature)  # type: ignore[arg-type] (they read no ids)
    return torch.log_softmax(scores, dim=-1)


def draw(law: Tensor, noise: Tensor) -> Tensor:
    """One token of each row, (B,).

    Args:
        law: (B, vocabulary) log-probabilities.
        noise: (B,) in [0, 1), float64.
    """
    # In float64: in float32, tokens with probabilities below 1e-7 could fall between the sums.
    sums = law.exp().cumsum(dim=-1, dtype=torch.float64)
    # Of the sum of all, which is 1 up to rounding. Not at equality: an impossible token adds nothing to the sum.
    tokens = torch.searchsorted(sums, noise[:, None] * sums[:, -1:], right=True)[:, 0]
    return tokens.clamp(max=law.shape[1] - 1)  # no sum is above a nan, which `_completion` refuses


def _completion(policy: Policy, ids: list[int], logprobs: list[float]) -> Completion:
    """The completion up to its first end-of-turn id, that id included; what follows in its row is cut.

    Raises:
        InputError: a log-probability is not finite.
    """
    end = next((i for i, token in enumerate(ids) if token in policy.eos_ids), None)
    length = len(ids) if end is None else end + 1
    # Not before the cut: what is drawn in a finished row means nothing.
    if not all(map(math.isfinite, logprobs[:length])):
        fix = "its weights have diverged (use a lower learning rate), or overflow in this dtype"
        raise InputError(f"policy {policy.base_model}", expected="finite logits", found="nan or infinity", fix=fix)
    return Completion(ids=ids[:length], logprobs=logprobs[:length], finish_reason="length" if end is None else "stop")


# Memory: a row's keys and values are those of its prompt and of all tokens that it may get; windows of attention are
# not taken into account.


def cache_numbers(config: PreTrainedConfig) -> int:
    """How many numbers a cache keeps of one position of one row: keys and values of all layers."""
    config = config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", 0)  # none: a recurrence, whose state does not grow
    if heads == 0:
        return 0
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size


def row_bytes(model: PreTrainedModel, positions: int) -> int:
    """Bytes of a row of so many positions: its cache, and the law of its next token."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    return positions * cache_numbers(model.config) * model.dtype.itemsize + vocabulary * LAW_BYTES


def memory_budget(model: PreTrainedModel) -> int:
    """Bytes that sampling may take beside the weights: half of what these leave of the device."""
    weights = sum(parameter.nbytes for parameter in model.parameters())
    # The machine's total memory, not what is free just now: the split into batches shows in the last bits of the
    # log-probabilities, and a resumed run must split as it did before.
    return int(SHARE * (total_bytes(model.device) - weights))


def split(model: PreTrainedModel, lengths: Sequence[int], num_new: int, budget: int) -> Iterator[list[int]]:
    """The rows in batches that fit the budget, longest prompts first; a row that does not fit is a batch by itself.

    Args:
        model: its shapes are read.
        lengths: of the prompt of every row.
        num_new: the largest number of tokens that a row gets.
        budget: bytes.

    Yields:
        Indices of rows.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while order:
        # All rows are as long as the first one, with which they are padded.
        fitting = max(1, budget // row_bytes(model, lengths[order[0]] + num_new - 1))
        yield order[:fitting]
        order = order[fitting:]


def total_bytes(device: torch.device) -> int:
    """The total memory of `device`: of the GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total


class Decoder:
    """The rows of a batch. Their prompts are read when it is made; `logits` are those of the first new token.

    Args:
        model: a causal language model in evaluation mode.
        prompts: of each of the B rows, token ids.
        num_new: the largest number of tokens that a row gets.
        pad_id: any token id; it is masked.

    Attributes:
        logits: (B, vocabulary) of the next token of each row.

    Raises:
        InputError: the architecture keeps its state in none of the caches of transformers.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], num_new: int, pad_id: int) -> None:
        if not model._supports_default_dynamic_cache():  # type: ignore[operator]
            found = f"{type(model).__name__}, which has a cache of its own"
            raise InputError("sampling", expected="an architecture with transformers' DynamicCache", found=found)
        self._model, self._device = model, next(model.parameters()).device
        self._takes = inspect.signature(model.forward).parameters.keys()
        # The token that is drawn last is not read, so it needs no room.
        self._cache = _roomy_cache(model.config, num_new - 1)
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        longest = max(map(len, distinct))
        ids = torch.full((len(distinct), longest), pad_id)
        mask = torch.zeros(len(distinct), longest + num_new - 1, dtype=torch.long)
        for i, prompt in enumerate(distinct):
            # On the left, so that every completion starts in the same column.
            ids[i, longest - len(prompt) :] = torch.tensor(prompt)
            mask[i, longest - len(prompt) :] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        rows = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=self._device)
        self._mask, self._positions = mask.to(self._device), positions.to(self._device)
        self._width = 0  # columns that have been read
        self.logits = self._read(ids.to(self._device))
        self.keep(rows)

    def advance(self, tokens: Tensor) -> None:
        """Read one token for each row, (B,); `logits` are then those of the token after it."""
        self.logits = self._read(tokens[:, None])

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows: indices, ascending, of some of them."""
        self._cache.reorder_cache(rows)  # type: ignore[arg-type] (any tensor of indices serves)
        self._mask, self._positions, self.logits = self._mask[rows], self._positions[rows], self.logits[rows]

    def _read(self, ids: Tensor) -> Tensor:
        """The logits after the last column of `ids` (B, columns), which the cache then holds."""
        start, self._width = self._width, self._width + ids.shape[1]
        inputs: dict[str, Any] = {"attention_mask": self._mask[:, : self._width], "cache": self._cache}
        # Not every architecture takes positions, or leaves out logits that nobody wants.
        if "position_ids" in self._takes:
            inputs["position_ids"] = self._positions[:, start : self._width]
        if "logits_to_keep" in self._takes:
            inputs["logits_to_keep"] = 1
        if not any(isinstance(layer, DynamicLayer) for layer in self._cache.layers):
            # Recurrences alone: a mask of the columns that are read now, since their state has left out the padding.
            inputs["attention_mask"] = self._mask[:, start : self._width]
        output = self._model(input_ids=ids, use_cache=True, **inputs)  # type: ignore[operator]
        return output.logits[:, -1]


class _RoomyLayer(DynamicLayer):
    """Keys and values of one layer, with room for new positions: `torch.cat` would copy all of them at every step.

    The first `update` brings the prompts, the first `reorder_cache` makes the room.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._whole: tuple[Tensor, Tensor] | None = None  # what `keys` and `values` are parts of, once there is room

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of new positions, (B, heads, positions, size); return those of all positions."""
        if self._whole is None:
            return super().update(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        self.keys, self.values = (whole[: len(key_states), :, :end] for whole in self._whole)
        self.keys[:, :, start:], self.values[:, :, start:] = key_states, value_states
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order."""
        super().reorder_cache(beam_idx)  # type: ignore[arg-type] (any tensor of indices serves)
        if self.keys is None or self.values is None:  # a layer that uses the keys and values of another one
            return
        if self._whole is None:
            self._whole = _with_room(self.keys, self._room), _with_room(self.values, self._room)
        end = self.keys.shape[2]
        keys, values = (whole[: len(beam_idx), :, :end] for whole in self._whole)
        self.keys, self.values = keys.copy_(self.keys), values.copy_(self.values)


def _with_room(states: Tensor, room: int) -> Tensor:
    """An allocation like `states` (B, heads, positions, size), with so many positions more."""
    rows, heads, positions, size = states.shape
    return states.new_empty(rows, heads, positions + room, size)


def _roomy_cache(config: PreTrainedConfig, room: int) -> DynamicCache:
    """An empty cache. Layers of another kind than plain attention (sliding windows, recurrences) stay transformers'."""
    cache = DynamicCache(config=config)
    cache.layers = [_RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
