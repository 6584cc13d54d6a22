"""Turn prompts and completions of a log into token ids: the logged ones, else the text is tokenised again.

A text that is tokenised again has other ids than the sampled ones wherever the sampler left the tokenizer's usual way,
and it lacks the end of the turn. So the share of texts that ids give back is counted.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from replay_pools.base.errors import InputError
from replay_pools.logs.columns import MARKUP
from replay_pools.logs.parse import SHORTEST_ECHO, Logged
from replay_pools.logs.rows import SkipRow, described
from replay_pools.logs.values import Turns, is_plain, plain_chat
from replay_pools.policy.chat import Chat
from replay_pools.pool import CAUTION
from replay_pools.rollout import Completion, FinishReason, Prompt

CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.S)
# Tokens that chat templates write; `[INST]` is one of few models.
MARKERS = re.compile(r"<\|[A-Za-z_0-9]+\|>|<[\uff5c][^<>]+[\uff5c]>|<(?:start|end)_of_turn>|\[/?INST\]")
MARKER_AT_END = re.compile(rf"(?:{MARKERS.pattern})\s*$")
# A rendered prompt, decoded without special tokens: role words stand on separate lines.
SKIPPED = re.compile(r"(?s)(?:system\n(?P<system>.*?)\n)?user\n(?P<user>.*?)\nassistant\n(<think>\n\n</think>\n\n)?")
TOOL_IN_TEXT = re.compile(r"<(tool_response|tool_result|information|observation|interpreter)>")
NEAR = 50  # a text that was cut off has, tokenised again, up to 1/50 fewer tokens than the limit (3 at least)


@dataclass(frozen=True, kw_only=True)
class Tokeniser:
    """Makes the prompts and completions of one log.

    `counts` has {sentence: number of rows} on everything that is inferred or changed.
    """

    chat: Chat
    limit: int | None = None  # of completions, in tokens
    cuts_echo: bool = False  # completions begin with their prompts
    thinks: bool = False  # completions begin with reasoning
    counts: Counter[str] = field(default_factory=Counter)
    texts: Counter[bool] = field(default_factory=Counter)  # {its ids give the text back: number}, of tokenised texts
    last: dict[Any, Any] = field(default_factory=dict)  # the last prompt, which a group shares

    @cached_property
    def pads(self) -> Set[int]:
        """The ids that pad: the tokenizer's, and those that end turns."""
        own = (self.chat.tokenizer.pad_token_id, self.chat.tokenizer.eos_token_id)
        return {*self.chat.eos_ids, *(token for token in own if isinstance(token, int))}

    def notes(self, start: str = "") -> list[str]:
        """Return the sentences of `counts` that start so, with their numbers of rows."""
        return [type(text)(f"{text} ({num} rows)") for text, num in self.counts.items() if text.startswith(start)]

    def tokenise(self, row: Logged, known: Logged) -> tuple[Prompt, str | list[str], Completion]:
        """Return (prompt, text of the completion or of each of its turns, completion) of a row.

        Raises:
            InputError: ids, lengths or texts that contradict the tokenizer or each other.
            SkipRow: turns that the chat template cannot place.
        """
        if self.cuts_echo and known.echo is not None:
            if row.completion_ids is None:
                row.said.completion = (row.completion or "")[known.echo :]
            else:
                row.said.completion, row.said.completion_ids = None, row.completion_ids[known.echo :]
            if not (row.completion or row.completion_ids):
                raise SkipRow("no answer behind the prompt")
            self._count((True, "the completion began with the prompt, which was cut"))
        elif (known.echo or 0) >= SHORTEST_ECHO:
            self._count((True, f"{CAUTION}the completion begins with the prompt, unlike others: it was not cut"))
        if row.completion_ids is None and row.turns is not None:
            return self._rendered_turns(row, row.turns)
        prompt = self._prompt(row, known.prompt_key)
        text, completion = self._logged(row, row.completion_ids) if row.completion_ids else self._retokenised(row)
        if not completion.ids:
            raise row.refused("completion", "at least one token", "none")
        return prompt, text, completion

    def _count(self, *sentences: tuple[bool, str]) -> None:
        self.counts.update(sentence for holds, sentence in sentences if holds)

    # Prompts

    def _prompt(self, row: Logged, key: int) -> Prompt:
        head = tuple((row.prompt_ids or [])[:2]), len(row.prompt_ids or [])
        if self.last.get("key") != (key, head):
            self.last.update(key=(key, head), made=self._make_prompt(row))
        prompt, notes = self.last["made"]
        self.counts.update(notes)
        if row.plen is not None and row.plen != len(prompt.ids):
            fix = "use the model that sampled it; --map plen=none leaves it out, rendered=COLUMN takes the text whole"
            raise row.refused("prompt", f"{row.plen} tokens (plen)", f"{len(prompt.ids)} by the tokenizer", fix)
        return prompt

    def _make_prompt(self, row: Logged) -> tuple[Prompt, list[str]]:
        """Return the prompt, and what was inferred or changed."""
        text, messages = row.rendered, None if row.messages is None else plain_chat(row.messages)
        if row.prompt_ids is not None:
            ids = self._without_left_padding(row, row.prompt_ids)
            notes = ["left padding of the prompt was cut"] if len(ids) < len(row.prompt_ids) else []
            text = str(self.chat.tokenizer.decode(ids)) if text is None else text
        elif text is not None:
            self._check_markup(row, text)
            ids, notes = self._encode(text), ["prompt_ids were made by the tokenizer"]
        elif row.skipped is not None:
            said = "the prompt was restored from its role words, and its rendering decodes to the logged text"
            return self._restored(row, row.skipped), [said]
        else:
            assert messages is not None
            self._check_markup(row, "".join(each["content"] for each in messages if MARKUP.match(each["content"])))
            notes = [f"the prompt was rendered by the model's template, with{'' if self.thinks else 'out'} thinking"]
            if row.tools or not is_plain(row.said.messages):
                whole = self.chat.render_turns(row.said.messages, [{"role": "assistant", "content": "."}], row.tools)
                return Prompt(messages, whole.prompt, whole.prompt_ids), notes
            return Prompt(messages, *self.chat.render(messages, thinks=self.thinks)), notes
        # The messages of a rendered prompt, where rendering gives back the text; else the text as one message.
        found = messages or [{"role": role, "content": content} for role, content in CHATML.findall(text)]
        if found and self.chat.tokenizer.chat_template and text in [made for made, _ in self._renderings(found)]:
            messages = found
        elif messages is None:
            messages = [{"role": "user", "content": text}]
            notes.append("messages are not known: the rendered prompt stands for one message")
        elif self.chat.tokenizer.chat_template:
            notes.append(f"{CAUTION}the logged prompt is not what the model's template makes of the messages")
        return Prompt(messages, text, ids), notes

    def _renderings(self, messages: list[dict[str, str]]) -> Iterator[tuple[str, list[int]]]:
        """Yield text and ids that the template makes of messages, without thinking and with it."""
        return (self.chat.render(messages, thinks=thinks) for thinks in (False, True))

    def _check_markup(self, row: Logged, text: str, target: str = "prompt") -> None:
        """Refuse a text in the chat markup of another model: none of its markers is a token."""
        markers, template = {*MARKERS.findall(text)}, str(self.chat.tokenizer.chat_template)
        if markers and not any(marker in template or len(self._encode(marker)) == 1 for marker in markers):
            found, fix = f"{', '.join(sorted(markers))}: no tokens", "use the model that sampled it"
            raise row.refused(target, f"the chat markup of {self.chat.base_model}", found, fix)

    def _without_left_padding(self, row: Logged, ids: list[int]) -> list[int]:
        if row.plen is None:
            return cut_left(ids, self.pads, self.chat.tokenizer.bos_token_id)
        start = max(0, len(ids) - row.plen)
        if (num := len({*ids[:start]})) > 1:
            raise row.refused("prompt_ids", "padding before the last plen ids", f"{num} different ids")
        return ids[start:]

    def _restored(self, row: Logged, skipped: str) -> Prompt:
        """Return the prompt that is rendered and decoded, without special tokens, to the logged text."""
        if match := SKIPPED.fullmatch(skipped):
            messages = [{"role": role, "content": text} for role, text in match.groupdict().items() if text is not None]
            for text, ids in self._renderings(messages):
                if self.chat.decode(ids) == skipped:
                    return Prompt(messages, text, ids)
        expected = f"a prompt that the template of {self.chat.base_model} gives back"
        fix = "log the messages or the ids of the prompt, or use the model that sampled it"
        raise row.refused("prompt", expected, described(skipped), fix)

    def _encode(self, text: str) -> list[int]:
        return self.chat.tokenizer.encode(text, add_special_tokens=False)

    # Completions

    def _rendered_turns(self, row: Logged, turns: Turns) -> tuple[Prompt, str | list[str], Completion]:
        """Place the turns of a rollout by the chat template; return prompt, text and completion."""
        if row.messages is None or row.rendered is not None:
            raise SkipRow("several turns as text, behind a prompt that is not messages")
        try:
            whole = self.chat.render_turns(row.messages, turns, row.tools)
        except InputError as error:
            raise SkipRow(f"turns that cannot be placed ({error.expected})") from error
        finish: FinishReason = row.finish or "stop"
        end = -1 if finish == "length" and len(whole.ids) > 1 else None
        ids, mask = whole.ids[:end], whole.mask[:end]
        texts = [self.chat.decode(ids)] if all(mask) else self.chat.decode_turns(ids, mask)
        own = [turn for turn in turns if turn["role"] == "assistant"]
        shown = texts[::2] if len(texts[::2]) == len(own) else [texts[0]] * len(own)
        for turn, text in zip(own, shown, strict=True):
            if str(turn.get("reasoning_content", "")).strip() not in text:
                raise SkipRow("reasoning that the chat template does not show")
            if any(str(call["function"].get("name")) not in text for call in turn.get("tool_calls", ())):
                raise SkipRow("a tool call that the chat template does not show")
        uses_tools = any("tool_calls" in turn or turn["role"] == "tool" for turn in turns)
        without = (
            f"{CAUTION}the schemas of the tools are not logged: prompts were rendered without (--map tools=COLUMN)"
        )
        self._count(
            (uses_tools and not row.tools, without),
            (True, f"{CAUTION}turns were placed by the chat template: a tool's answer between them has no loss"),
            (row.finish is None, "the last turn is taken to have stopped"),
        )
        self.texts[all(turn["content"].strip() in text for turn, text in zip(own, shown, strict=True))] += 1
        prompt = Prompt(plain_chat(row.messages), whole.prompt, whole.prompt_ids)
        completion = Completion(ids=ids, logprobs=None, finish_reason=finish, mask=mask)
        return prompt, texts if len(texts) > 1 else texts[0], completion

    def _logged(self, row: Logged, stored: list[int]) -> tuple[str | list[str], Completion]:
        """Return text and completion of logged ids, without padding; anything else is content, and is not cut.

        Ids with a mask have no padding; they have the text of each turn.
        """
        mask, ids, ends = row.mask if row.mask and not all(row.mask) else None, stored, {*self.chat.eos_ids}
        if row.mask is None:
            ids = cut_padding(stored, row.comp_len, self.pads, ends, was_cut_off=row.finish == "length")
        cut = {*stored[len(ids) :]}
        if len(cut) > 1 or (row.comp_len or 0) > len(stored):
            expected = f"{row.comp_len} completion_ids (comp_len), and padding behind them"
            raise row.refused("comp_len", expected, f"{len(stored)}; {len(ids)} are kept", "--map comp_len=none")
        if row.logprobs and len(row.logprobs) not in (len(ids), len(stored)):
            found = f"{len(row.logprobs)} for {len(ids)} ids"
            raise row.refused("logprobs", "one for each id", found, "--map logprobs=none leaves them out")
        # It stopped if it was padded, or if its last id ends a turn.
        finish = row.finish or ("stop" if cut or {*ids[-1:]} & ends else "length")
        self._count(
            (mask is not None, "ids that the mask leaves out are not sampled: they have no loss"),
            (bool(cut), f"right padding (id {stored[-1]}) was cut"),
            (row.finish is None, f"finish_reason was inferred from the last id: {finish}"),
        )
        text = row.completion if row.completion is not None else self.chat.decode(ids)
        logprobs = (row.logprobs or [])[: len(ids)] or None
        completion = Completion(ids=ids, logprobs=logprobs, finish_reason=finish, mask=mask)
        return text if mask is None else self.chat.decode_turns(ids, mask), completion

    def _retokenised(self, row: Logged) -> tuple[str, Completion]:
        """Return text and ids of a text, with an end of turn where the completion stopped and the text has none."""
        text = row.completion or ""
        if end := MARKER_AT_END.search(text):
            self._check_markup(row, end[0], "completion")
        if "\nassistant\n" in text:
            raise SkipRow("several turns in one text, without a mask")
        ids = encoded = self._encode(text)
        has_ended = bool(encoded) and encoded[-1] in self.chat.eos_ids
        finish = "stop" if has_ended else row.finish
        if finish is None:
            cut_from = math.inf if self.limit is None else self.limit - max(3, self.limit // NEAR)
            finish = "length" if len(ids) >= cut_from else "stop"
            rule = f"texts of {cut_from} tokens and more are taken to have been cut off, others to have stopped"
            rule = "every text is taken to have stopped" if self.limit is None else rule
            self._count((True, f"finish_reason is not logged: {rule} (--map finish=COLUMN, --completion-limit TOKENS)"))
        if finish == "stop" and not has_ended:
            ids = [*ids, self.chat.answer_end[1]]
            self._count((True, f"the end of the turn (id {ids[-1]}) was put behind texts that stopped"))
        length = row.comp_len if row.comp_len is not None else len(row.logprobs or [])
        is_unlike = bool(length) and length not in (len(encoded), len(encoded) + 1)  # with the end of the turn
        tool = "completions hold a tool's answer, which counts as sampled: log ids with completion_mask"
        self._count(
            (TOOL_IN_TEXT.search(text) is not None, f"{CAUTION}{tool}"),
            (is_unlike, f"{CAUTION}the logged length of the completion is not what the tokenizer makes of its text"),
            (bool(row.logprobs), f"{CAUTION}log-probabilities were left out: the ids that they are of are not logged"),
        )
        self.texts[str(self.chat.tokenizer.decode(encoded, clean_up_tokenization_spaces=False)) == text] += 1
        return self.chat.decode(ids), Completion(ids=ids, logprobs=None, finish_reason=finish)


def cut_padding(
    ids: Sequence[int], comp_len: int | None, pads: Collection[int], turn_ends: Collection[int], *, was_cut_off: bool
) -> list[int]:
    """Return the completion without its padding.

    An id that repeats at the end may be padding, or an answer that ran in circles until it was cut off. It is padding
    only if the tokenizer pads or ends turns with it.

    Args:
        comp_len: recorded length; None: not recorded.
        pads: ids that pad, with those that end turns (`turn_ends`).
        was_cut_off: the log says that sampling ended at the length, so no end of turn was sampled.
    """
    end = len(ids) if comp_len is None else min(comp_len, len(ids))
    if comp_len is None and ids and ids[-1] in pads:
        end -= next((run for run, token in enumerate(reversed(ids)) if token != ids[-1]), len(ids))
        # One end of turn at the very end may have been sampled; a run of them was not.
        end += was_cut_off and end == len(ids) - 1 and ids[end] in turn_ends
    # The first of pads that end turns is the end of the turn. A length that counts the ids that are no pad lacks it.
    is_open = end == 0 or ids[end - 1] not in turn_ends
    if end < len(ids) and ids[end] in turn_ends and is_open and not was_cut_off:
        end += 1
    return list(ids[:end])


def cut_left(ids: Sequence[int], pads: Collection[int], bos: Any) -> list[int]:
    """Return the prompt without its padding; one id that begins every text stays."""
    start = next((place for place, token in enumerate(ids) if token not in pads), len(ids))
    return list(ids[start - (start > 0 and ids[0] == bos) :])
