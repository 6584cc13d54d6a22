"""Check the rows of a log and return what groups need of them; no model is needed.

Every fault is named: a missing or wrong value is never guessed.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any

from replay_pools.base.errors import Faults, InputError
from replay_pools.base.terminal import report
from replay_pools.logs.columns import (
    COMPLETIONS,
    FILE,
    KEYS,
    PROMPT,
    PROMPTS,
    Column,
    Scan,
    look_up,
    mark_of,
    number_of,
    truth_of,
)
from replay_pools.logs.files import REPORT_EVERY, Fields, Row, Rows, SkipRow
from replay_pools.logs.values import READERS, SPREAD, Turns, answer_of, is_plain
from replay_pools.pool import CAUTION
from replay_pools.rollout import FinishReason

NEEDED = {"prompt": PROMPTS, "completion": (*COMPLETIONS, "turns")}  # every rollout has one of these fields
THINKS = "<think>"  # begins the reasoning of most models that reason
_PROMPT_KEY = "\0prompt"  # stands for the key of the prompt until it is known
LISTED_COLUMNS = 20
LEAST_REPEATED = 4  # rows of a log that may be there twice
FAILURES = {"aborted", "abort", "failed", "failure", "error", "errored", "cancelled", "canceled", "timeout"}
EVALUATIONS = re.compile(r"(.*[_-])?(eval|evaluation|val|valid|validation|test|dev)", re.I)
SPLITS = ("split", "phase", "mode", "partition", "subset", "stage", "data_split")  # columns that may tell both apart
# {column of truths: its value in an evaluation}
IS_EVALUATION = {
    **dict.fromkeys(("is_eval", "is_val", "is_test", "is_evaluation", "is_validation"), True),
    **dict.fromkeys(("eval", "validate", "validation", "evaluation"), True),
    **dict.fromkeys(("is_train", "is_training"), False),
}


@dataclass(slots=True, kw_only=True)
class Facts:
    """The part of a rollout that stays in memory: it is grouped and counted by them."""

    number: int  # among the flat rows of the log
    file: str
    where: str
    prompt_key: int = 0  # 64 bits of a hash, the same for the same prompt
    answer_key: int | None = None  # the same of the completion's text
    row_key: int = 0  # the same of the whole row
    is_left_out: bool = False  # it failed: its group was compared with it, and goes on without it
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One rollout of a log: what its columns say, None where they say nothing."""

    where: str
    messages: Turns | None = None  # of the prompt
    tools: list[dict[str, Any]] | None = None
    rendered: str | None = None  # the prompt with its markup
    skipped: str | None = None  # the prompt without its special tokens
    prompt_ids: list[int] | None = None
    plen: int | None = None
    completion: str | None = None
    turns: Turns | None = None  # of the completion, where one text does not say it
    completion_ids: list[int] | None = None
    mask: list[bool] | None = None  # one an id of the completion; None: all are sampled
    comp_len: int | None = None
    logprobs: list[float] | None = None  # one an id of the completion
    reward: float | None = None
    hacked: bool | None = None
    gt_pass: bool | None = None
    fmt_ok: bool | None = None
    passed: bool | None = None
    finish: FinishReason | None = None
    hint: bool | None = None
    env: str | None = None
    env_mode: str | None = None

    def refused(self, target: str, expected: str, found: str, fix: str = "") -> InputError:
        """Return the error of a value that others contradict."""
        return InputError(f"{self.where} {target}", expected=expected, found=found, fix=fix)


@dataclass(frozen=True)
class Reader:
    """Reads the rows of one log."""

    columns: Mapping[str, Column]
    guessed: Set[str]  # targets with a guessed column
    # Of columns that are not used:
    marks: Sequence[str]  # those of few values
    failures: Mapping[str, Callable[[Any], bool]]  # rows of STATUS
    evaluations: Mapping[str, Set[Any]]  # {column: its values in rows that are no training}

    def read(self, row: Row, faults: Faults) -> Fields:
        """Return the fields of a row, with `failure` if it holds no rollout to train on: why, in a sentence.

        A value of the wrong kind goes to `faults`.

        Raises:
            SkipRow: the row is an evaluation.
        """
        for name, words in self.evaluations.items():
            if mark_of(name, row.fields.get(name)) in words:
                raise SkipRow(f"an evaluation next to training (`{name}`)")
        values: Fields = {"failure": None}
        wrong = set[str]()
        if failed := [name for name, fails in self.failures.items() if name in row.fields and fails(row.fields[name])]:
            values["failure"] = f"`{failed[0]}` says that it is no rollout to train on; drop the column to keep it"
        for target, column in self.columns.items():
            try:
                self._read(row, column, values)
            except SkipRow as reason:
                values["failure"] = values["failure"] or str(reason)
            except InputError as error:
                wrong.add(target)
                self._refuse(row, target, error, faults)
        if wrong & {*PROMPTS, *COMPLETIONS, "system"}:
            return values
        try:
            _place_turns(values, has_completion="completion" in self.columns)
            _place_mask(values)
        except SkipRow as reason:
            values["failure"] = values["failure"] or str(reason)
        except InputError as error:
            faults.note(error.at(f"{row.where} {error.where}"), error.where)
        if values["failure"] is None:
            self._check_needed(row, values, faults)
        return values

    def _read(self, row: Row, column: Column, values: Fields) -> None:
        """Add the fields of a target to `values`."""
        target = column.target
        if target in KEYS:
            # The prompt of a row is known later.
            others = {FILE: row.file, PROMPT: _PROMPT_KEY}
            parts = [look_up(row.fields, name, others.get(name)) for name, _ in column.terms]
            if any(part is None or part != part for part in parts):  # NaN: of a table with a gap
                raise InputError("", expected="a value", found="null")
            values[target] = tuple(map(str, parts))
            return
        value = column.value(row.fields)
        if target == "reward":
            values["parts"] = tuple(number_of(look_up(row.fields, name)) for name, _ in column.terms)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return
        read = READERS[target](value)
        if target == "truncated":
            if read is not None and values.get("finish") != "length":
                values["finish"] = "length" if read else "stop"
        else:
            values |= read if target in SPREAD else {target: read}

    def _refuse(self, row: Row, target: str, error: InputError, faults: Faults) -> None:
        name, fix = self.columns[target].name, error.fix.replace("TARGET", target)
        fix = fix.replace("COLUMN", name) if "COLUMN." in fix or "COLUMN>" in fix else fix
        said = name if name == target else f"{name} ({target})"
        if target in self.guessed:
            guess = f"the column was guessed: --map {target}=COLUMN takes another, {target}=none leaves it out"
            fix = "; ".join(filter(None, [fix, guess]))
        faults.add(f"{row.where} {said}", target, expected=error.expected, found=error.found, fix=fix)

    def _check_needed(self, row: Row, values: Fields, faults: Faults) -> None:
        """Refuse a row without prompt or completion, where the log has columns of them."""
        lacking = [what for what, names in NEEDED.items() if all(values.get(name) is None for name in names)]
        for what in lacking:
            if any(target in self.columns for target in NEEDED[what]) or "mask" in self.columns:
                fix = "--skip-bad N leaves out at most N such rows"
                faults.add(f"{row.where} {what}", f"{what} missing", expected=f"a {what}", found="none", fix=fix)
        if lacking or any(values.get(name) is not None for name in ("rendered", "skipped", "prompt_ids")):
            return
        # Messages alone say what the prompt is.
        target, last = "prompt" if "prompt" in self.columns else "messages", values["messages"][-1]
        if not last["content"].strip() and is_plain([last]):
            expected, found = "a prompt with text", "an empty message at its end"
            self._refuse(row, target, InputError("", expected=expected, found=found), faults)
        if last["role"] == "assistant":
            fix = "--map completion=none takes that message for the completion; if it was begun for the policy, log "
            fix += "prompt_ids or the rendered prompt (--map rendered=COLUMN)"
            expected, found = "a prompt without its answer", "a turn of the assistant at its end"
            self._refuse(row, target, InputError("", expected=expected, found=found, fix=fix), faults)

    def logged(self, row: Row) -> Logged:
        """Return a row that `as_rollouts` has checked, whole."""
        values = self.read(row, Faults())
        return Logged(where=row.where, **{name: values[name] for name in _LOGGED if values.get(name) is not None})


_LOGGED = {each.name for each in fields(Logged)} - {"where"}
_FACTS = ("reward", "parts", "advantage", "hacked", "gt_pass", "step", "problem", "group")


def _is_message(value: Any) -> bool:
    word = value.strip().lower() if isinstance(value, str) else ""
    is_text = word not in ("", "none", "null", "nan") and truth_of(word) is not False
    return is_text or value is True or (isinstance(value, dict | list) and bool(value))


# {a column: whether its value says that the row is no rollout to train on}
STATUS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("error", "errors", "exception"), _is_message),
    "status": lambda value: isinstance(value, str) and value.lower().rpartition(".")[2] in FAILURES,
    **dict.fromkeys(("mask_sample", "remove_sample", "aborted"), lambda value: truth_of(value) is True),
    **dict.fromkeys(("trainable", "sample_mask", "sample_loss_mask"), lambda value: truth_of(value) is False),
}


def _place_turns(values: Fields, *, has_completion: bool) -> None:
    """Put each message where it belongs: system, prompt, completion.

    Raises:
        InputError: two system prompts; its place is the target.
    """
    messages: Turns | None = values.get("messages")
    if (system := values.pop("system", None)) and messages:
        if messages[0]["role"] == "system" and messages[0]["content"] != system:
            expected = "one system prompt"
            raise InputError("system", expected=expected, found="another in the messages", fix="--map system=none")
        first = [] if messages[0]["role"] == "system" else [{"role": "system", "content": system}]
        values["messages"] = messages = [*first, *messages]
    # A conversation that holds its answer, where no column has its text; a tool's word behind it was not answered.
    while messages and not has_completion and messages[-1]["role"] == "tool":
        messages = messages[:-1]
    if messages and not has_completion and messages[-1]["role"] == "assistant":
        answers = [place for place, turn in enumerate(messages) if turn["role"] == "assistant"]
        is_agent = any(turn["role"] == "tool" or "tool_calls" in turn for turn in messages)
        sampled = [place for place in answers if messages[place].get("trainable")] or answers
        start = sampled[0] if is_agent or sampled is not answers else answers[-1]
        values |= {"messages": messages[:start] or None, **answer_of(messages[start:])}
    thought, answer = values.pop("reasoning", ""), values.get("completion")
    if thought and answer is not None and "completion_ids" not in values and thought not in answer:
        turn = {"role": "assistant", "reasoning_content": thought, "content": answer}
        values |= {"completion": None, "turns": [turn]}
    if turns := values.get("turns"):
        last = max((place for place, turn in enumerate(turns) if turn["role"] == "assistant"), default=-1)
        if turns[0]["role"] != "assistant":
            found = f"a turn of {turns[0]['role']} first"
            raise InputError("completion", expected="turns that begin with the assistant's", found=found)
        values |= {"turns": None, **answer_of(turns[: last + 1])}


def _place_mask(values: Fields) -> None:
    """Cut the ids of a completion with a mask to those from the first sampled one to the last.

    Raises:
        InputError: a mask of other ids, or log-probabilities of others; its place is the target.
        SkipRow: no id is sampled.
    """
    mask, ids, logprobs = values.pop("mask", None), values.get("completion_ids"), values.get("logprobs")
    prompt: list[int] | None = values.get("prompt_ids")
    if mask is not None and not any(mask):
        raise SkipRow("its mask leaves every token out")
    if mask is None or (ids is None and all(mask)):
        return
    if ids is None:
        raise InputError("mask", expected="the ids that it masks", found="text alone", fix="log completion_ids")
    if prompt is not None and len(mask) == len(prompt) + len(ids) != len(ids):
        mask = mask[len(prompt) :]
    if len(ids) > len(mask) + 1 and len({*ids[len(mask) :]}) == 1:  # padding
        mask = [*mask, *[False] * (len(ids) - len(mask))]
    if len(mask) != len(ids):
        fix = "--map mask=none" if all(mask) else "log one an id: without it, ids of tools would count as sampled"
        raise InputError("mask", expected="one an id", found=f"{len(mask)} for {len(ids)} ids", fix=fix)
    start, stop = mask.index(True), len(mask) - mask[::-1].index(True)
    if start and prompt is None and values.get("messages") is not None:
        expected, found = "a completion that begins with a sampled id", f"{start} others"
        raise InputError("mask", expected=expected, found=found, fix="log prompt_ids")
    kept = mask[start:stop]
    if logprobs is not None:
        if len(logprobs) == sum(mask) < len(ids):  # one a sampled id
            each = iter(logprobs)
            logprobs = [next(each) if is_sampled else 0.0 for is_sampled in mask]
        if len(logprobs) != len(ids):
            found, fix = f"{len(logprobs)} for {len(ids)} ids", "--map logprobs=none leaves them out"
            raise InputError("logprobs", expected="one an id", found=found, fix=fix)
        values["logprobs"] = [
            value if is_sampled else 0.0 for value, is_sampled in zip(logprobs[start:stop], kept, strict=True)
        ]
    if start:
        # The ids may begin with those of the prompt, which may be padded in its own column.
        padding = (prompt or [])[: -min(start, len(prompt or []))]
        is_prompt = prompt is not None and prompt == [*padding, *ids[:start]] and len({*padding}) < 2
        values["prompt_ids"] = ids[:start] if is_prompt else [*(prompt or []), *ids[:start]]
        values["plen"] = None
    values |= {"completion_ids": ids[start:stop], "mask": kept, "comp_len": None}


def as_rollouts(
    rows: Rows, reader: Reader, faults: Faults, skip_bad: int
) -> tuple[list[Facts], list[str], list[str], str]:
    """Return (what groups need of the rollouts, notes, places of broken rows, the hash of all rows).

    Args:
        rows: flat ones.
        reader: of their columns.
        faults: get the faults of the log, and of rows if more than `skip_bad` are broken.
        skip_bad: most rows that may be left out for a fault of their own.
    """
    facts, bad, of_bad = list[Facts](), list[str](), Faults()
    skipped, whole, shared = Counter[str](), hashlib.sha256(), dict[Any, Any]()
    for number, row in enumerate(rows):
        wrong, values = Faults(), dict[str, Any]()
        try:
            if row.error is not None:
                raise row.error
            values = reader.read(row, wrong)
        except SkipRow as reason:
            skipped[str(reason)] += 1
            continue
        except InputError as error:
            wrong.note(error, "line")
        if failure := values.get("failure"):
            skipped[failure] += 1
        elif wrong:
            bad.append(row.where)
            of_bad.take(wrong)
        if wrong:
            continue
        key = repr(row.fields)
        whole.update(key.encode(errors="replace"))
        one = _facts(number, row, values, shared)
        one.row_key, one.is_left_out = _digest(key), bool(failure)
        one.marks = tuple(
            row.file if name == FILE else mark_of(name.rpartition(".")[2], look_up(row.fields, name))
            for name in reader.marks
        )
        facts.append(one)
        if number % REPORT_EVERY == 0:
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
    facts, said = _without_repeats(facts)
    return facts, notes + said, bad, whole.hexdigest()


def _facts(number: int, row: Row, values: Fields, shared: dict[Any, Any]) -> Facts:
    text, turns = values.get("completion"), values.get("turns")
    prompt = (values.get("prompt_ids") or [])[-(values.get("plen") or 0) :]  # the last `plen`, if known
    prompt_key = _digest([values.get(name) for name in ("rendered", "messages", "skipped", "tools")] + [prompt])
    kept = {name: values[name] for name in _FACTS if values.get(name) is not None}
    for name in KEYS:
        if name in kept:
            kept[name] = tuple(f"prompt-{prompt_key:016x}" if part == _PROMPT_KEY else part for part in kept[name])
    for name in ("parts", *KEYS):  # that rows of one group share
        if name in kept:
            kept[name] = shared.setdefault(kept[name], kept[name])
    return Facts(
        number=number,
        file=shared.setdefault(row.file, row.file),
        where=row.where,
        prompt_key=prompt_key,
        answer_key=None if text is None and turns is None else _digest(text or turns),
        echo=_echo(values),
        thinks=text is not None and text.lstrip().startswith(THINKS),
        **kept,
    )


def _digest(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode(errors="replace")).digest()[:8])


def _echo(values: Fields) -> int | None:
    prompt, ids = values.get("prompt_ids"), values.get("completion_ids")
    if ids:
        return len(prompt) if prompt and ids[: len(prompt)] == prompt else None
    messages, answer = values.get("messages"), values.get("completion")
    text = values.get("rendered") or (messages[-1]["content"] if messages else "")
    return len(text) if text and answer and answer.startswith(text) else None


def _without_repeats(facts: list[Facts]) -> tuple[list[Facts], list[str]]:
    """Leave out the copies of a log that is there several times, and count rows that are equal to an earlier one."""
    keys, notes = [one.row_key for one in facts], list[str]()
    for times in range(len(keys) // LEAST_REPEATED, 1, -1):
        size = len(keys) // times
        if size * times == len(keys) and keys == keys[:size] * times and len({*keys}) > 1:
            facts, keys = facts[:size], keys[:size]
            said = f"the log is there {times} times: all but its first {size} rows repeat them and were left out"
            notes.append(CAUTION + said)
            break
    if num_equal := len(keys) - len({*keys}):
        mark = CAUTION if 2 * num_equal >= len(keys) else ""
        notes.append(f"{mark}rows that are equal to an earlier one: {num_equal} (sampled again, or logged twice?)")
    return facts, notes


def evaluations_of(values: Mapping[str, Set[Any]]) -> dict[str, set[Any]]:
    """Return {column: its values of evaluations}, of columns that tell training and evaluation apart."""

    def is_evaluation(name: str, value: Any) -> bool:
        if name in IS_EVALUATION:
            return (truth_of(value) is True) == IS_EVALUATION[name]
        return isinstance(value, str) and EVALUATIONS.fullmatch(value) is not None

    names = [name for name in (*SPLITS, *IS_EVALUATION) if name in values]
    found = {name: {value for value in values[name] if is_evaluation(name, value)} for name in names}
    return {name: evaluations for name, evaluations in found.items() if 0 < len(evaluations) < len(values[name])}


def check_columns(reader: Reader, facts: Sequence[Facts], scan: Scan, faults: Faults, source: str) -> None:
    """Add a fault for each thing that a rollout needs and no column has."""
    for what, targets in (("prompt", PROMPTS), ("completion", COMPLETIONS), ("reward", ("reward",))):
        if any(target in reader.columns for target in targets):
            continue
        if what == "prompt" and {"mask", "completion_ids"} <= reader.columns.keys():  # the ids that it leaves out
            continue
        if what == "completion" and any(one.answer_key is not None for one in facts):
            for one in (one for one in facts if one.answer_key is None):
                expected, found = "a conversation that ends in the answer of the assistant", "another turn at its end"
                faults.add(f"{one.where} completion", "last turn", expected=expected, found=found)
                break
            continue
        found, fix = (
            ", ".join([*scan.kinds][:LISTED_COLUMNS]),
            "pass " + " or ".join(f"--map {target}=COLUMN" for target in targets),
        )
        if what == "reward" and (numbers := [*_numbers(scan.row)][:LISTED_COLUMNS]):
            found = f"numbers in {', '.join(numbers)}"
        faults.add(source, "missing", expected=f"a column with the {what}", found=found or "no column", fix=fix)


def _numbers(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of columns and inner keys that hold numbers which may be a reward."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, float):
            yield prefix + name
        elif isinstance(value, list) and value and all(isinstance(each, float) for each in value):
            yield f"{prefix}{name}.sum"
