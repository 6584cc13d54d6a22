"""The text side of a policy: messages to prompt ids, completion ids to text, end-of-turn ids, and stored ids checked.

chat = load_served_policy("organism")    tokenizer and configs, no weights
faults = id_faults(chat, pool)
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import orjson
from transformers import GenerationConfig, PreTrainedTokenizerBase

from replay_pools.base.errors import Faults, InputError, cut, text_difference
from replay_pools.base.files import sha256
from replay_pools.pool import Pool
from replay_pools.rollout import LARGEST_ID, Rollout, early_end, runs_of

PLAIN = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"

Message = Mapping[str, Any]  # role and content; a turn may have tool_calls and more, which the template writes


class Conversation(NamedTuple):
    """A prompt with the turns after it, as ids."""

    prompt: str
    prompt_ids: list[int]
    ids: list[int]  # of the turns, from the policy's first to the end of its last
    mask: list[bool]  # one an id, True = written by the policy, its end-of-turn id included


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its chat template and what ends a turn: the text side of a policy, wherever its weights are."""

    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    base_model: str  # the name it was loaded by
    generation: GenerationConfig | None = field(repr=False)  # of the model
    vocabulary_size: int = field(default=LARGEST_ID + 1, kw_only=True, repr=False)  # rows of the embedding, if known

    @cached_property  # the tokenizer looks its id up each time
    def eos_ids(self) -> tuple[int, ...]:
        """Return the ids that end a turn, each once.

        They are the `eos_token_id` of the generation config if it is a list, else that id and the tokenizer's.
        """
        configured = None if self.generation is None else self.generation.eos_token_id
        ids = configured if isinstance(configured, list) else [configured, self.tokenizer.eos_token_id]
        # A dict keeps the order: the first id ends a completion if the chat template names none.
        return tuple(dict.fromkeys(int(token) for token in ids if isinstance(token, int)))

    def render(self, messages: Sequence[dict[str, str]], *, thinks: bool = False) -> tuple[str, list[int]]:
        """Return (text, ids) of the prompt: the messages in the chat template, with the generation prompt.

        Args:
            messages: the messages of the prompt.
            thinks: the policy writes reasoning first, if the template has such an option.

        Raises:
            InputError: as `_rendered`.
        """
        text = self._rendered(messages, add_generation_prompt=True, enable_thinking=thinks)
        # The template has written the special tokens already: the tokenizer must not put a second BOS before them.
        return text, self.tokenizer.encode(text, add_special_tokens=False)

    def render_turns(
        self, prompt: Sequence[Message], turns: Sequence[Message], tools: list[dict[str, Any]] | None = None
    ) -> Conversation:
        """Render a prompt and the turns after it, and mark what the policy wrote.

        Every turn of the policy is rendered with all that stands before it. A later turn must not change the earlier
        text, or the policy has not seen this text.

        Args:
            prompt: the messages before the policy's first turn.
            turns: the policy's turns (`assistant`), first one of them, and the turns of tools and users between. What
                follows the policy's last turn has no effect and is left out.
            tools: schemas that the template shows in the prompt.

        Raises:
            InputError: a failing template, one that changes earlier turns, or one that ends a turn in no stop token.
        """
        turns = list[Message](map(_as_sampled, turns))
        own = [place for place, turn in enumerate(turns) if turn.get("role") == "assistant"]
        # Templates of reasoning models render earlier turns as they were sampled in one of these settings alone.
        for thinks in (False, True):
            options = {"tools": tools, "enable_thinking": thinks}
            texts = self._rendered_turns([*prompt], turns, own, options)
            if isinstance(texts, list):
                # Each turn is tokenized alone, as prompts and answers are.
                prompt_ids, *parts = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
                mask = [i % 2 == 0 for i, part in enumerate(parts) for _ in part]
                return Conversation(texts[0], prompt_ids, [*chain(*parts)], mask)
        fix = "log the token ids with a mask of the ids that the policy sampled"
        raise self._template_error("a template that does not change earlier turns", texts, fix)

    def _rendered_turns(
        self, prompt: list[Message], turns: list[Message], own: Sequence[int], options: dict[str, Any]
    ) -> list[str] | str:
        """Return the texts of prompt, a turn of the policy, one of others and so on; or how an earlier text changed."""
        texts: list[str] = []
        written = ""
        for place in own:
            seen = self._rendered([*prompt, *turns[:place]], add_generation_prompt=True, **options)
            whole = self._rendered([*prompt, *turns[: place + 1]], **options)
            for before, after in ((written, seen), (seen, whole)):
                if not after.startswith(before):
                    return text_difference(before, after)
            answer = whole[len(seen) :]
            stops = filter(None, self.tokenizer.convert_ids_to_tokens([*self.eos_ids]))
            ends = [answer.rfind(stop) + len(stop) for stop in stops if stop in answer]
            if not ends:
                expected = "a template that ends an assistant turn in a stop token"
                raise self._template_error(expected, repr(answer[-40:]))
            texts += [seen[len(written) :], answer[: max(ends)]]
            written = seen + texts[-1]
        return texts

    def _rendered(self, messages: Sequence[Message], **options: Any) -> str:
        """Return the text of the messages in the chat template.

        Raises:
            InputError: the tokenizer has no chat template, or one that fails.
        """
        if not self.tokenizer.chat_template:
            fix = "for plain-text prompts use --template plain, or model.template=plain"
            raise self._template_error("a chat template", "a tokenizer without one", fix)
        try:
            return str(self.tokenizer.apply_chat_template([*map(dict, messages)], tokenize=False, **options))
        # A template is a program: it may raise anything.
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            raise self._template_error("a template that renders the messages", found) from error

    def _template_error(self, expected: str, found: str, fix: str = "") -> InputError:
        where = f"chat template of model {self.base_model}"
        return InputError(where, expected=expected, found=cut(found, 200), fix=fix)

    def prompt_tail(self) -> str:
        """Return the text that the template puts after the last user turn of every prompt.

        Raises:
            InputError: the text depends on the message.
        """
        # No template contains these messages, so the text after them is the template's.
        one, other = (self.render([{"role": "user", "content": mark}])[0].rpartition(mark)[2] for mark in "\x01\x02")
        if one != other:
            raise self._template_error("one tail of every prompt", f"{one!r}, {other!r}")
        return one

    def completion_ids(self, text: str) -> list[int]:
        """Return the ids of a written (not sampled) completion, ended as in the chat template."""
        lead, end = self.answer_end
        return [*self.tokenizer.encode(text + lead, add_special_tokens=False), end]

    @property
    def answer_end(self) -> tuple[str, int]:
        """The text that the template puts between an answer and its stop token, and that token's id.

        ("", the first of `eos_ids`) if the template ends an answer in no stop token.

        Raises:
            InputError: the model has no token that ends a turn.
        """
        tail = _rendered_tail(self.tokenizer, str(self.tokenizer.chat_template or ""))
        stops = zip(self.eos_ids, self.tokenizer.convert_ids_to_tokens([*self.eos_ids]), strict=True)
        if places := [(tail.index(text), token) for token, text in stops if text and text in tail]:
            place, token = min(places)
            return tail[:place], token
        if not self.eos_ids:
            fix = "set tokenizer.eos_token, and save the tokenizer with the model"
            raise InputError(f"model {self.base_model}", expected="a token that ends a turn", found="none", fix=fix)
        return "", self.eos_ids[0]

    def decode_turns(self, ids: Sequence[int], mask: Sequence[bool]) -> list[str]:
        """Text of each run of the mask, which together are `decode` of the ids."""
        whole = self.decode(ids)
        ends = [min(len(self.decode(ids[:stop])), len(whole)) for _, stop in runs_of(mask)]
        return [whole[start:stop] for start, stop in pairwise([0, *ends[:-1], len(whole)])]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode completion ids to text, without special tokens."""
        return _decoded(self.tokenizer, tuple(ids))

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


def _as_sampled(turn: Message) -> dict[str, Any]:
    """Return a message as templates want it: a text, maybe empty, and the arguments of tool calls as objects."""
    calls = [{**call, "function": dict(call["function"])} for call in turn.get("tool_calls") or ()]
    for call in calls:
        with suppress(KeyError, orjson.JSONDecodeError):  # none, an object already, or no JSON: left as it is
            call["function"]["arguments"] = orjson.loads(call["function"]["arguments"])
    return {**turn, "content": turn.get("content") or ""} | ({"tool_calls": calls} if calls else {})


@lru_cache(4)  # an import asks for a text three times
def _decoded(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> str:
    # The clean-up would remove spaces before punctuation, which changes code.
    return str(tokenizer.decode([*ids], skip_special_tokens=True, clean_up_tokenization_spaces=False))


@lru_cache(maxsize=8)
def _rendered_tail(tokenizer: PreTrainedTokenizerBase, template: str) -> str:
    """Return the text of `template` behind an answer; "" if it renders none. An argument, because it may change."""
    turns = [{"role": "user", "content": "\x01"}, {"role": "assistant", "content": "\x02"}]
    try:
        text = str(tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, enable_thinking=False))
    except Exception:  # a template is a program: it may raise anything
        return ""
    return text.partition("\x02")[2]


def make_plain(tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer the template `plain`, with a BOS token if the tokenizer adds one."""
    first = tokenizer.encode("")[:1]
    begins = first and first[0] == tokenizer.bos_token_id
    tokenizer.chat_template = ("{{ bos_token }}" if begins else "") + PLAIN


def id_faults(chat: Chat, pool: Pool) -> list[InputError]:
    """Return one error for every kind of fault in a pool, with the number of rollouts that have it."""
    faults = Faults()
    for rollout in chain.from_iterable(pool.steps):
        note_faults(chat, rollout, f"pool {pool.name} step {rollout.step} sample {rollout.sample_id}", faults)
    return faults.errors()


def note_faults(chat: Chat, rollout: Rollout, place: str, faults: Faults) -> None:
    """Add every fault of a rollout at `place` to `faults`: unknown ids, ids after the end of a turn, another text."""
    ids, model, size = rollout.completion_ids, chat.base_model, chat.vocabulary_size
    read = rollout.prompt_ids + ids
    if read and not 0 <= min(read) <= max(read) < size:
        unknown = [token for token in read if not 0 <= token < size]
        found = f"{len(unknown)} others, the first {unknown[0]}"
        faults.add(place, "ids", expected=f"token ids of {model}, 0 to {size - 1}", found=found)
        return  # unknown ids have no text to compare
    if (end := early_end(ids, rollout.completion_mask, chat.eos_ids)) is not None:
        found = f"{len(ids) - end - 1} ids after id {ids[end]} at {end} of {len(ids)}"
        fix = "cut them, with their text, where the turn ends, or mask the turns of tools and users"
        expected = "no id after the end of the turn"
        faults.add(f"{place} completion_ids", "end", expected=expected, found=found, fix=fix)
    for name, text in (("completion", rollout.completion), ("prompt", rollout.prompt)):
        stored = getattr(rollout, f"{name}_ids")
        if stored and (found := _difference(chat.tokenizer, tuple(stored), text)):
            expected = f"the text of {name}_ids by the tokenizer of {model}"
            fix = "check that --model is the model that sampled it"
            faults.add(f"{place} {name}", name, expected=expected, found=found, fix=fix)


def decoded_text(chat: Chat, rollout: Rollout) -> str:
    """Return the decoded ids of a completion if they agree with its stored text, else the stored text.

    Logs keep special tokens in the text, or strip white space; both shift the places of the tokens.
    """
    decoded, stored = chat.decode(rollout.completion_ids), rollout.completion
    return decoded if _bare(chat.tokenizer, decoded) == _bare(chat.tokenizer, stored) else stored


@lru_cache(2)  # rollouts of a group share their prompt
def _difference(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...], text: str) -> str:
    """Return "" if the ids decode to the text, or the text encodes to them; else where they differ."""
    decoded = _decoded(tokenizer, ids)
    if decoded == text or tokenizer.encode(text, add_special_tokens=False) == [*ids]:
        return ""
    # Some loggers decode with clean-up, which removes spaces before punctuation.
    cleaned, whole = (str(tokenizer.decode([*ids], clean_up_tokenization_spaces=clean)) for clean in (True, False))
    is_same = _bare(tokenizer, text) in [_bare(tokenizer, each) for each in (decoded, cleaned, whole)]
    return "" if is_same else text_difference(whole, text)


def _bare(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Strip special tokens, surrounding white space and a truncated last character."""
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, "")
    return text.strip().rstrip("\ufffd").strip()
