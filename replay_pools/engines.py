"""Engines sample completions from a policy: `LocalEngine` of `sample` in this process, `ServerEngine` on a server.

To add an engine: write a class with the three members of `Engine`. `RolloutMaker` takes any of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic.dataclasses import dataclass as settings_dataclass

from replay_pools.base.tables import STRICT, setting
from replay_pools.rollout import Completion

if TYPE_CHECKING:
    from replay_pools.policy.chat import Chat


@settings_dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Sampler:
    """Settings of sampling: they turn the model's logits into the law of the next token."""

    temperature: float = setting(1.0, "1 is the policy's own law, which a training needs", gt=0)
    top_p: float = setting(1.0, "nucleus sampling; 1 is off", gt=0, le=1)
    top_k: int = setting(0, "tokens to sample from; 0 is off", ge=0)
    max_new_tokens: int = setting(128, "of a completion", ge=1)


class Engine(Protocol):
    """A policy that can be sampled from. It takes token ids and returns token ids, so nothing is tokenised twice."""

    @property
    def chat(self) -> "Chat":
        """The tokenizer and chat template of the policy."""
        ...

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """One completion for each prompt, in the order of the prompts.

        Args:
            prompts: token ids.
            sampler: temperature, top-p, top-k and the largest length.
            seeds: of the sampling noise, one for each prompt: whatever else is sampled, its noise is the same.

        Raises:
            InputError: a completion cannot be had; then none is returned.
        """
        ...

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Fields of a pool's header: `policy`, and `engine` where it is not the local one."""
        ...
