"""Chat: the text side of a policy. Messages become prompt ids, completion ids become text, and some ids end a turn."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from transformers import GenerationConfig, PreTrainedTokenizerBase

from replay_pools.errors import InputError
from replay_pools.files import sha256


class Chat(ABC):
    """A tokenizer with its chat template, wherever the weights are.

    Attributes:
        tokenizer: of the policy.
        base_model: the name that it was loaded by.
    """

    __slots__ = ()
    tokenizer: PreTrainedTokenizerBase
    base_model: str

    @property
    @abstractmethod
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn."""

    def render(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """The prompt text through the chat template, generation prompt included, and its ids."""
        if not self.tokenizer.chat_template:
            raise InputError(f"model {self.base_model}", expected="a chat template", found="a tokenizer without one")
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return str(text), self.tokenizer.encode(str(text), add_special_tokens=False)

    def prompt_tail(self) -> str:
        """What the template puts after the last user turn: the same for every prompt of a pool."""
        marks = [self.render([{"role": "user", "content": mark}])[0].rpartition(mark)[2] for mark in ("\x01", "\x02")]
        if marks[0] != marks[1]:
            where, found = f"model {self.base_model}", f"{marks[0]!r}, {marks[1]!r}"
            raise InputError(where, expected="one template tail", found=found)
        return marks[0]

    def completion_ids(self, text: str) -> list[int]:
        """Ids of a written (not sampled) completion, ended with the end-of-turn id as a rollout is."""
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.eos_ids[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion ids, special tokens skipped."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def tokenizer_sha(self) -> str:
        """sha256 over the vocabulary and the chat template."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        return sha256(f"{vocabulary!r}\x00{self.tokenizer.chat_template}".encode())

    def template_sha(self) -> str:
        """sha256 of the chat template."""
        return sha256(str(self.tokenizer.chat_template).encode())


def turn_ends(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids of the generation config if it lists several, else its one and the tokenizer's."""
    configured = None if generation is None else generation.eos_token_id
    ids = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    return tuple(dict.fromkeys(int(i) for i in ids if isinstance(i, int)))
