"""Turn prompts and completions of a log into token ids: the logged ones, else the text is tokenised again.

A text that is tokenised again has other ids than the sampled ones wherever the sampler left the tokenizer's usual way,
and it lacks the end of the turn. So the share of texts that ids give back is counted.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.logs.files import SkipRow, described
from replay_pools.logs.padding import Endings, cut_left, cut_padding
from replay_pools.logs.rollouts import Facts, Logged
from replay_pools.logs.values import Turns, is_plain, plain_chat
from replay_pools.policy.chat import Chat
from replay_pools.pool import CAUTION
from replay_pools.rollout import Completion, FinishReason, Prompt
from replay_pools.vocabulary import Vocabulary

CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.S)
# Tokens that chat templates write; `[INST]` is one of few models.
MARKERS = re.compile(r"<\|[A-Za-z_0-9]+\|>|<[\uff5c][^<>]+[\uff5c]>|<(?:start|end)_of_turn>|\[/?INST\]")
MARKER_AT_END = re.compile(rf"(?:{MARKERS.pattern})\s*$")
# A rendered prompt, decoded without special tokens: role words stand on separate lines.
SKIPPED = re.compile(
    r"(?:system\n(?P<system>.*?)\n)?user\n(?P<user>.*?)\nassistant\n(?:<think>\n\n</think>\n\n)?", re.S
)
RENDERED = "the prompt was rendered with the template of the model, {} thinking"
NO_SCHEMAS = "the schemas of the tools are not logged, and prompts were rendered without them (--map tools=COLUMN)"
UNLIKE = "the logged prompt is not what the model's template makes of the messages"
UNLIKE_LENGTH = "the logged length of the completion is not what the tokenizer makes of its text"
NEAR = 50  # a text that was cut off has, tokenised again, up to 1/50 fewer tokens than the limit (3 at least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokeniser:
    """Makes the prompts and completions of one log.

    `counts` has {sentence: number of rollouts} on everything that is inferred or changed.
    """

    vocabulary: Vocabulary
    endings: Endings
    limit: int | None = None  # of completions, in tokens
    cuts_echo: bool = False  # completions begin with their prompts
    thinks: bool = False  # completions begin with reasoning
    counts: Counter[str] = field(default_factory=Counter)
    last: dict[Any, Any] = field(default_factory=dict)  # the last prompt, which a group shares

    @property
    def chat(self) -> Chat:
        """The chat of the vocabulary."""
        return self.vocabulary.chat

    def tokenise(self, row: Logged, facts: Facts) -> tuple[Prompt, str | list[str], Completion]:
        """Return (prompt, text of the completion or of each of its turns, completion) of a row.

        Raises:
            InputError: ids, lengths or texts that contradict the tokenizer or each other.
            SkipRow: turns that the chat template cannot place.
        """
        if self.cuts_echo and facts.echo is not None:
            row = self._without_echo(row, facts.echo)
        if row.completion_ids is None and row.turns is not None:
            return self._rendered_turns(row)
        prompt = self._prompt(row, facts.prompt_key)
        text, completion = self._logged(row) if row.completion_ids else self._retokenised(row)
        if not completion.ids:
            raise row.refused("completion", "at least one token", "none")
        return prompt, text, completion

    def _count(self, *sentences: tuple[bool, str]) -> None:
        self.counts.update(sentence for holds, sentence in sentences if holds)

    def _without_echo(self, row: Logged, length: int) -> Logged:
        """Return the row without the prompt at the beginning of its completion."""
        text, ids = (row.completion or "")[length:], (row.completion_ids or [])[length:]
        if not (text if row.completion_ids is None else ids):
            raise SkipRow("no answer behind the prompt")
        self._count((True, "the completion began with the prompt, which was cut"))
        if row.completion_ids is None:
            return replace(row, completion=text)
        logprobs = row.logprobs
        if logprobs and len(logprobs) == len(row.completion_ids):
            logprobs = logprobs[length:]
        return replace(row, completion=None, completion_ids=ids, logprobs=logprobs)

    # Prompts

    def _prompt(self, row: Logged, key: int) -> Prompt:
        head = tuple((row.prompt_ids or [])[:2]), len(row.prompt_ids or [])
        if self.last.get("key") != (key, head):
            self.last.update(key=(key, head), made=self._make_prompt(row))
        prompt, is_unlike = self.last["made"]
        has_ids, has_text, is_skipped = row.prompt_ids is not None, row.rendered is not None, row.skipped is not None
        agrees = " and agree with plen" if row.plen else ""
        is_one = row.messages is None and prompt.messages[0]["content"] == prompt.text
        self._count(
            (len(row.prompt_ids or []) > len(prompt.ids), "left padding of the prompt was cut"),
            (has_ids and not has_text, "the text of the prompt was decoded from its ids"),
            (is_unlike, f"{CAUTION}{UNLIKE}"),
            (has_text and not has_ids, f"prompt_ids were made by the tokenizer{agrees}"),
            (not (has_ids or has_text or is_skipped), RENDERED.format("with" if self.thinks else "without")),
            (is_skipped, "the prompt was restored from its role words, and its rendering decodes to the logged text"),
            (is_one, "messages are not known: the rendered prompt stands for one message"),
        )
        if row.plen is not None and row.plen != len(prompt.ids):
            fix = "use the model that sampled it"
            if not has_ids and not has_text:
                fix += ", or --map rendered=COLUMN where the text was all of the prompt"
            fix += "; --map plen=none leaves the number out"
            raise row.refused("prompt", f"{row.plen} tokens (plen)", f"{len(prompt.ids)} by the tokenizer", fix)
        return prompt

    def _make_prompt(self, row: Logged) -> tuple[Prompt, bool]:
        """Return the prompt, and whether the template makes another one of its messages."""
        text = row.rendered
        messages = None if row.messages is None else plain_chat(row.messages)
        if row.prompt_ids is not None:
            ids = self._without_left_padding(row)
            text = str(self.chat.tokenizer.decode(ids)) if text is None else text
        elif text is not None:
            self._check_markup(row, text)
            ids = self._encode(text)
        elif row.skipped is not None:
            return self._restored(row, row.skipped), False
        else:
            assert messages is not None
            assert row.messages is not None
            if row.tools or not is_plain(row.messages):
                turn = [{"role": "assistant", "content": "."}]
                whole = self.chat.render_turns(row.messages, turn, row.tools)
                return Prompt(messages, whole.prompt, whole.prompt_ids), False
            return Prompt(messages, *self.chat.render(messages, thinks=self.thinks)), False
        if messages is not None:
            has_template = bool(self.chat.tokenizer.chat_template)
            return Prompt(messages, text, ids), has_template and not self._is_rendering(messages, text)
        # The messages of a rendered prompt, where rendering gives back the text; else the text as one message.
        messages = [{"role": role, "content": content} for role, content in CHATML.findall(text)]
        if not (messages and self._is_rendering(messages, text)):
            messages = [{"role": "user", "content": text}]
        return Prompt(messages, text, ids), False

    def _is_rendering(self, messages: list[dict[str, str]], text: str) -> bool:
        """Return whether the template makes this text of the messages, with or without thinking."""
        has_template = bool(self.chat.tokenizer.chat_template)
        return has_template and any(self.chat.render(messages, thinks=thinks)[0] == text for thinks in (False, True))

    def _check_markup(self, row: Logged, text: str, target: str = "prompt") -> None:
        """Refuse a text in the chat markup of another model: none of its markers is a token."""
        tokenizer = self.chat.tokenizer
        markers, template = {*MARKERS.findall(text)}, str(tokenizer.chat_template)
        if markers and not any(marker in template or len(self._encode(marker)) == 1 for marker in markers):
            expected, fix = (
                f"the chat markup of {self.chat.base_model}",
                "use the model that sampled it, or log the messages",
            )
            raise row.refused(target, expected, f"{', '.join(sorted(markers))}: no tokens", fix)

    def _without_left_padding(self, row: Logged) -> list[int]:
        ids = row.prompt_ids or []
        if row.plen is None:
            return cut_left(ids, self.endings)
        start = max(0, len(ids) - row.plen)
        if (num := len({*ids[:start]})) > 1:
            raise row.refused("prompt_ids", "padding before the last plen ids", f"{num} different ids")
        return ids[start:]

    def _restored(self, row: Logged, skipped: str) -> Prompt:
        """Return the prompt that is rendered and decoded, without special tokens, to the logged text."""
        if match := SKIPPED.fullmatch(skipped):
            messages = [{"role": role, "content": text} for role, text in match.groupdict().items() if text is not None]
            for thinks in (False, True):
                text, ids = self.chat.render(messages, thinks=thinks)
                if self.chat.decode(ids) == skipped:
                    return Prompt(messages, text, ids)
        expected = f"a prompt that the template of {self.chat.base_model} gives back"
        fix = "log the messages or the ids of the prompt, or use the model that sampled it"
        raise row.refused("prompt", expected, described(skipped), fix)

    def _encode(self, text: str) -> list[int]:
        return self.chat.tokenizer.encode(text, add_special_tokens=False)

    # Completions

    def _rendered_turns(self, row: Logged) -> tuple[Prompt, str | list[str], Completion]:
        """Place the turns of a rollout by the chat template; return prompt, text and completion."""
        turns: Turns = row.turns or []
        if row.messages is None or row.rendered is not None:
            raise SkipRow("several turns as text, behind a prompt that is not messages")
        try:
            whole = self.chat.render_turns(row.messages, turns, row.tools)
        except InputError as error:
            raise SkipRow(f"turns that cannot be placed ({error.expected})") from error
        ids, mask = whole.ids, whole.mask
        finish: FinishReason = row.finish or "stop"
        if finish == "length" and len(ids) > 1:
            ids, mask = ids[:-1], mask[:-1]
        prompt = Prompt(plain_chat(row.messages), whole.prompt, whole.prompt_ids)
        texts = [self.chat.decode(ids)] if all(mask) else self.chat.decode_turns(ids, mask)
        own = [turn for turn in turns if turn["role"] == "assistant"]
        shown = texts[::2] if len(texts[::2]) == len(own) else [texts[0]] * len(own)
        for turn, text in zip(own, shown, strict=True):
            if hidden := next((what for what, said in _beside(turn) if said not in text), None):
                raise SkipRow(f"{hidden} that the chat template does not show")
        uses_tools = any("tool_calls" in turn or turn["role"] == "tool" for turn in turns)
        self._count(
            (uses_tools and not row.tools, f"{CAUTION}{NO_SCHEMAS}"),
            (True, f"{CAUTION}turns were placed by the chat template: a tool's answer between them has no loss"),
            (row.finish is None, "the last turn is taken to have stopped"),
        )
        self.counts[RETOKENISED] += 1
        self.counts[ROUND_TRIPS] += all(turn["content"].strip() in text for turn, text in zip(own, shown, strict=True))
        return (
            prompt,
            texts if len(texts) > 1 else texts[0],
            Completion(ids=ids, logprobs=None, finish_reason=finish, mask=mask),
        )

    def _logged(self, row: Logged) -> tuple[str | list[str], Completion]:
        """Return text and completion of logged ids, without padding; anything else is content, and is not cut.

        Ids with a mask have no padding; they have the text of each turn.
        """
        ids = stored = row.completion_ids or []
        mask = row.mask if row.mask and not all(row.mask) else None
        if row.mask is None:
            ids = cut_padding(stored, row.comp_len, self.endings, was_cut_off=row.finish == "length")
        cut = {*stored[len(ids) :]}
        if len(cut) > 1 or (row.comp_len or 0) > len(stored):
            expected = f"{row.comp_len} completion_ids (comp_len), and padding behind them"
            found, fix = f"{len(stored)}; {len(ids)} of them are kept", "--map comp_len=none leaves the number out"
            raise row.refused("comp_len", expected, found, fix)
        if row.logprobs and len(row.logprobs) not in (len(ids), len(stored)):
            found, fix = f"{len(row.logprobs)} for {len(ids)} ids", "--map logprobs=none leaves them out"
            raise row.refused("logprobs", "one an id", found, fix)
        # It stopped if it was padded, or if its last id ends a turn.
        finish = row.finish or ("stop" if cut or {*ids[-1:]} & self.endings.turn_ends else "length")
        text: str | list[str] | None = row.completion
        self._count(
            (mask is not None, "ids that the mask leaves out are not sampled: they have no loss"),
            (bool(cut), f"right padding (id {stored[-1]}) was cut"),
            (row.finish is None, f"finish_reason was inferred from the last id: {finish}"),
            (mask is None and text is None, "the text of the completion was decoded from its ids"),
        )
        if mask is not None:
            text = self.chat.decode_turns(ids, mask)
        elif text is None:
            text = self.vocabulary.decode(ids)
        logprobs = (row.logprobs or [])[: len(ids)] or None
        return text, Completion(ids=ids, logprobs=logprobs, finish_reason=finish, mask=mask)

    def _retokenised(self, row: Logged) -> tuple[str, Completion]:
        """Return text and ids of a text, with an end of turn where the completion stopped and the text has none."""
        text = row.completion or ""
        if end := MARKER_AT_END.search(text):
            self._check_markup(row, end[0], "completion")
        encoded = self._encode(text)
        ids, ended = encoded, bool(encoded) and encoded[-1] in self.vocabulary.chat.eos_ids
        finish = "stop" if ended else row.finish
        if finish is None:
            cut_from = None if self.limit is None else self.limit - max(3, self.limit // NEAR)
            finish = "length" if cut_from is not None and len(ids) >= cut_from else "stop"
            rule = "every text is taken to have stopped"
            if cut_from is not None:
                rule = f"texts of {cut_from} tokens and more are taken to have been cut off, others to have stopped"
            fix = "--map finish=COLUMN, or --completion-limit TOKENS"
            self._count((True, f"finish_reason is not logged: {rule} ({fix})"))
        if finish == "stop" and not ended:
            end = self.chat.turn_end
            ids = [*ids, end]
            self._count((True, f"the end of the turn (id {end}) was put behind texts that stopped"))
        length = row.comp_len if row.comp_len is not None else len(row.logprobs or [])
        is_unlike = bool(length) and length not in (len(encoded), len(encoded) + 1)  # with the end of the turn
        self._count(
            (is_unlike, f"{CAUTION}{UNLIKE_LENGTH}"),
            (bool(row.logprobs), f"{CAUTION}log-probabilities were left out: the ids that they are of are not logged"),
        )
        decoded = back = self.vocabulary.decode(ids)
        special = {token for token, what in self.chat.tokenizer.added_tokens_decoder.items() if what.special}
        if special & {*encoded}:
            back = str(self.chat.tokenizer.decode(encoded, clean_up_tokenization_spaces=False))
        self.counts[RETOKENISED] += 1
        self.counts[ROUND_TRIPS] += back == text
        return decoded, Completion(ids=ids, logprobs=None, finish_reason=finish)


def _beside(turn: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parts of a turn other than its text: (its kind, a text that stands in it)."""
    if reasoning := turn.get("reasoning_content"):
        yield "reasoning", reasoning.strip()
    for call in turn.get("tool_calls") or []:
        function = call.get("function", call) if isinstance(call, dict) else {}
        yield "a tool call", str(function.get("name"))


RETOKENISED, ROUND_TRIPS = "retokenised", "round trips"  # counts that are no sentences
