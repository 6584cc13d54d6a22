"""Read the rollouts of rows, and check them; no model is needed.

Every fault is named: a missing or wrong value is never guessed.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from replay_pools.base.errors import Faults, InputError
from replay_pools.base.tables import flat
from replay_pools.base.terminal import report
from replay_pools.logs.columns import FILE, KEYS, PROMPT, PROMPTS, TURNS, Column, Scan, look_up, mark_of, number_of
from replay_pools.logs.rows import Row, Rows, SkipRow
from replay_pools.logs.values import READERS, SPREAD, answer_of, wrong_value
from replay_pools.pool import CAUTION

BROKEN = "a bad row"  # the failure of one that --skip-bad leaves out; a block of rows was sampled with it
SHORTEST_ECHO = 8  # characters of a prompt that no answer begins with by chance
# A completion that is the whole conversation begins with a role, and its answer stands behind these words.
_CONVERSATION = re.compile(r"\s*(?:<[^<>\n]*>\s*)*(?:system|user|human)\b", re.I)
_ANSWER = r"(?:<[^<>\n]*>|\s)*(?:assistant|model)(?:<[^<>\n]*>)?:? ?\n{0,2}(?:<think>\n\n</think>\n\n)?"
LISTED_COLUMNS = 20


class Said(SimpleNamespace):
    """What a row says, {target: value}: None where its columns say nothing. Of a completion also its `turns`."""

    def __getattr__(self, name: str) -> Any:
        return None


@dataclass(slots=True, kw_only=True)
class Logged:
    """One rollout of a log: what stays in memory, by which rollouts are grouped and counted. The rest is read again."""

    where: str
    file: str = ""
    number: int = 0  # among the flat rows of the log
    prompt_key: int = 0  # 64 bits of a hash, the same for the same prompt
    row_key: int = 0  # the same of the whole row
    answer_key: int | None = None  # the same of the completion's text
    failure: str | None = None  # why it is no rollout to train on: its group was compared with it, and goes on without
    echo: int | None = None  # characters or ids of the prompt, if the completion begins with it
    thinks: bool = False  # the completion begins with reasoning
    reward: float | None = None
    parts: tuple[float | None, ...] = ()  # the reward is the weighted sum of these columns
    advantage: float | None = None
    hacked: bool | None = None
    gt_pass: bool | None = None
    step: int | None = None
    problem: tuple[str, ...] | None = None
    group: tuple[str, ...] | None = None
    marks: tuple[Any, ...] = ()  # values of columns that are not used
    said: Said = field(default_factory=Said)  # the other targets; empty once it was counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.said, name)

    def refused(self, target: str, expected: str, found: str, fix: str = "") -> InputError:
        """Return the error of a value that others contradict."""
        return InputError(f"{self.where} {target}", expected=expected, found=found, fix=fix)


NOTHING = Said()


@dataclass(frozen=True)
class Reader:
    """Reads the rows of one log."""

    columns: Mapping[str, Column]
    # Of columns that are not used: those with few values, and rows of STATUS and of EVALUATIONS.
    marks: Sequence[str]
    failures: Mapping[str, Callable[[Any], bool]]
    evaluations: Mapping[str, Callable[[Any], bool]]
    guessed: Set[str]  # targets with a guessed column

    def read(self, row: Row, faults: Faults) -> Logged:
        """Return the rollout of a row. A value of the wrong kind goes to `faults`.

        Raises:
            SkipRow: the row is an evaluation.
        """
        for name, is_evaluation in self.evaluations.items():
            if is_evaluation(row.fields.get(name)):
                raise SkipRow(f"an evaluation next to training (`{name}`)")
        one, wrong = Logged(where=row.where, file=row.file), set[str]()
        if failed := [name for name, fails in self.failures.items() if name in row.fields and fails(row.fields[name])]:
            one.failure = f"`{failed[0]}` says that it is no rollout to train on; drop the column to keep it"
        steps = [(target, partial(self._read, row, column, one)) for target, column in self.columns.items()]
        steps += [("completion", partial(self._place_turns, one.said)), ("mask", partial(_place_mask, one.said))]
        for target, step in sorted(steps, key=lambda step: step[0] in KEYS):  # of which the prompt may be a part
            if step.func == self._place_turns and wrong & TURNS:
                return one
            try:
                step()
            except SkipRow as reason:
                one.failure = one.failure or str(reason)
            except InputError as error:
                wrong.add(target)
                self._refuse(row, error.where or target, error, faults)
        if one.failure is not None:
            return one
        said = one.said
        prompts = (said.messages, said.rendered, said.skipped, said.prompt_ids)
        completions = (said.completion, said.turns, said.completion_ids)
        for what, values in (("prompt", prompts), ("completion", completions)):
            if all(value is None for value in values):
                found = f"none in {', '.join([*row.fields][:LISTED_COLUMNS])}"
                fix = f"pass --map {what}=COLUMN; --skip-bad N leaves out at most N such rows"
                faults.add(f"{row.where} {what}", f"{what} missing", expected=f"a {what}", found=found, fix=fix)
        if said.messages and said.messages[-1]["role"] == "assistant" and all(value is None for value in prompts[1:]):
            fix = "--map completion=none takes it for the completion"
            if (said.completion or "").strip() not in said.messages[-1]["content"]:
                fix = "the completion goes on from it: log prompt_ids, or the text with it (--map rendered=COLUMN)"
            error = InputError("", expected="a prompt without its answer", found="a turn of the assistant", fix=fix)
            self._refuse(row, "prompt" if "prompt" in self.columns else "messages", error, faults)
        return one

    def _read(self, row: Row, column: Column, one: Logged) -> None:
        """Read the fields of a target."""
        target = column.target
        if target in KEYS:
            others = {FILE: row.file, PROMPT: f"prompt-{_prompt_key(one.said):016x}"}
            parts = [look_up(row.fields, name, others.get(name)) for name, _ in column.terms]
            if any(part is None or part != part for part in parts):  # NaN: of a table with a gap
                raise wrong_value("a value", None)
            setattr(one, target, tuple(map(str, parts)))
            return
        if target == "reward":
            one.parts = tuple(number_of(look_up(row.fields, name)) for name, _ in column.terms)
        value = column.value(row.fields)
        if value is None or value != value:  # NaN
            return
        read = READERS[target](value)
        for name, each in read.items() if target in SPREAD else [(target, read)]:
            setattr(one if name in Logged.__slots__ else one.said, name, each)

    def _refuse(self, row: Row, target: str, error: InputError, faults: Faults) -> None:
        name, fix = self.columns[target].name if target in self.columns else target, error.fix.replace("TARGET", target)
        fix = fix.replace("COLUMN", name) if "COLUMN." in fix or "COLUMN>" in fix else fix
        said = name if name == target else f"{name} ({target})"
        if target in self.guessed:
            guess = f"the column was guessed: --map {target}=COLUMN takes another, {target}=none leaves it out"
            fix = "; ".join(filter(None, [fix, guess]))
        faults.add(f"{row.where} {said}", target, expected=error.expected, found=error.found, fix=fix)

    def _place_turns(self, said: Said) -> None:
        """Put each message where it belongs: system, prompt, completion.

        Raises:
            InputError: two system prompts; its place is the target.
        """
        if said.system and said.messages:
            if said.messages[0]["role"] != "system":
                said.messages = [{"role": "system", "content": said.system}, *said.messages]
            elif said.messages[0]["content"] != said.system:
                raise InputError("system", expected="one system prompt", found="another one", fix="--map system=none")
        if said.messages and "completion" not in self.columns:
            # A conversation that holds its answer; a tool's word may stand behind it.
            last = max(place for place, turn in enumerate(said.messages) if turn["role"] != "tool" or not place)
            messages = said.messages
            if messages[last]["role"] == "assistant":
                answers = [place for place, turn in enumerate(messages) if turn["role"] == "assistant"]
                is_agent = any(turn["role"] == "tool" or "tool_calls" in turn for turn in messages)
                sampled = [place for place in answers if messages[place].get("trainable")] or answers
                start = sampled[0] if is_agent or sampled is not answers else answers[-1]
                said.messages, said.turns = messages[:start] or None, messages[start:]
        thought, text = said.reasoning, said.completion
        if thought and text is not None and said.completion_ids is None and thought not in text:
            said.turns, said.completion = [{"role": "assistant", "reasoning_content": thought, "content": text}], None
        if said.turns:
            own = [place for place, turn in enumerate(said.turns) if turn["role"] == "assistant"]
            if own[:1] != [0]:
                raise InputError("completion", expected="a turn of the assistant", found=said.turns[0]["role"])
            if any(said.turns[place].get("trainable") is False for place in own):
                raise SkipRow("a turn of the assistant that is not trained on (trainable is false) behind others")
            if said.finish and own[-1] + 1 < len(said.turns):
                said.finish = "stop"  # the limit was met in the words of others
            for name, value in answer_of(said.turns[: own[-1] + 1]).items():
                setattr(said, name, value)


def _place_mask(said: Said) -> None:
    """Cut the ids of a completion with a mask to those from the first sampled one to the last.

    Raises:
        InputError: a mask of other ids, or log-probabilities of others; its place is the target.
        SkipRow: no id is sampled.
    """
    mask, ids, prompt = said.mask, said.completion_ids, said.prompt_ids
    if mask is not None and not any(mask):
        raise SkipRow("its mask leaves every token out")
    if mask is None or (ids is None and all(mask)):
        said.mask = None
        return
    if ids is None:
        raise InputError("mask", expected="the ids that it masks", found="text alone", fix="log completion_ids")
    if prompt is not None and len(mask) == len(prompt) + len(ids) != len(ids):
        mask = mask[len(prompt) :]
    if len(ids) > len(mask) + 1 and len({*ids[len(mask) :]}) == 1:  # padding
        mask = [*mask, *[False] * (len(ids) - len(mask))]
    if len(mask) != len(ids):
        fix = "--map mask=none" if all(mask) else "log one for each id: without it, ids of tools would count as sampled"
        raise InputError("mask", expected="one for each id", found=f"{len(mask)} for {len(ids)} ids", fix=fix)
    start, stop = mask.index(True), len(mask) - mask[::-1].index(True)
    if start and prompt is None and said.messages is not None:
        fix = "log prompt_ids, or leave the text of the prompt out: --map messages=none, or prompt=none"
        raise InputError("mask", expected="a sampled id first", found=f"{start} others", fix=fix)
    logprobs = said.logprobs or []  # of another number: its ids tell
    if len(logprobs) == len(ids):
        logprobs = [value for value, is_sampled in zip(logprobs, mask, strict=True) if is_sampled]
    if len(logprobs) == sum(mask):
        each = iter(logprobs)
        said.logprobs = [next(each) if is_sampled else 0.0 for is_sampled in mask[start:stop]]
    if start:
        # The ids may begin with the prompt's ids, which may be padded in its own column.
        padding = (prompt or [])[: -min(start, len(prompt or []))]
        is_prompt = prompt is not None and prompt == [*padding, *ids[:start]] and len({*padding}) < 2
        if prompt and not is_prompt and len({*ids[stop:]}) > 1:
            fix = "if 1 marks the ids of tools, log 0 for them"
            raise InputError("mask", expected="1 for each sampled id", found="0 for the first and last ids", fix=fix)
        said.prompt_ids, said.plen = ids[:start] if is_prompt else [*(prompt or []), *ids[:start]], None
    if said.finish == "length" and stop < len(ids):
        said.finish = None  # the last sampled id tells it: the limit may have been met in the words of others
    said.completion_ids, said.mask, said.comp_len = ids[start:stop], mask[start:stop], None


def as_rollouts(
    rows: Rows, reader: Reader, faults: Faults, skip_bad: int
) -> tuple[list[Logged], list[str], list[str], str]:
    """Return (rollouts without what is read again, notes, places of broken rows, the hash of all rows).

    At most `skip_bad` rows with a fault of their own are left out; the faults of more go to `faults`.
    """
    rollouts, bad, of_bad = list[Logged](), list[str](), Faults()
    skipped, whole, shared = Counter[str](), hashlib.sha256(), dict[Any, Any]()
    for number, row in enumerate(rows):
        wrong, one = Faults(), None
        try:
            if row.error is not None:
                raise row.error
            one = reader.read(row, wrong)
        except SkipRow as reason:
            skipped[str(reason)] += 1
        except InputError as error:
            wrong.note(error, "line")
        if one and one.failure:
            skipped[one.failure] += 1
        elif wrong:
            bad.append(row.where)
            of_bad.take(wrong)
            if one and any(getattr(one, name, None) is not None for name in PROMPTS):
                one.failure = BROKEN
        if one is None or (wrong and one.failure != BROKEN):
            continue
        key, cells = repr(row.fields), {**row.fields, FILE: row.file}
        if one.failure != BROKEN:
            whole.update(key.encode(errors="replace"))
        one.number, one.row_key = number, _digest(key)
        marks = (mark_of(name.rpartition(".")[2], look_up(cells, name)) for name in reader.marks)
        one.marks = tuple(shared.setdefault(mark, mark) for mark in marks)
        rollouts.append(_summary(one, shared))
        report("rows checked", number, number)
    notes = [f"{CAUTION}left out: {reason} ({count} rows)" for reason, count in skipped.items()]
    if len(bad) > skip_bad:
        faults.take(of_bad)
        if skip_bad:
            expected, fix = f"at most {skip_bad} bad rows (--skip-bad)", f"mend them, or pass --skip-bad {len(bad)}"
            faults.add(rows.source, "bad", expected=expected, found=str(len(bad)), fix=fix)
    elif bad:
        first = "; ".join(str(error) for error in of_bad.errors()[:3])
        notes.append(f"{CAUTION}{len(bad)} bad rows were left out, and their groups lack them: {first}")
    if num_equal := len(rollouts) - len({one.row_key for one in rollouts}):
        mark = CAUTION if 2 * num_equal >= len(rollouts) else ""
        notes.append(f"{mark}rows that are equal to an earlier one: {num_equal} (sampled again, or logged twice?)")
    return rollouts, notes, bad, whole.hexdigest()


def _summary(one: Logged, shared: dict[Any, Any]) -> Logged:
    """Return a rollout with the keys of its texts in their place, and without what is read again."""
    said, one.prompt_key = one.said, _prompt_key(one.said)
    one.answer_key = None if said.completion is None and said.turns is None else _digest(said.completion or said.turns)
    one.thinks = (said.completion or "").lstrip().startswith("<think>")
    text = said.rendered or (said.messages[-1]["content"] if said.messages else "")
    start, whole = said.prompt_ids if said.completion_ids else text, said.completion_ids or said.completion
    one.echo = len(start) if start and whole and whole[: len(start)] == start else None
    if text and isinstance(whole, str) and _CONVERSATION.match(whole):
        found = re.search(re.escape(text.strip()) + _ANSWER, whole, re.I)
        one.echo = found.end() if found else one.echo
    for name in ("file", "failure", "parts", *KEYS):  # that rows share
        value = getattr(one, name)
        setattr(one, name, shared.setdefault(value, value))
    one.said = NOTHING
    return one


def _prompt_key(said: Said) -> int:
    ids = (said.prompt_ids or [])[-(said.plen or 0) :]  # the last `plen`, if known
    return _digest([said.rendered, said.messages, said.skipped, said.tools, ids])


def _digest(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode(errors="replace")).digest()[:8])


def reward_fault(
    rollouts: Sequence[Logged], scan: Scan, columns: Mapping[str, Column], source: str
) -> InputError | None:
    """Return an error if no rollout has a reward, with the columns and inner keys that may be one; else None."""
    if "reward" in columns and (not rollouts or any(one.reward is not None for one in rollouts)):
        return None
    # In a CSV file every cell is a text; a whole number is rarely a reward.
    cells = {name: cell for name, cell in flat(scan.first).items() if isinstance(cell, float | str)}
    numbers = [name for name, cell in cells.items() if number_of(cell) is not None and not str(cell).isalpha()]
    lists = {name: cell for name, cell in scan.first.items() if isinstance(cell, list) and not name.endswith("ids")}
    numbers += [f"{name}.sum" for name, cell in lists.items() if cell and all(isinstance(each, float) for each in cell)]
    found = f"none of {scan.num_rows} rows, but numbers in {', '.join(numbers[:LISTED_COLUMNS]) or 'no column'}"
    return InputError(f"{source} reward", expected="rewards that are numbers", found=found, fix="--map reward=COLUMN")
