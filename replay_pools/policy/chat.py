"""The text side of a policy: messages to prompt ids, completion ids to text, and the ids that end a turn."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

from transformers import GenerationConfig, PreTrainedTokenizerBase

from replay_pools.base.errors import InputError
from replay_pools.base.files import sha256

PLAIN = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


class Chat(ABC):
    """A tokenizer with its chat template. A subclass supplies the two attributes and `eos_ids`.

    `Policy` has the weights in this process, `ServedPolicy` has them on a server.

    Attributes:
        tokenizer: the policy's tokenizer.
        base_model: the name that it was loaded by.
    """

    # The subclasses are dataclasses with slots: a base class without slots would give them a __dict__ again.
    __slots__ = ()
    tokenizer: PreTrainedTokenizerBase
    base_model: str

    @property
    @abstractmethod
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn."""

    def render(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """(text, ids) of the prompt: the messages through the chat template, generation prompt included.

        Raises:
            InputError: the tokenizer has no chat template, or one that fails.
        """
        if not self.tokenizer.chat_template:
            fix = "for prompts as plain text: --template plain, or model.template=plain"
            raise InputError(
                f"model {self.base_model}", expected="a chat template", found="a tokenizer without one", fix=fix
            )
        chat = [dict(message) for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        # A template is a program: it may raise anything.
        except Exception as error:
            where, reason = f"chat template of model {self.base_model}", f"{type(error).__name__}: {error}"
            raise InputError(where, expected="a template that renders the messages", found=reason) from error
        # The template has written the special tokens already: the tokenizer must not put a second BOS before them.
        return str(text), self.tokenizer.encode(str(text), add_special_tokens=False)

    def prompt_tail(self) -> str:
        """The text that the template puts after the last user turn, the same for every prompt of a pool.

        Raises:
            InputError: the text depends on the message.
        """
        tails: list[str] = []
        for mark in ("\x01", "\x02"):  # messages that no template contains: whatever follows them is the template's
            text, _ = self.render([{"role": "user", "content": mark}])
            tails.append(text.rpartition(mark)[2])
        if tails[0] != tails[1]:
            raise InputError(
                f"model {self.base_model}", expected="one template tail", found=f"{tails[0]!r}, {tails[1]!r}"
            )
        return tails[0]

    @property
    def turn_end(self) -> int:
        """The id that ends a written completion.

        It is the first id in the chat template's text behind an answer at which the policy stops, or, where there is
        none, the first of `eos_ids`.

        Raises:
            InputError: no id ends a turn.
        """
        return self._answer_end()[1]

    def turn_end_caution(self) -> str | None:
        """Return a sentence where the chat template ends an answer in nothing at which the policy stops."""
        tail = self._answer_tail()
        if not self.tokenizer.chat_template or self.is_plain or (tail is not None and self._stop_in(tail)):
            return None
        found = "renders no answer" if tail is None else f"ends an answer in {tail!r}, no stop token"
        end = self.tokenizer.convert_ids_to_tokens(self.turn_end)
        return f"caution: the chat template of {self.base_model} {found}: written answers end in {end!r}"

    def completion_ids(self, text: str) -> list[int]:
        """Ids of a written (not sampled) completion, ended as the chat template ends an answer."""
        lead, end = self._answer_end()
        return [*self.tokenizer.encode(text + lead, add_special_tokens=False), end]

    def _answer_end(self) -> tuple[str, int]:
        """Return what the template puts between an answer and the id that ends it, and that id."""
        tail = self._answer_tail()
        if tail is not None and (stop := self._stop_in(tail)) is not None:
            return stop
        if not self.eos_ids:
            fix = "set tokenizer.eos_token, and save the tokenizer with the model"
            raise InputError(f"model {self.base_model}", expected="a token that ends a turn", found="none", fix=fix)
        return "", self.eos_ids[0]

    def _answer_tail(self) -> str | None:
        """Return the text that the template puts behind an answer; None without a template that renders one."""
        return _rendered_tail(self.tokenizer, str(self.tokenizer.chat_template or ""))

    def _stop_in(self, tail: str) -> tuple[str, int] | None:
        """Return the text before the first token of `eos_ids` in a text, and the id; None without one."""
        places: list[tuple[int, int]] = []
        for token in self.eos_ids:
            written = self.tokenizer.convert_ids_to_tokens([token])[0]
            if written and written in tail:
                places.append((tail.index(written), token))
        if not places:
            return None
        place, token = min(places)
        return tail[:place], token

    def decode(self, ids: Sequence[int]) -> str:
        """Text of completion ids, without special tokens."""
        # The clean-up would remove spaces before punctuation, which changes code.
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def is_plain(self) -> bool:
        """Whether prompts are the texts of their messages."""
        return str(self.tokenizer.chat_template).endswith(PLAIN)

    def tokenizer_sha(self) -> str:
        """sha256 over the vocabulary and the chat template; `plain` is none, as in logs of models without one."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        template = None if self.is_plain else self.tokenizer.chat_template
        return sha256(f"{vocabulary!r}\x00{template}".encode())

    def template_sha(self) -> str:
        """sha256 of the chat template."""
        return sha256(str(self.tokenizer.chat_template).encode())


@lru_cache(maxsize=8)
def _rendered_tail(tokenizer: PreTrainedTokenizerBase, template: str) -> str | None:
    """Return `Chat._answer_tail` of a tokenizer; its template is an argument since it may be replaced."""
    if not template:
        return None
    turns = [{"role": "user", "content": "\x01"}, {"role": "assistant", "content": "\x02"}]
    try:
        text = str(tokenizer.apply_chat_template(turns, tokenize=False, enable_thinking=False))
    except Exception:  # a template is a program: it may raise anything
        return None
    _, mark, tail = text.rpartition("\x02")
    return tail if mark else None


def make_plain(tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer the template `plain`, which begins as the tokenizer begins every text."""
    first = tokenizer.encode("")[:1]
    begins = first and first[0] == tokenizer.bos_token_id
    tokenizer.chat_template = ("{{ bos_token }}" if begins else "") + PLAIN


def turn_ends(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids that end a turn, each once.

    These are the `eos_token_id` of the generation config if that is a list; else that one id and the tokenizer's.
    """
    configured = None if generation is None else generation.eos_token_id
    ids = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    # A dict and not a set: the first id ends a completion where the chat template names none.
    return tuple(dict.fromkeys(int(token) for token in ids if isinstance(token, int)))
