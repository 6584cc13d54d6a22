"""Checks of token ids against a model: its vocabulary, positions, end-of-turn ids and texts.

vocabulary = load_vocabulary("organism")    tokenizer and configs, no weights
faults = vocabulary.faults(pool)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, final

from torch import Tensor, nn
from transformers import PreTrainedModel

from replay_pools.base.errors import Faults, InputError, refuse, text_difference
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import load_served_policy, load_skeleton
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout, Template, early_end

# Modules or buffers with one row for each position.
POSITION_TABLES = ("wpe", "embed_positions", "position_embeddings")


def positions_of(model: PreTrainedModel) -> int | None:
    """Return the positions of a model at which a table of them ends; None for a model without a table."""
    size = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for name, part in [*model.named_modules(), *model.named_buffers()]:
        if name.rpartition(".")[2] in POSITION_TABLES and isinstance(part, nn.Embedding | Tensor):
            return size if isinstance(size, int) else None
    return None


@final
@dataclass(frozen=True)
class Vocabulary:
    """The token ids of a model: which exist, how many it can read, which end a turn, and their texts."""

    chat: Chat
    size: int  # rows of the embedding, at least the tokenizer's tokens
    positions: int | None = None  # a longer text fails; None: none does
    # {"prompt" | "completion": (ids and text, result)}: of the last one. Rollouts of a group share their prompt.
    _last: dict[str, tuple[Any, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def faults(self, pool: Pool) -> list[InputError]:
        """Return one error for every kind of fault in a pool, with the number of rollouts that have it."""
        faults = Faults()
        for rollout in chain.from_iterable(pool.steps):
            self.note_faults(rollout, f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}", faults)
        return faults.errors()

    def note_faults(self, rollout: Rollout, place: str, faults: Faults) -> None:
        """Add every fault of a rollout at `place` to `faults`."""

        def note(kind: str, name: str, expected: str, found: str, fix: str) -> None:
            faults.add(f"{place} {name}".rstrip(), kind, expected=expected, found=found, fix=fix)

        model, ids = self.chat.base_model, rollout.completion_ids
        if not self._knows(rollout):
            outside = [token for token in rollout.prompt_ids + ids if not 0 <= token < self.size]
            expected = f"token ids of {model}, 0 to {self.size - 1}"
            note("ids", "", expected, f"{len(outside)} others, the first {outside[0]}", "")
            return  # unknown ids have no text to compare
        if too_long := self.too_long(len(rollout.prompt_ids), len(ids)):
            note("positions", "", *too_long)
        if (end := early_end(ids, rollout.completion_mask, self.chat.eos_ids)) is not None:
            found = f"{len(ids) - end - 1} ids after id {ids[end]} at {end} of {len(ids)}"
            fix = "cut them, with their text, where the turn ends, or mask the turns of tools and users"
            note("end", "completion_ids", "no id after the end of the turn", found, fix)
        decoded, fix = self.decode(ids), "check that --model is the model that sampled it"
        # Some loggers decode with clean-up, which removes spaces before punctuation.
        if decoded != rollout.completion and self._bare(rollout.completion) not in map(
            self._bare, (decoded, str(self.chat.tokenizer.decode(ids, clean_up_tokenization_spaces=True)))
        ):
            difference = text_difference(decoded, rollout.completion)
            note("completion", "completion", f"the text of completion_ids by the tokenizer of {model}", difference, fix)
        if difference := self._once("prompt", (rollout.prompt_ids, rollout.prompt), self._prompt_difference):
            note("prompt", "prompt", f"the text of prompt_ids by the tokenizer of {model}", difference, fix)

    def _prompt_difference(self, ids: list[int], text: str) -> str:
        """Return "" if the text encodes to the ids, or they decode to it: tokenizers may lose spaces."""
        # `Pool.verify` reports missing ids.
        if not ids or self.chat.tokenizer.encode(text, add_special_tokens=False) == ids:
            return ""
        decoded = str(self.chat.tokenizer.decode(ids))
        return "" if self._bare(decoded) == self._bare(text) else text_difference(decoded, text)

    def _once(self, kind: str, key: tuple[Any, ...], make: Callable[..., Any]) -> Any:
        """Return `make(*key)`, or the last result for an equal key."""
        if self._last.get(kind, (None,))[0] != key:
            self._last[kind] = (key, make(*key))
        return self._last[kind][1]

    def _knows(self, rollout: Rollout) -> bool:
        """Return True if the model has all ids of the rollout."""
        ids = rollout.completion_ids + rollout.prompt_ids
        return not ids or 0 <= min(ids) <= max(ids) < self.size

    def check(self, pool: Pool) -> None:
        """Raise InputError with every kind of fault of the pool; return if it has none."""
        refuse(self.faults(pool))

    def too_long(self, num_prompt: int, num_completion: int) -> tuple[str, str, str] | None:
        """Return (expected, found, fix) if the model has too few positions for these tokens; else None."""
        num_tokens = num_prompt + num_completion
        if self.positions is None or num_tokens <= self.positions:
            return None
        expected = f"at most {self.positions} tokens, the positions of {self.chat.base_model}"
        found = f"{num_tokens}: {num_prompt} of the prompt, {num_completion} of the completion"
        return expected, found, "leave it out, or check --model"

    def text(self, rollout: Rollout) -> str:
        """Return the decoded ids of a completion if they agree with its stored text, else the stored text.

        Logs keep special tokens in the text, or strip white space; both shift the places of the tokens.
        """
        if not self._knows(rollout):  # unknown ids cannot be decoded
            return rollout.completion
        decoded, stored = self.decode(rollout.completion_ids), rollout.completion
        return decoded if decoded == stored or self._bare(decoded) == self._bare(stored) else stored

    def decode(self, ids: list[int]) -> str:
        """Decode a completion's ids; the last result is cached."""
        return self._once("completion", (ids,), self.chat.decode)

    def _bare(self, text: str) -> str:
        """Strip special tokens, surrounding white space and a truncated last character."""
        for token in self.chat.tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return text.strip().rstrip("\ufffd").strip()


def load_vocabulary(name: str, template: Template = "chat") -> Vocabulary:
    """Load the vocabulary of a model, with its prompt format.

    Raises:
        InputError: no such model.
    """
    skeleton = load_skeleton(name)
    embedding = skeleton.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    return Vocabulary(load_served_policy(name, template), embedding.num_embeddings, positions_of(skeleton))
