"""Policies on a server, in tests: how far recorded log-probabilities are off the policy's here."""

from collections.abc import Iterable, Sequence

import torch
from adapted import token_logprobs

from replay_pools.policy.load import Policy
from replay_pools.rollout import Completion, Rollout


@torch.no_grad()
def off(policy: Policy, prompt: Sequence[int], ids: Sequence[int], logprobs: Sequence[float] | None) -> float:
    """The largest difference between the log-probabilities of a completion and the policy's, in nats."""
    assert logprobs is not None
    return float((token_logprobs(policy.model, prompt, ids) - torch.tensor(logprobs)).abs().max())


def most_off(policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> float:
    """The largest `off` of completions."""
    return max(off(policy, prompt, c.ids, c.logprobs) for prompt, c in zip(prompts, completions, strict=True))


def group_off(policy: Policy, group: Iterable[Rollout]) -> float:
    """The largest `off` of rollouts."""
    return max(off(policy, r.prompt_ids, r.completion_ids, r.sampling_logprobs) for r in group)
