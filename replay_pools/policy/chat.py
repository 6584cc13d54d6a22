"""The text side of a policy: messages to prompt ids, completion ids to text, and end-of-turn ids."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

from transformers import GenerationConfig, PreTrainedTokenizerBase

from replay_pools.base.errors import InputError
from replay_pools.base.files import sha256

PLAIN = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


class Chat(ABC):
    """A tokenizer with its chat template. Subclasses supply the two attributes and `eos_ids`.

    `Policy` holds the weights in this process, `ServedPolicy` uses a server.

    Attributes:
        tokenizer: the policy's tokenizer.
        base_model: the name it was loaded by.
    """

    # The subclasses are dataclasses with slots; a base class without slots would give them a __dict__.
    __slots__ = ()
    tokenizer: PreTrainedTokenizerBase
    base_model: str

    @property
    @abstractmethod
    def eos_ids(self) -> tuple[int, ...]:
        """All ids that end a turn."""

    def render(self, messages: Sequence[dict[str, str]]) -> tuple[str, list[int]]:
        """Return (text, ids) of the prompt: the messages in the chat template, with the generation prompt.

        Raises:
            InputError: the tokenizer has no chat template, or the template fails.
        """
        if not self.tokenizer.chat_template:
            fix = "for plain-text prompts use --template plain, or model.template=plain"
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
        # The template already wrote the special tokens; the tokenizer must not add a second BOS.
        return str(text), self.tokenizer.encode(str(text), add_special_tokens=False)

    def prompt_tail(self) -> str:
        """Return the text that the template puts after the last user turn of every prompt.

        Raises:
            InputError: the text depends on the message.
        """
        tails: list[str] = []
        for mark in ("\x01", "\x02"):  # no template contains these messages, so the text after them is the template's
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

        It is the first of `eos_ids` that the chat template puts after an answer, else `eos_ids[0]`.

        Raises:
            InputError: no id ends a turn.
        """
        return self._answer_end()[1]

    def turn_end_caution(self) -> str | None:
        """Return a warning if the chat template ends an answer without an end-of-turn token; else None."""
        tail = self._answer_tail()
        if not self.tokenizer.chat_template or self.is_plain or (tail is not None and self._stop_in(tail)):
            return None
        found = "renders no answer" if tail is None else f"ends an answer in {tail!r}, no stop token"
        end = self.tokenizer.convert_ids_to_tokens(self.turn_end)
        return f"caution: the chat template of {self.base_model} {found}: written answers end in {end!r}"

    def completion_ids(self, text: str) -> list[int]:
        """Return the ids of a written (not sampled) completion, ended as in the chat template."""
        lead, end = self._answer_end()
        return [*self.tokenizer.encode(text + lead, add_special_tokens=False), end]

    def _answer_end(self) -> tuple[str, int]:
        """Return the template's text between an answer and its end-of-turn id, and the id."""
        tail = self._answer_tail()
        if tail is not None and (stop := self._stop_in(tail)) is not None:
            return stop
        if not self.eos_ids:
            fix = "set tokenizer.eos_token, and save the tokenizer with the model"
            raise InputError(f"model {self.base_model}", expected="a token that ends a turn", found="none", fix=fix)
        return "", self.eos_ids[0]

    def _answer_tail(self) -> str | None:
        """Return the text that the template puts after an answer; None if no template renders one."""
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
        """Decode completion ids to text, without special tokens."""
        # The clean-up would remove spaces before punctuation, which changes code.
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @property
    def is_plain(self) -> bool:
        """True if prompts are the plain texts of their messages."""
        return str(self.tokenizer.chat_template).endswith(PLAIN)

    def tokenizer_sha(self) -> str:
        """Return the sha256 of the vocabulary and the chat template; `plain` counts as no template."""
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        template = None if self.is_plain else self.tokenizer.chat_template
        return sha256(f"{vocabulary!r}\x00{template}".encode())

    def template_sha(self) -> str:
        """Return the sha256 of the chat template."""
        return sha256(str(self.tokenizer.chat_template).encode())


@lru_cache(maxsize=8)
def _rendered_tail(tokenizer: PreTrainedTokenizerBase, template: str) -> str | None:
    """Return `Chat._answer_tail` of a tokenizer; the template is an argument because it may change."""
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
    """Give a tokenizer the template `plain`, with a BOS token if the tokenizer adds one."""
    first = tokenizer.encode("")[:1]
    begins = first and first[0] == tokenizer.bos_token_id
    tokenizer.chat_template = ("{{ bos_token }}" if begins else "") + PLAIN


def turn_ends(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end a turn, each once.

    They are the `eos_token_id` of the generation config if it is a list, else that id and the tokenizer's.
    """
    configured = None if generation is None else generation.eos_token_id
    ids = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    # A dict keeps the order: the first id ends a completion if the chat template names none.
    return tuple(dict.fromkeys(int(token) for token in ids if isinstance(token, int)))
