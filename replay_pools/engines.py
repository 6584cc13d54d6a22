"""Engines: what completions are sampled with. The local one is here, the one on a server in `replay_pools.serving`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from replay_pools.chat import Chat
from replay_pools.policy import Policy
from replay_pools.rollout import Completion, Sampler
from replay_pools.sampling import sample


class Engine(Protocol):
    """A policy that can be sampled from, wherever its weights are. Token ids go in and token ids come out."""

    @property
    def chat(self) -> Chat:
        """The text side of the policy."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seed: int, rows: Sequence[int] | None = None
    ) -> list[Completion]:
        """One completion a prompt, in the order of the prompts (of the `rows` alone, where given): all, or an error."""
        ...

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """`policy` of a pool's header, and `engine` where it is not the local one."""
        ...


@final
@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Batched sampling in this process."""

    policy: Policy

    @property
    def chat(self) -> Chat:
        """The policy itself."""
        return self.policy

    def sample(
        self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seed: int, rows: Sequence[int] | None = None
    ) -> list[Completion]:
        """The same seed and prompts give the same completions."""
        return sample(self.policy, prompts, sampler, seed=seed, rows=rows)

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Model, adapter, weights and their dtype."""
        policy = self.policy
        return {
            "policy": {
                "base_model": policy.base_model,
                "adapter": policy.adapter,
                "base_weights_sha256": policy.base_weights_sha,
                "dtype": str(policy.model.dtype).removeprefix("torch."),
            }
        }
