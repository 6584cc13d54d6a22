"""Batched sampling from a policy. Every token is recorded with its log-probability under the law it was sampled from
(after temperature, top-k and top-p), in nats.
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
    """Draws every token from the sampler's law, as the last processor, and records its log-probability.

    A token is argmax p / q with q ~ Exp(1) from the global random state: what `torch.multinomial` does, bit for bit.
    Noise is drawn for all prompts of a batch, whichever rows are sampled here.
    """

    def __init__(self, sampler: Sampler, num_prompts: int, rows: Sequence[int]) -> None:
        self.sampler, self.num_prompts, self.rows = sampler, num_prompts, list(rows)
        self.warpers = LogitsProcessorList()
        if sampler.top_k > 0:
            self.warpers.append(TopKLogitsWarper(sampler.top_k))
        if sampler.top_p < 1.0:
            self.warpers.append(TopPLogitsWarper(sampler.top_p))
        self.law: Tensor | None = None  # (B, vocabulary) log-probabilities of the next token
        self.recorded: list[Tensor] = []  # (B,) a generated token

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        self.record(input_ids[:, -1])
        scores = self.warpers(input_ids, scores.float() / self.sampler.temperature)  # type: ignore[arg-type]
        self.law = torch.log_softmax(scores, dim=-1)
        noise = self.law.new_empty(self.num_prompts, scores.shape[1]).exponential_()
        return self.law.softmax(dim=-1) / noise[self.rows]

    def record(self, tokens: Tensor) -> None:
        """Look the tokens that were just sampled up in the law they were sampled from."""
        if self.law is not None:
            self.recorded.append(self.law.gather(1, tokens[:, None])[:, 0])


@torch.no_grad()
def sample(
    policy: Policy, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seed: int, rows: Sequence[int] | None = None
) -> list[Completion]:
    """One completion a prompt, in one left-padded batch; the same seed and batch give the same ids.

    Args:
        prompts: B prompts of token ids.
        seed: of the sampling noise; the global random state is left as it was.
        rows: of the batch, at least one: only these are sampled, with the padding and the noise that they have in the
            whole batch. What other rows there are shows in the rounding alone. None = all.

    Raises:
        InputError: the policy's logits are not finite.
    """
    rows = range(len(prompts)) if rows is None else rows
    longest = max(len(prompt) for prompt in prompts)
    pads = [longest - len(prompts[row]) for row in rows]
    ids = torch.tensor([[policy.pad_id] * n + list(prompts[row]) for n, row in zip(pads, rows, strict=True)])
    attention = torch.tensor([[0] * n + [1] * (longest - n) for n in pads])
    draws = _Draws(sampler, len(prompts), rows)
    config = GenerationConfig(
        do_sample=False,  # the last processor has drawn
        max_new_tokens=sampler.max_new_tokens,
        eos_token_id=list(policy.eos_ids),
        pad_token_id=policy.pad_id,
    )
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        output = policy.model.generate(  # type: ignore[operator]
            inputs=ids.to(policy.device),
            attention_mask=attention.to(policy.device),
            generation_config=config,
            logits_processor=LogitsProcessorList([draws]),
        )
    draws.record(output[:, -1])
    logprobs = torch.stack(draws.recorded, dim=1)
    sampled = zip(output[:, longest:].tolist(), logprobs.tolist(), strict=True)
    completions = [_trim(ids, lps, policy.eos_ids) for ids, lps in sampled]
    if not all(math.isfinite(value) for completion in completions for value in completion.logprobs or ()):
        fix = "its weights have diverged (use a lower learning rate), or overflow in this dtype"
        raise InputError(f"policy {policy.base_model}", expected="finite logits", found="nan or infinity", fix=fix)
    return completions


def _trim(ids: list[int], logprobs: list[float], eos_ids: Sequence[int]) -> Completion:
    """Cut after the first end-of-turn id; what follows is padding."""
    end = next((i + 1 for i, token in enumerate(ids) if token in eos_ids), None)
    if end is None:
        return Completion(ids=ids, logprobs=logprobs, finish_reason="length")
    return Completion(ids=ids[:end], logprobs=logprobs[:end], finish_reason="stop")
