"""Prompts and completions of a log as token ids: those that were logged, else those of the text, tokenised again.

A text that is tokenised again has other ids than the sampled ones wherever the sampler left the tokenizer's usual way,
and lacks the end of the turn. So the share of texts that ids give back is counted, and an end is put back by the rule
of `_retokenised`.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from replay_pools.base.errors import Faults
from replay_pools.base.spool import Each, Spool
from replay_pools.logs.padding import cut_left, cut_padding, infer_endings, left_pads
from replay_pools.logs.rows import LogRow
from replay_pools.logs.sources import Fields, described
from replay_pools.policy.chat import Chat
from replay_pools.pool import CAUTION
from replay_pools.rollout import Completion, Prompt
from replay_pools.vocabulary import Vocabulary

CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.S)
# A rendered prompt whose special tokens were skipped on decoding: role words on lines of their own.
SKIPPED = re.compile(
    r"(?:system\n(?P<system>.*?)\n)?user\n(?P<user>.*?)\nassistant\n(?:<think>\n\n</think>\n\n)?", re.S
)
RENDERED = "the prompt was rendered with the template of the model, without thinking"
UNLIKE = "the logged prompt is not what the model's template makes of the messages"
NO_LIMIT = 2**31  # tokens
NEAR = 50  # a text that was cut off has, tokenised again, at most 1 token in so many fewer than the limit (3 at least)
PILE = 3  # texts near the largest length, and times as many as there are near the length before: a limit cut them off


def say_all(rows: Sequence[Fields]) -> bool:
    """Whether ids and texts of all prompts and completions are logged, so that no tokenizer is needed."""
    needed = ("prompt_ids", "rendered", "completion_ids", "completion")
    return all(row.get(name) for row in rows for name in needed)


def _cut_from(lengths: Mapping[int, int], limit: int | None) -> int:
    """The length from which on a text was cut off, of texts without ids; NO_LIMIT where none was.

    A text that was cut off comes back with the limit of its tokens or a few fewer. Without a limit it is guessed from
    {length: texts}: several have the largest length, or many are near it and few before.
    """
    if limit is not None:
        return limit - max(3, limit // NEAR)
    longest = max(lengths, default=0)
    near = max(3, longest // NEAR)
    if len(lengths) < 2:
        return NO_LIMIT
    at_end = sum(count for length, count in lengths.items() if length > longest - near)
    before = sum(count for length, count in lengths.items() if longest - 2 * near < length <= longest - near)
    if at_end >= PILE * max(1, before) and at_end < sum(lengths.values()):
        return longest - near + 1
    return longest if lengths[longest] > 1 else NO_LIMIT


class Tokens:
    """Makes prompts and completions of the rows of one log, and counts whatever it infers or changes.

    Args:
        vocabulary: of the model that sampled; None where it is not at hand, for rows that `say_all`.
        rows: of the log, as their fields; gone through several times.
        faults: where rows go that contradict the tokenizer or themselves.
        limit: of completions, in tokens; None = guessed.
    """

    def __init__(
        self, vocabulary: Vocabulary | None, rows: Sequence[Fields], faults: Faults, limit: int | None = None
    ) -> None:
        self._vocabulary, self.faults = vocabulary, faults
        chat = vocabulary and vocabulary.chat
        self._has_template = chat is not None and bool(chat.tokenizer.chat_template)
        self._ends: Sequence[int] = () if vocabulary is None else vocabulary.turn_ends
        added = {} if chat is None else chat.tokenizer.added_tokens_decoder
        self._special = {token for token, what in added.items() if what.special}  # which decoding leaves out
        self._encoded, self._places = Spool[list[int]](), dict[bytes, int]()  # ids of texts, by their hashes
        self.counts = Counter[str]()  # {sentence: number of rollouts}
        self.num_retokenised = self.num_round_trips = 0
        # The last prompt, which a group shares, and whether no template makes it of its messages; what it was made of.
        self._made: tuple[Prompt, bool] | None = None
        self._made_of: object = None
        # Over the whole log: a single group may have no padded completion to infer from.
        names = ("pad_token_id", "eos_token_id", "bos_token_id")
        pad, eos, bos = (getattr(chat.tokenizer, name) if chat else None for name in names)
        pads = [token for token in (pad, eos, *self._ends) if isinstance(token, int)]
        has, lengths = self._scanned(rows)
        completions, prompts = (
            Each(rows, lambda row, name=name: row.get(name) or []) if name in has else ()
            for name in ("completion_ids", "prompt_ids")
        )
        self._endings = infer_endings(completions, pads, self._ends)
        self._left_pads = left_pads(prompts, pads, pad, bos)
        self._cut_from = _cut_from(lengths, limit)

    def _scanned(self, rows: Sequence[Fields]) -> tuple[set[str], Counter[int]]:
        """(which ids rows have; {tokens: different texts}, of texts without ids of which no end is logged)."""
        has, lengths = set[str](), Counter[int]()
        for row in rows:
            has |= {name for name in ("completion_ids", "prompt_ids") if row.get(name)}
            text = row.get("completion")
            if text and not (row.get("completion_ids") or row.get("finish")) and _hash(text) not in self._places:
                self._places[_hash(text)] = len(self._encoded)
                ids = self._encode(text)
                self._encoded.append(ids)
                lengths[len(ids)] += 1
        return has, lengths

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer, for what was not logged."""
        assert self._vocabulary is not None  # else all rows say all
        return self._vocabulary

    @property
    def chat(self) -> Chat:
        """That of the vocabulary."""
        return self.vocabulary.chat

    def count(self, *rows: tuple[bool, str]) -> None:
        """Count the sentences that hold of one more rollout."""
        self.counts.update(sentence for holds, sentence in rows if holds)

    def prompt(self, row: LogRow) -> Prompt | None:
        """The prompt of a row; None where it is a fault."""
        # Rows of one prompt may differ in what stands before it, which a row without padding may have as content.
        key = (row.prompt_key, *(row.prompt_ids or [])[: row.lead])
        if key != self._made_of:
            self._made_of, self._made = key, self._make_prompt(row)
        if self._made is None:
            return None
        prompt, is_unlike = self._made
        self._count_prompt(row, prompt, is_unlike)
        if row.plen is not None and row.plen != len(prompt.ids):
            fix = "use the model that sampled it"
            if row.prompt_ids is None and row.rendered is None:
                fix += ", or --map rendered=COLUMN where the text was all of the prompt"
            expected, found = f"{row.plen} tokens (plen)", f"{len(prompt.ids)} by the tokenizer"
            fix += "; --map plen=none leaves the number out"
            self.faults.add(f"{row.where} prompt", "plen", expected=expected, found=found, fix=fix)
        return prompt

    def completion(self, row: LogRow) -> tuple[str, Completion] | None:
        """(text, completion) of a row; None where it is a fault or empty."""
        text, sampled = self._logged(row) if row.completion_ids else self._retokenised(row)
        if sampled.ids:
            return text, sampled
        self.faults.add(f"{row.where} completion", "empty", expected="at least one token", found="none")
        return None

    def _make_prompt(self, row: LogRow) -> tuple[Prompt, bool] | None:
        text = row.rendered
        if row.prompt_ids is not None:
            ids = self._without_left_padding(row)
            text = str(self.chat.tokenizer.decode(ids)) if text is None else text
        elif text is not None:
            ids = self._encode(text)
        elif row.skipped is not None:
            restored = self._restored(row, row.skipped)
            return restored and (restored, False)
        else:
            assert row.messages is not None
            return Prompt(row.messages, *self.chat.render(row.messages)), False
        if row.messages is not None:
            is_unlike = self._has_template and self.chat.render(row.messages)[0] != text
            return Prompt(row.messages, text, ids), is_unlike
        # The messages of a rendered prompt, where rendering gives back the text; else the text as one message.
        messages = [{"role": role, "content": content} for role, content in CHATML.findall(text)]
        if not (messages and self._has_template and self.chat.render(messages)[0] == text):
            messages = [{"role": "user", "content": text}]
        return Prompt(messages, text, ids), False

    def _count_prompt(self, row: LogRow, prompt: Prompt, is_unlike: bool) -> None:
        has_ids, has_text, is_skipped = row.prompt_ids is not None, row.rendered is not None, row.skipped is not None
        agrees = " and agree with plen" if row.plen else ""
        is_one = row.messages is None and prompt.messages[0]["content"] == prompt.text
        self.count(
            (len(row.prompt_ids or []) > len(prompt.ids), "left padding of the prompt was cut"),
            (has_ids and not has_text, "the text of the prompt was decoded from its ids"),
            (is_unlike, f"caution: {UNLIKE}"),
            (has_text and not has_ids, f"prompt_ids were made by the tokenizer{agrees}"),
            (not (has_ids or has_text or is_skipped), RENDERED),
            (is_skipped, "the prompt was restored from its role words, and its rendering decodes to the logged text"),
            (is_one, "messages are not known: the rendered prompt stands for one message"),
        )

    def _without_left_padding(self, row: LogRow) -> list[int]:
        ids = row.prompt_ids or []
        if row.plen is None:
            return cut_left(ids, self._left_pads)
        start = max(0, len(ids) - row.plen)
        if len(set(ids[:start])) > 1:
            expected, found = "padding before the last plen ids", f"{len(set(ids[:start]))} different ids"
            self.faults.add(f"{row.where} prompt_ids", "left padding", expected=expected, found=found)
        return ids[start:]

    def _restored(self, row: LogRow, skipped: str) -> Prompt | None:
        """The prompt whose rendering decodes, without special tokens, to what was logged."""
        if match := SKIPPED.fullmatch(skipped):
            messages = [{"role": role, "content": text} for role, text in match.groupdict().items() if text is not None]
            text, ids = self.chat.render(messages)
            if self.chat.decode(ids) == skipped:
                return Prompt(messages, text, ids)
        expected = f"a prompt that the template of {self.chat.base_model} gives back"
        fix = "log the messages or the ids of the prompt, or use the model that sampled it"
        self.faults.add(f"{row.where} prompt", "skipped", expected=expected, found=described(skipped), fix=fix)
        return None

    def _encode(self, text: str) -> list[int]:
        return self.chat.tokenizer.encode(text, add_special_tokens=False)

    def _logged(self, row: LogRow) -> tuple[str, Completion]:
        """The logged ids without padding; anything else is content, and is not cut."""
        stored = row.completion_ids or []
        ids = cut_padding(stored, row.comp_len, self._endings, was_cut_off=row.finish == "length")
        cut = set(stored[len(ids) :])
        if len(cut) > 1 or (row.comp_len or 0) > len(stored):
            expected = f"{row.comp_len} completion_ids (comp_len), and padding behind them"
            found, fix = f"{len(stored)}, of which {len(ids)} are kept", "--map comp_len=none leaves the number out"
            self.faults.add(f"{row.where} comp_len", "comp_len", expected=expected, found=found, fix=fix)
        eos = self._endings.eos
        if cut:
            self.count((True, f"right padding (id {stored[-1]}) was cut; id {eos} is taken for the end of a turn"))
        finish = row.finish
        if finish is None:
            # It stopped if it was padded, ends a turn, or (where no id ends turns) is not among the longest.
            ends_turn = bool(ids) and ids[-1] in (*self._ends, eos)
            is_shorter = eos is None and len(ids) < self._endings.longest
            finish = "stop" if cut or ends_turn or is_shorter else "length"
            self.count((True, "finish_reason was inferred from the last id and the length"))
        logprobs = row.logprobs and row.logprobs[: len(ids)]
        if logprobs and len(logprobs) != len(ids):
            found, fix = f"{len(logprobs)} for {len(ids)} ids", "--map logprobs=none leaves them out"
            self.faults.add(f"{row.where} logprobs", "logprobs", expected="one an id", found=found, fix=fix)
        text = row.completion
        if text is None:
            self.count((True, "the text of the completion was decoded from its ids"))
            text = self.vocabulary.decode(ids)
        return text, Completion(ids=ids, logprobs=logprobs or None, finish_reason=finish)

    def _retokenised(self, row: LogRow) -> tuple[str, Completion]:
        """The ids of the text, with an end of turn where the completion stopped and the text has none."""
        text = row.completion or ""
        place = self._places.get(_hash(text))
        encoded = self._encode(text) if place is None else self._encoded[place]
        ids, ended = encoded, bool(encoded) and encoded[-1] in self._ends
        finish = "stop" if ended else row.finish
        if finish is None:
            finish = "length" if len(ids) >= self._cut_from else "stop"
            rule = "every text is taken to have stopped"
            if self._cut_from < NO_LIMIT:
                rule = (
                    f"texts of {self._cut_from} tokens and more are taken to have been cut off, others to have stopped"
                )
            mark = CAUTION if self._cut_from < NO_LIMIT else ""
            fix = "--map finish=COLUMN, or --completion-limit TOKENS"
            self.count((True, f"{mark}finish_reason is not logged: {rule} ({fix})"))
        if finish == "stop" and not ended:
            end = self.chat.turn_end
            ids = [*ids, end]
            self.count((True, f"the end of the turn (id {end}) was put behind texts that stopped"))
        decoded = back = self.vocabulary.decode(ids)
        if encoded != [token for token in ids if token not in self._special]:
            back = str(self.chat.tokenizer.decode(encoded, clean_up_tokenization_spaces=False))
        self.num_retokenised += 1
        self.num_round_trips += back == text
        return decoded, Completion(ids=ids, logprobs=None, finish_reason=finish)


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]
