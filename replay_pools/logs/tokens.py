"""Prompts and completions of a log as token ids: those that were logged, else those of the text, tokenised again.

A text that is tokenised again has other ids than the sampled ones wherever the sampler left the tokenizer's usual way,
and lacks the end of the turn. So the share of texts that ids give back is counted, and an end is put back by the rule
of `ends`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from replay_pools.errors import Faults
from replay_pools.logs.padding import Endings, cut_padding, infer_endings
from replay_pools.logs.rows import Chat as Messages
from replay_pools.logs.rows import LogRow, leading_run
from replay_pools.policy.chat import Chat
from replay_pools.rollout import FinishReason

CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.S)
# A rendered prompt whose special tokens were skipped on decoding: role words on lines of their own.
SKIPPED = re.compile(
    r"(?:system\n(?P<system>.*?)\n)?user\n(?P<user>.*?)\nassistant\n(?:<think>\n\n</think>\n\n)?", re.S
)
NO_LENGTH = "--map comp_len=none leaves the number out"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model saw it."""

    messages: Messages
    text: str
    ids: list[int]
    differs: bool = False  # from what the template makes of the messages


@dataclass(frozen=True, slots=True)
class Sampled:
    """A completion as the model sampled it, or as it would be tokenised."""

    text: str
    ids: list[int]
    finish: FinishReason
    logprobs: list[float] | None


@dataclass(slots=True)
class Tokens:
    """Makes prompts and completions of the rows of one log, and counts in `log` whatever it infers or changes.

    Args:
        chat: the tokenizer and template of the model that sampled.
        rows: of the log.
        faults: where rows go that contradict the tokenizer or themselves.
    """

    chat: Chat
    rows: Sequence[LogRow]
    faults: Faults
    log: Counter[str] = field(default_factory=Counter)  # {sentence: number of rollouts}
    num_retokenised: int = 0
    num_round_trips: int = 0  # of these
    _prompts: dict[object, Prompt | None] = field(default_factory=dict)
    _endings: Endings = field(init=False)
    _left_pads: dict[int, int] = field(init=False)  # {id that pads prompts on the left: how many of it are content}
    _longest: int = field(init=False)

    def __post_init__(self) -> None:
        # Over the whole log: a single group may have no padded completion to infer from.
        ends = self.chat.eos_ids
        tokenizer = self.chat.tokenizer
        pads = [pad for pad in (tokenizer.pad_token_id, tokenizer.eos_token_id, *ends) if isinstance(pad, int)]
        completions = [row.completion_ids for row in self.rows if row.completion_ids]
        self._endings = infer_endings(completions, pads, ends)
        self._left_pads = self._padding_of_prompts(pads)
        self._longest = self._cap()

    def prompt(self, row: LogRow) -> Prompt | None:
        """The prompt of a row; None where it is a fault."""
        # Rows of one prompt may differ in what stands before it, which a row without padding may have as content.
        key = (row.prompt_key, *(row.prompt_ids or [])[: row.lead])
        if key not in self._prompts:
            self._prompts[key] = self._make_prompt(row)
        prompt = self._prompts[key]
        if prompt is not None:
            self._count_prompt(row, prompt)
            if row.plen is not None and row.plen != len(prompt.ids):
                expected = f"{row.plen} tokens (plen)"
                found, fix = f"{len(prompt.ids)} by the tokenizer", "use the model that sampled it"
                if row.prompt_ids is None and row.rendered is None:
                    fix += ", or --map rendered=COLUMN where the text was all of the prompt"
                fix += "; --map plen=none leaves the number out"
                self.faults.add(f"{row.where} prompt", "plen", expected=expected, found=found, fix=fix)
        return prompt

    def completion(self, row: LogRow) -> Sampled | None:
        """The completion of a row; None where it is a fault or empty."""
        sampled = self._logged(row) if row.completion_ids else self._retokenised(row)
        if not sampled.ids:
            self.faults.add(f"{row.where} completion", "empty", expected="at least one token", found="none")
            return None
        return sampled

    def _make_prompt(self, row: LogRow) -> Prompt | None:
        if row.prompt_ids is not None:
            ids = self._without_left_padding(row)
            text = row.rendered if row.rendered is not None else str(self.chat.tokenizer.decode(ids))
            return self._as_logged(row, text, ids)
        if row.rendered is not None:
            return self._as_logged(row, row.rendered, self._encode(row.rendered))
        if row.skipped is not None:
            return self._restored(row)
        assert row.messages is not None
        text, ids = self.chat.render(row.messages)
        return Prompt(row.messages, text, ids)

    def _as_logged(self, row: LogRow, text: str, ids: list[int]) -> Prompt:
        """The prompt as it was logged, with its messages."""
        if row.messages is None:
            return Prompt(self._messages(text), text, ids)
        has_template = bool(self.chat.tokenizer.chat_template)
        return Prompt(row.messages, text, ids, has_template and self.chat.render(row.messages)[0] != text)

    def _count_prompt(self, row: LogRow, prompt: Prompt) -> None:
        if row.prompt_ids is not None and len(row.prompt_ids) > len(prompt.ids):
            self.log["left padding of the prompt was cut"] += 1
        if row.prompt_ids is not None and row.rendered is None:
            self.log["the text of the prompt was decoded from its ids"] += 1
        if prompt.differs:
            self.log["caution: the logged prompt is not what the model's template makes of the messages"] += 1
        if row.prompt_ids is None and row.rendered is not None:
            self.log["prompt_ids were made by the tokenizer" + (" and agree with plen" if row.plen else "")] += 1
        if row.prompt_ids is None and row.rendered is None and row.skipped is None:
            self.log["the prompt was rendered with the template of the model, without thinking"] += 1
        if row.skipped is not None:
            self.log["the prompt was restored from its role words, and its rendering decodes to the logged text"] += 1
        if row.messages is None and prompt.messages[0]["content"] == prompt.text:
            self.log["messages are not known: the rendered prompt stands for one message"] += 1

    def _padding_of_prompts(self, pads: Sequence[int]) -> dict[int, int]:
        """What pads prompts on the left where their length is not logged, by the ids that lead them in the log.

        The pad id does wherever it leads; an id that ends turns, where it leads in a run of two or more, or not all
        prompts. An id that also begins texts is content once, where it leads every prompt.
        """
        tokenizer, lead = self.chat.tokenizer, Counter[int]()
        prompts = [row.prompt_ids for row in self.rows if row.prompt_ids]
        for ids in prompts:
            lead[ids[0]] = max(lead[ids[0]], leading_run(ids))
        padding: dict[int, int] = {}
        for pad in {*pads} & lead.keys():
            begins_texts = pad == tokenizer.bos_token_id
            leads_all = all(ids[0] == pad for ids in prompts)
            if lead[pad] > 1 or (not begins_texts and (pad == tokenizer.pad_token_id or not leads_all)):
                padding[pad] = int(begins_texts and leads_all)
        return padding

    def _without_left_padding(self, row: LogRow) -> list[int]:
        ids = row.prompt_ids or []
        if row.plen is None:
            is_padded = bool(ids) and ids[0] in self._left_pads
            return ids[leading_run(ids) - self._left_pads[ids[0]] :] if is_padded else ids
        start = max(0, len(ids) - row.plen)
        if len(set(ids[:start])) > 1:
            expected, found = "padding before the last plen ids", f"{len(set(ids[:start]))} different ids"
            self.faults.add(f"{row.where} prompt_ids", "left padding", expected=expected, found=found)
        return ids[start:]

    def _messages(self, text: str) -> Messages:
        """The messages of a rendered prompt, where rendering gives back the text; else the text as one message."""
        messages = [{"role": role, "content": content} for role, content in CHATML.findall(text)]
        if messages and self.chat.tokenizer.chat_template and self.chat.render(messages)[0] == text:
            return messages
        return [{"role": "user", "content": text}]

    def _restored(self, row: LogRow) -> Prompt | None:
        """The prompt whose rendering decodes, without special tokens, to what was logged."""
        assert row.skipped is not None
        if match := SKIPPED.fullmatch(row.skipped):
            roles = {role: match[role] for role in ("system", "user") if match[role] is not None}
            messages = [{"role": role, "content": content} for role, content in roles.items()]
            text, ids = self.chat.render(messages)
            if self.chat.decode(ids) == row.skipped:
                return Prompt(messages, text, ids)
        expected = f"a prompt that the template of {self.chat.base_model} gives back"
        fix = "log the messages or the ids of the prompt, or use the model that sampled it"
        where = f"{row.where} prompt"
        self.faults.add(where, "skipped", expected=expected, found=repr(row.skipped[:40]), fix=fix)
        return None

    def _encode(self, text: str) -> list[int]:
        return self.chat.tokenizer.encode(text, add_special_tokens=False)

    def _logged(self, row: LogRow) -> Sampled:
        """The logged ids without padding; anything else is content, and is not cut."""
        stored = row.completion_ids or []
        place = f"{row.where} comp_len"
        if row.comp_len is not None and row.comp_len > len(stored):
            found = f"{row.comp_len} of {len(stored)}"
            self.faults.add(place, "comp_len", expected="at most as many as completion_ids", found=found, fix=NO_LENGTH)
        ids = cut_padding(stored, row.comp_len, self._endings, was_cut_off=row.finish == "length")
        cut = set(stored[len(ids) :])
        if len(cut) > 1:
            found = f"{len(cut)} different ids behind the first {len(ids)} of {len(stored)}"
            expected = "all completion_ids, or padding behind them"
            self.faults.add(place, "cut", expected=expected, found=found, fix=NO_LENGTH)
        if cut:
            sentence = f"right padding (id {stored[-1]}) was cut; id {self._endings.eos} is taken for the end"
            self.log[f"{sentence} of a turn"] += 1
        finish = row.finish
        if finish is None:
            finish = self._inferred_finish(ids, bool(cut))
            self.log["finish_reason was inferred from the last id and the length"] += 1
        logprobs = row.logprobs and row.logprobs[: len(ids)]
        if logprobs and len(logprobs) != len(ids):
            found = f"{len(logprobs)} for {len(ids)} ids"
            fix = "--map logprobs=none leaves them out"
            self.faults.add(f"{row.where} logprobs", "logprobs", expected="one an id", found=found, fix=fix)
        return Sampled(self._text(row, ids), ids, finish, logprobs or None)

    def _inferred_finish(self, ids: list[int], was_padded: bool) -> FinishReason:
        """A completion stopped if it was padded, ends a turn, or (where no id ends turns) is not among the longest."""
        ends_turn = ids[-1] in (*self.chat.eos_ids, self._endings.eos) if ids else False
        is_shorter = self._endings.eos is None and len(ids) < self._endings.longest
        return "stop" if was_padded or ends_turn or is_shorter else "length"

    def _text(self, row: LogRow, ids: list[int]) -> str:
        """The logged text, else what the ids decode to."""
        if row.completion is not None:
            return row.completion
        self.log["the text of the completion was decoded from its ids"] += 1
        return self.chat.decode(ids)

    def _retokenised(self, row: LogRow) -> Sampled:
        """The ids of the text, with an end of turn where the completion stopped and the text has none."""
        text = row.completion or ""
        ids = self._encode(text)
        self.num_retokenised += 1
        decoded = str(self.chat.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        self.num_round_trips += decoded == text
        ended = bool(ids) and ids[-1] in self.chat.eos_ids
        finish = "stop" if ended else row.finish
        if finish is None:
            finish = "length" if len(ids) >= self._longest else "stop"
            rule = f"a text of {self._longest} tokens was cut off" if self._longest < NO_CAP else "every text is taken"
            rule += ", any other is taken to have stopped" if self._longest < NO_CAP else " to have stopped"
            self.log[f"finish_reason is not logged: {rule} (--map finish=COLUMN)"] += 1
        if finish == "stop" and not ended:
            ids = [*ids, self.chat.eos_ids[0]]
            self.log[f"the end of the turn (id {self.chat.eos_ids[0]}) was put behind texts that stopped"] += 1
        return Sampled(self.chat.decode(ids), ids, finish, None)

    def _cap(self) -> int:
        """The number of tokens at which completions were cut off: the largest, where several texts have it."""
        texts = {
            row.completion for row in self.rows if not row.completion_ids and row.finish is None and row.completion
        }
        lengths = Counter(len(self._encode(text)) for text in texts)
        if not lengths or lengths[max(lengths)] < 2 or len(lengths) < 2:
            return NO_CAP
        return max(lengths)


NO_CAP = 2**31  # tokens
