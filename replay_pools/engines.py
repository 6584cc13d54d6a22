"""Engines sample completions from a policy: `sampling.LocalEngine` in this process, `serving.ServerEngine` on a server.

To add an engine, write a class with the three members of `Engine`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic.dataclasses import dataclass as settings_dataclass

from replay_pools.base.tables import STRICT, setting
from replay_pools.rollout import Completion

if TYPE_CHECKING:
    from replay_pools.policy.chat import Chat


@settings_dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Sampler:
    """Settings of sampling, which turn the model's logits into the distribution of the next token."""

    temperature: float = setting(1.0, "sampling temperature; trainings need 1", gt=0)
    top_p: float = setting(1.0, "nucleus sampling; 1: off", gt=0, le=1)
    top_k: int = setting(0, "most likely tokens to sample from; 0: all", ge=0)
    max_new_tokens: int = setting(128, "largest number of tokens of a completion", ge=1)


# Recorded log-probabilities are those of the policy only if the sampler leaves its distribution unchanged.
PLAIN_LAW = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def law_of(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampler's fields that change the policy's distribution; PLAIN_LAW if it is unchanged."""
    return {name: sampler.get(name) for name in PLAIN_LAW}


class Engine(Protocol):
    """A policy to sample from. It takes and returns token ids, so nothing is tokenised twice."""

    @property
    def chat(self) -> "Chat":
        """The tokenizer and chat template of the policy."""
        ...

    def sample(self, prompts: Sequence[Sequence[int]], sampler: Sampler, *, seeds: Sequence[int]) -> list[Completion]:
        """Return one completion for each prompt, in order.

        Args:
            prompts: token ids.
            sampler: temperature, top-p, top-k and the largest length.
            seeds: one for each prompt; its noise does not depend on the rest of the batch.

        Raises:
            InputError: a completion fails; then none is returned.
        """
        ...

    def describe(self, sampler: Sampler) -> dict[str, Any]:
        """Return fields of a pool's header: `policy`, and `engine` for a server."""
        ...
