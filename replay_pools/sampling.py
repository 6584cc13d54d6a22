"""Batched sampling from a policy in this process.

Every token is recorded with its log-probability, in nats, under the distribution that it was sampled from: after
temperature, top-k and top-p. This distribution is called the law of the sampler.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from replay_pools.errors import InputError
from replay_pools.policy import Policy
from replay_pools.rollout import Completion, Sampler


class _Draws(LogitsProcessor):
    """Draws every token from the sampler's law and records its log-probability.

    It is the last logits processor of a greedy `generate`. The token is argmax p / q with q ~ Exp(1) from the global
    random state: what `torch.multinomial` does, bit for bit. Noise is drawn for all prompts of a batch, whichever rows
    are sampled here, so a row has the same noise in any share of its batch.

    Args:
        sampler: its law.
        num_prompts: in the whole batch.
        rows: the B indices into the batch that are sampled here.
    """

    def __init__(self, sampler: Sampler, num_prompts: int, rows: Sequence[int]) -> None:
        self.sampler, self.num_prompts, self.rows = sampler, num_prompts, list(rows)
        self.warpers = LogitsProcessorList()
        if sampler.top_k > 0:
            self.warpers.append(TopKLogitsWarper(sampler.top_k))
        if sampler.top_p < 1.0:
            self.warpers.append(TopPLogitsWarper(sampler.top_p))
        self.law: Tensor | None = None  # (B, vocabulary) log-probabilities of the next token
        self.recorded: list[Tensor] = []  # one (B,) of log-probabilities for each generated position

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        # The token drawn at the last call is known only now: `generate` appends it to the ids between the calls.
        self.record(input_ids[:, -1])
        # In float32, whatever the dtype of the weights: these log-probabilities are stored.
        scores = self.warpers(input_ids, scores.float() / self.sampler.temperature)  # type: ignore[arg-type]
        self.law = torch.log_softmax(scores, dim=-1)
        noise = self.law.new_empty(self.num_prompts, scores.shape[1]).exponential_()
        return self.law.softmax(dim=-1) / noise[self.rows]

    def record(self, tokens: Tensor) -> None:
        """Record the log-probabilities of `tokens` (B,) under the law that they were just sampled from."""
        if self.law is not None:  # None before the first draw: the last id is the prompt's
            self.recorded.append(self.law.gather(1, tokens[:, None])[:, 0])


@torch.no_grad()
def sample(
    policy: Policy, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seed: int, rows: Sequence[int] | None = None
) -> list[Completion]:
    """One completion for each prompt, in one left-padded batch. The same seed and batch give the same ids.

    Args:
        policy: the model.
        prompts: the prompts of the whole batch, token ids.
        sampler: temperature, top-p, top-k and the largest length.
        seed: of the sampling noise; the global random state is left as it was.
        rows: indices into `prompts`, at least one: only these are sampled, with the padding and the noise that they
            have in the whole batch. Leaving out the other rows changes the rounding alone. None = all.

    Raises:
        InputError: the policy's logits are not finite.
    """
    rows = range(len(prompts)) if rows is None else rows
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(rows), longest), policy.pad_id)
    attention = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        # On the left, so that every completion starts in the same column.
        ids[i, longest - len(prompts[row]) :] = torch.tensor(prompts[row])
        attention[i, longest - len(prompts[row]) :] = 1
    draws = _Draws(sampler, len(prompts), rows)
    config = GenerationConfig(
        do_sample=False,  # greedy: `draws` has made the sampled token the largest score
        max_new_tokens=sampler.max_new_tokens,
        eos_token_id=list(policy.eos_ids),
        pad_token_id=policy.pad_id,
    )
    # `fork_rng` would save the state of every CUDA device of the machine.
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        output = policy.model.generate(  # type: ignore[operator]
            inputs=ids.to(policy.device),
            attention_mask=attention.to(policy.device),
            generation_config=config,
            logits_processor=LogitsProcessorList([draws]),
        )
    draws.record(output[:, -1])  # of the last position, which no further call of `draws` sees
    logprobs = torch.stack(draws.recorded, dim=1)
    completions: list[Completion] = []
    for completion_ids, token_logprobs in zip(output[:, longest:].tolist(), logprobs.tolist(), strict=True):
        completion = _trim(completion_ids, token_logprobs, policy.eos_ids)
        # Not before the cut: what `generate` appends to a finished row has log-probabilities of no meaning.
        if not all(map(math.isfinite, completion.logprobs or ())):
            fix = "its weights have diverged (use a lower learning rate), or overflow in this dtype"
            raise InputError(f"policy {policy.base_model}", expected="finite logits", found="nan or infinity", fix=fix)
        completions.append(completion)
    return completions


def _trim(ids: list[int], logprobs: list[float], eos_ids: Sequence[int]) -> Completion:
    """The completion up to its first end-of-turn id, that id included; the padding after it is cut."""
    for i, token in enumerate(ids):
        if token in eos_ids:
            return Completion(ids=ids[: i + 1], logprobs=logprobs[: i + 1], finish_reason="stop")
    return Completion(ids=ids, logprobs=logprobs, finish_reason="length")
