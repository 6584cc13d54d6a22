"""Checks of token ids against a model: its vocabulary, end-of-turn ids and texts.

vocabulary = load_vocabulary("organism")    tokenizer and configs, no weights
faults = vocabulary.faults(pool)
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import final

from torch import nn
from transformers import PreTrainedTokenizerBase

from replay_pools.base.errors import Faults, InputError, refuse, text_difference
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import load_served_policy, load_skeleton
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout, Template, early_end


@final
@dataclass(frozen=True)
class Vocabulary:
    """The token ids of a model: which exist, which end a turn, and their texts."""

    chat: Chat
    size: int  # rows of the embedding, at least the tokenizer's tokens

    def faults(self, pool: Pool) -> list[InputError]:
        """Return one error for every kind of fault in a pool, with the number of rollouts that have it."""
        faults = Faults()
        for rollout in chain.from_iterable(pool.steps):
            self.note_faults(rollout, f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}", faults)
        return faults.errors()

    def note_faults(self, rollout: Rollout, place: str, faults: Faults) -> None:
        """Add every fault of a rollout at `place` to `faults`."""
        model, ids, tokenizer = self.chat.base_model, rollout.completion_ids, self.chat.tokenizer
        if not self._knows(rollout):
            outside = [token for token in rollout.prompt_ids + ids if not 0 <= token < self.size]
            expected = f"token ids of {model}, 0 to {self.size - 1}"
            faults.add(place, "ids", expected=expected, found=f"{len(outside)} others, the first {outside[0]}")
            return  # unknown ids have no text to compare
        if (end := early_end(ids, rollout.completion_mask, self.chat.eos_ids)) is not None:
            found = f"{len(ids) - end - 1} ids after id {ids[end]} at {end} of {len(ids)}"
            fix = "cut them, with their text, where the turn ends, or mask the turns of tools and users"
            expected = "no id after the end of the turn"
            faults.add(f"{place} completion_ids", "end", expected=expected, found=found, fix=fix)
        decoded, differences = self.chat.decode(ids), dict[str, str]()
        # Some loggers decode with clean-up, which removes spaces before punctuation.
        if decoded != rollout.completion and _bare(tokenizer, rollout.completion) not in (
            _bare(tokenizer, decoded),
            _bare(tokenizer, str(tokenizer.decode(ids, clean_up_tokenization_spaces=True))),
        ):
            differences["completion"] = text_difference(decoded, rollout.completion)
        # `Pool.verify` reports missing ids.
        if rollout.prompt_ids:
            differences["prompt"] = _prompt_difference(tokenizer, tuple(rollout.prompt_ids), rollout.prompt)
        for name, found in differences.items():
            expected = f"the text of {name}_ids by the tokenizer of {model}"
            fix = "check that --model is the model that sampled it"
            if found:
                faults.add(f"{place} {name}", name, expected=expected, found=found, fix=fix)

    def _knows(self, rollout: Rollout) -> bool:
        """Return True if the model has all ids of the rollout."""
        ids = rollout.completion_ids + rollout.prompt_ids
        return not ids or 0 <= min(ids) <= max(ids) < self.size

    def check(self, pool: Pool) -> None:
        """Raise InputError with every kind of fault of the pool; return if it has none."""
        refuse(self.faults(pool))

    def text(self, rollout: Rollout) -> str:
        """Return the decoded ids of a completion if they agree with its stored text, else the stored text.

        Logs keep special tokens in the text, or strip white space; both shift the places of the tokens.
        """
        if not self._knows(rollout):  # unknown ids cannot be decoded
            return rollout.completion
        decoded, stored = self.chat.decode(rollout.completion_ids), rollout.completion
        bare, bare_stored = (_bare(self.chat.tokenizer, text) for text in (decoded, stored))
        return decoded if bare == bare_stored else stored


@lru_cache(1)  # rollouts of a group share their prompt
def _prompt_difference(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], text: str) -> str:
    """Return "" if the text encodes to the ids, or they decode to it: tokenizers may lose spaces."""
    if tokenizer.encode(text, add_special_tokens=False) == [*ids]:
        return ""
    decoded = str(tokenizer.decode(ids))
    return "" if _bare(tokenizer, decoded) == _bare(tokenizer, text) else text_difference(decoded, text)


def _bare(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Strip special tokens, surrounding white space and a truncated last character."""
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, "")
    return text.strip().rstrip("\ufffd").strip()


def load_vocabulary(name: str, template: Template = "chat") -> Vocabulary:
    """Load the vocabulary of a model, with its prompt format.

    Raises:
        InputError: no such model.
    """
    embedding = load_skeleton(name).get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    return Vocabulary(load_served_policy(name, template), embedding.num_embeddings)
