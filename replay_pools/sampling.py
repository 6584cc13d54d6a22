"""Batched sampling from a policy. Every token is recorded with its log-probability under the law it was sampled from
(after temperature, top-k and top-p), in nats.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from replay_pools.policy import Policy
from replay_pools.rollout import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """The law that completions are sampled from."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    max_new_tokens: int = 128

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion; `ids` end with an end-of-turn id when `finish_reason` is "stop"."""

    ids: list[int]
    logprobs: list[float] | None  # nats, one an id, of the sampler's law; None: an engine that tells of another law
    finish_reason: FinishReason


class _RecordingLaw(LogitsProcessor):
    """Applies the sampler's law as the last processor and records the log-probability of each sampled token."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
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
        return self.law

    def record(self, tokens: Tensor) -> None:
        """Look the tokens that were just sampled up in the law they were sampled from."""
        if self.law is not None:
            self.recorded.append(self.law.gather(1, tokens[:, None])[:, 0])


@torch.inference_mode()
def sample(policy: Policy, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seed: int) -> list[Completion]:
    """One completion a prompt, in one left-padded batch; the same seed and batch give the same ids.

    Args:
        prompts: B prompts of token ids.
        seed: of the sampling noise; the global random state is left as it was.
    """
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[policy.pad_id] * (longest - len(p)) + list(p) for p in prompts], device=policy.device)
    attention = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=policy.device)
    law = _RecordingLaw(sampler)
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=sampler.max_new_tokens,
        eos_token_id=list(policy.eos_ids),
        pad_token_id=policy.pad_id,
    )
    devices = [policy.device] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        output = policy.model.generate(  # type: ignore[operator]
            inputs=ids, attention_mask=attention, generation_config=config, logits_processor=LogitsProcessorList([law])
        )
    law.record(output[:, -1])
    logprobs = torch.stack(law.recorded, dim=1)
    rows = zip(output[:, longest:].tolist(), logprobs.tolist(), strict=True)
    return [_trim(ids, lps, policy.eos_ids) for ids, lps in rows]


def _trim(ids: list[int], logprobs: list[float], eos_ids: Sequence[int]) -> Completion:
    """Cut after the first end-of-turn id; what follows is padding."""
    end = next((i + 1 for i, token in enumerate(ids) if token in eos_ids), None)
    if end is None:
        return Completion(ids=ids, logprobs=logprobs, finish_reason="length")
    return Completion(ids=ids[:end], logprobs=logprobs[:end], finish_reason="stop")
