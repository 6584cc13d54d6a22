"""Checks of token ids against the model that they are of: its vocabulary, its positions, its ends of turn, its texts.

vocabulary = load_vocabulary("organism")    tokenizer and configs, no weights
faults = vocabulary.faults(pool)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import final

from torch import Tensor, nn
from transformers import PreTrainedModel

from replay_pools.base.errors import Faults, InputError, refuse
from replay_pools.policy.chat import Chat
from replay_pools.policy.load import load_served_policy, load_skeleton
from replay_pools.pool import Pool
from replay_pools.rollout import Rollout, Template, early_end

# Names of the tables with a row for every position: learned ones, and computed ones that are stored.
TABLES = ("wpe", "embed_positions", "position_embeddings")
MOST_WINDOWS = 4  # of a model without a table of positions: attention to longer texts takes quadratic memory
EXCERPT = 12  # characters of a text in an error


def positions_of(model: PreTrainedModel) -> tuple[int | None, bool]:
    """(the positions that a model's config names, whether a table ends there); None where it names none."""
    size = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    parts = [*model.named_modules(), *model.named_buffers()]
    is_bound = any(
        name.rpartition(".")[2] in TABLES and isinstance(part, nn.Embedding | Tensor) for name, part in parts
    )
    return (size if isinstance(size, int) else None), is_bound


@final
@dataclass(frozen=True)
class Vocabulary:
    """What ids a model knows, how many of them it reads, which of them end a turn, and what they say."""

    chat: Chat
    size: int  # rows of the embedding, which may be more than the tokenizer has tokens
    positions: int | None = None  # None: not known
    is_bound: bool = False  # a table ends there, and a longer text fails; else the model was only never trained on one
    # The last prompt whose text is that of its ids, which a group shares; the last completion with its text.
    _sound: list[tuple[str, list[int]]] = field(default_factory=list, init=False, repr=False, compare=False)
    _last: list[tuple[list[int], str]] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def turn_ends(self) -> tuple[int, ...]:
        """Every id that ends a turn, which the tokenizer looks up each time."""
        return self.chat.eos_ids

    def faults(self, pool: Pool) -> list[InputError]:
        """The first place of every kind of fault, with the number of rollouts that have it."""
        faults = Faults()
        for rollout in chain.from_iterable(pool.steps):
            self.note_faults(rollout, f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}", faults)
        return faults.errors()

    def note_faults(self, rollout: Rollout, place: str, faults: Faults) -> None:
        """Note every fault of a rollout that stands at a place."""

        def note(kind: str, name: str, expected: str, found: str, fix: str = "") -> None:
            faults.add(f"{place} {name}".rstrip(), kind, expected=expected, found=found, fix=fix)

        model = self.chat.base_model
        if not self._knows(rollout):
            ids = rollout.prompt_ids + rollout.completion_ids
            outside = [token for token in ids if not 0 <= token < self.size]
            expected = f"token ids of {model}, 0 to {self.size - 1}"
            note("ids", "", expected, f"{len(outside)} others, the first {outside[0]}")
            return  # which no tokenizer turns into text
        if too_long := self.too_long(len(rollout.prompt_ids), len(rollout.completion_ids)):
            note("positions", "", *too_long)
        if (end := early_end(rollout.completion_ids, rollout.completion_mask, self.turn_ends)) is not None:
            behind = rollout.comp_len - end - 1
            found = f"{behind} ids behind id {rollout.completion_ids[end]} at {end} of {rollout.comp_len}"
            fix = "cut them, with their text, where the turn ends, or mask the turns of tools and users"
            note("end", "completion_ids", "no id behind the end of the turn", found, fix)
        fix = "is --model the one that sampled it?"
        if not self._says_completion(rollout):
            difference = _difference(self.decode(rollout.completion_ids), rollout.completion)
            note("completion", "completion", f"the text of completion_ids by the tokenizer of {model}", difference, fix)
        # Ids that are not stored are a fault of their own, which `Pool.verify` names.
        if rollout.prompt_ids and not self._says_prompt(rollout):
            difference = _difference(str(self.chat.tokenizer.decode(rollout.prompt_ids)), rollout.prompt)
            note("prompt", "prompt", f"the text of prompt_ids by the tokenizer of {model}", difference, fix)

    def _knows(self, rollout: Rollout) -> bool:
        """Whether the model has all of its ids."""
        ids = rollout.completion_ids + rollout.prompt_ids
        return not ids or 0 <= min(ids) <= max(ids) < self.size

    def check(self, pool: Pool) -> None:
        """Raise InputError with every kind of fault of the pool, where it has any."""
        refuse(self.faults(pool))

    def cautions(self, pool: Pool) -> list[str]:
        """What is doubtful of a pool without faults, a sentence each."""
        lengths = [len(rollout.prompt_ids) + rollout.comp_len for group in pool.steps for rollout in group]
        return self.length_cautions(lengths, "rollouts")

    def length_cautions(self, lengths: Sequence[int], what: str) -> list[str]:
        """A sentence where texts of `lengths` tokens are longer than those that the model was trained on."""
        longer = [length for length in lengths if self.positions is not None and length > self.positions]
        if not longer or self.is_bound:
            return []
        most = f"the {self.positions} positions that {self.chat.base_model} was trained on"
        return [f"caution: {len(longer)} of {len(lengths)} {what} are longer than {most}: up to {max(longer)} tokens"]

    def too_long(self, num_prompt: int, num_completion: int) -> tuple[str, str, str] | None:
        """(expected, found, fix) of so many tokens, where the model has no position for the last."""
        num_tokens = num_prompt + num_completion
        if self.positions is None:
            return None
        most, what = self.positions, "the positions"
        if not self.is_bound:
            most, what = MOST_WINDOWS * most, f"{MOST_WINDOWS} times the positions"
        if num_tokens <= most:
            return None
        expected = f"at most {most} tokens, {what} of {self.chat.base_model}"
        found = f"{num_tokens}: {num_prompt} of the prompt, {num_completion} of the completion"
        return expected, found, "leave it out, or is another --model meant?"

    def text(self, rollout: Rollout) -> str:
        """What the completion is where its ids and its text say the same: the text of its ids, else the stored one.

        Logs keep special tokens in the text, or cut the whitespace around it; both shift the places of its tokens.
        """
        if not self._knows(rollout):  # a fault, which no tokenizer turns into text
            return rollout.completion
        decoded, stored = self.decode(rollout.completion_ids), rollout.completion
        return decoded if decoded == stored or self._bare(decoded) == self._bare(stored) else stored

    def decode(self, ids: list[int]) -> str:
        """The text of a completion's ids, which is asked for several times in a row."""
        if not self._last or self._last[0][0] is not ids:
            self._last[:] = [(ids, self.chat.decode(ids))]
        return self._last[0][1]

    def _says_completion(self, rollout: Rollout) -> bool:
        """Whether the ids decode to the text, up to special tokens and the whitespace around it."""
        decoded = self.decode(rollout.completion_ids)
        if decoded == rollout.completion:
            return True
        # Some loggers decode with the clean-up of spaces before punctuation.
        cleaned = self.chat.tokenizer.decode(rollout.completion_ids, clean_up_tokenization_spaces=True)
        return self._bare(rollout.completion) in (self._bare(decoded), self._bare(str(cleaned)))

    def _says_prompt(self, rollout: Rollout) -> bool:
        """Whether text and ids say the same in one direction: not every tokenizer gives back all spaces."""
        tokenizer, prompt = self.chat.tokenizer, (rollout.prompt, rollout.prompt_ids)
        if self._sound == [prompt]:
            return True
        sound = tokenizer.encode(rollout.prompt, add_special_tokens=False) == rollout.prompt_ids
        if sound or self._bare(str(tokenizer.decode(rollout.prompt_ids))) == self._bare(rollout.prompt):
            self._sound[:] = [prompt]
            return True
        return False

    def _bare(self, text: str) -> str:
        """The text without special tokens and the whitespace around it; a cut last character is no difference."""
        for token in self.chat.tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return text.strip().rstrip("\ufffd").strip()


def load_vocabulary(name: str, template: Template = "chat") -> Vocabulary:
    """The vocabulary of the model of that name, with prompts by a template.

    Raises:
        InputError: no such model.
    """
    skeleton = load_skeleton(name)
    embedding = skeleton.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    return Vocabulary(load_served_policy(name, template), embedding.num_embeddings, *positions_of(skeleton))


def check_imported(pool: Pool, model: str) -> None:
    """Check the ids of a pool that was imported without a tokenizer against the model that is to read them.

    Raises:
        InputError: no such model; every kind of fault of the pool.
    """
    if pool.manifest["tokenizer_sha256"] is None:
        load_vocabulary(model).check(pool)


def _difference(expected: str, actual: str) -> str:
    """Where two texts part: `'x = 1' for 'x = 2' from character 40`."""
    i = 0
    while i < min(len(expected), len(actual)) and expected[i] == actual[i]:
        i += 1
    return f"{actual[i : i + EXCERPT]!r} for {expected[i : i + EXCERPT]!r} from character {i}"
