"""The rollouts of a log, checked value by value; no model is needed.

Every fault of every row is named: what is missing or of the wrong kind is never guessed. What may be unknown (labels,
the finish reason, a reward that is NaN) is None.
"""

import hashlib
import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from replay_pools.base.errors import Faults, InputError
from replay_pools.base.files import MAX_DIGITS, parse_python_json
from replay_pools.base.terminal import report
from replay_pools.logs.columns import (
    COMPLETIONS,
    EVERY,
    KEYS,
    MARKUP,
    PROMPTS,
    Terms,
    columns_of,
    look_up,
    parse_column,
    value_of,
)
from replay_pools.logs.frames import REPORT_EVERY
from replay_pools.logs.padding import leading_padding
from replay_pools.logs.sources import Fields, Log, StoredRow, described
from replay_pools.logs.unfolding import joined_text
from replay_pools.rollout import LARGEST_ID, FinishReason

Chat = list[dict[str, str]]
MOST_CHARACTERS = MOST_TOKENS = 1 << 20  # of one prompt or completion; a tokenizer takes some seconds for them
TEXT = f"a text of at most {MOST_CHARACTERS:,} characters"
FINISHES: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "eos", "end_turn", "eos_token", "stop_sequence", "finished"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_length", "max_new_tokens", "model_length", "truncated"), "length"),
}
TURN = ("role", "content")
PLAIN_KEYS = (*TURN, "name", "id", "source", "model")  # of a message: others change what it says
MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["']role["']""")
UNKNOWN_LABEL = -1  # of loggers that have no null
NEEDED = {"prompt": PROMPTS, "completion": COMPLETIONS}  # one of whose targets every rollout has


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What is kept in memory of each rollout of a log: by it they are grouped and counted. `row_of` has the rest."""

    place: int = 0  # in `Log.checked`
    file: str
    lead: int = 0  # ids before the prompt that are padding: they make it no other prompt
    prompt_key: int = 0  # what rollouts with the same prompt share: 64 bits of a hash
    answer_key: int | None = None  # the same of the completion's text
    reward: float | None = None
    parts: tuple[float | None, ...] = ()  # columns whose weighted sum the reward is
    advantage: float | None = None
    hacked: bool | None = None
    gt_pass: bool | None = None
    step: int | None = None
    problem: tuple[str, ...] | None = None
    group: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow(RowFacts):
    """One rollout of a log: what its columns say, None where they say nothing."""

    where: str
    messages: Chat | None = None  # of the prompt
    rendered: str | None = None  # the prompt with its markup
    skipped: str | None = None  # the prompt without its special tokens
    prompt_ids: list[int] | None = None
    plen: int | None = None
    completion: str | None = None
    completion_ids: list[int] | None = None
    comp_len: int | None = None
    logprobs: list[float] | None = None
    fmt_ok: bool | None = None
    finish: FinishReason | None = None
    hint: bool | None = None
    env: str | None = None
    env_mode: str | None = None


_FACTS = tuple(field.name for field in fields(RowFacts))
_SHARED = ("parts", "problem", "group", "prompt_key")  # that rows of one group share


def row_of(log: Log, facts: RowFacts) -> LogRow:
    """A rollout of a log, whole."""
    return LogRow(**log.checked[facts.place] | {name: getattr(facts, name) for name in _FACTS})


def _digest(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8])


def checked_rows(log: Log) -> list[RowFacts]:
    """The rollouts of a log, which go to `Log.checked`; what is wrong goes to its faults, and bad rows are left out."""
    columns: dict[str, Terms] = {}
    for target, text in log.mapping.items():
        if target == "group" and EVERY.fullmatch(text):
            continue
        try:
            columns[target] = parse_column(target, text, log.rows)
        except InputError as error:
            log.faults.note(error, ("column", target))
    rows, lacking = log.checked, list[int]()  # places of rows without an answer
    for number, stored in enumerate(log.rows):
        bad = Faults()
        row = _row(stored, columns, log.guessed, bad)
        if bad and log.leave_out(stored.where, bad):
            continue
        if row.get("completion") is None:
            lacking.append(len(rows))
        rows.append(row)
        if number % REPORT_EVERY == 0:
            report("rows checked", number, len(log.rows))
    for what, targets in (*NEEDED.items(), ("reward", ("reward",))):
        if any(target in log.mapping for target in targets):
            continue
        if what != "completion" or len(lacking) == len(rows):
            names = ", ".join(columns_of(row.fields for row in log.rows)[:20]) or "no column"
            fix = "pass " + " or ".join(f"--map {target}=COLUMN" for target in targets)
            log.faults.add(log.source, f"no {what}", expected=f"a column with the {what}", found=names, fix=fix)
            continue
        for number in lacking:
            where, expected = rows[number]["where"], "a conversation that ends in the answer of the assistant"
            log.faults.add(f"{where} completion", "no answer", expected=expected, found="another turn at its end")
    return _facts(log)


def _facts(log: Log) -> list[RowFacts]:
    """The facts of the rows in `log.checked`."""
    leads = [0] * len(log.checked)
    if "prompt_ids" in log.mapping:
        leads = leading_padding((row.get("prompt_ids") or [], row.get("plen")) for row in log.checked)
    facts, shared = list[RowFacts](), dict[Any, Any]()
    for place, (row, lead) in enumerate(zip(log.checked, leads, strict=True)):
        ids, answer = row.get("prompt_ids"), row.get("completion")
        prompt = (row.get("rendered"), row.get("messages"), row.get("skipped"), ids and ids[lead:])
        values: Fields = {name: row[name] for name in _FACTS if name in row}
        values |= {"place": place, "lead": lead, "prompt_key": _digest(prompt)}
        values |= {"answer_key": None if answer is None else _digest(answer)}
        values |= {name: shared.setdefault(values[name], values[name]) for name in _SHARED if name in values}
        facts.append(RowFacts(**values))
    return facts


def _row(row: StoredRow, columns: Mapping[str, Terms], guessed: Container[str], faults: Faults) -> Fields:
    """The fields of the `LogRow` of an object; a value of the wrong kind is a fault, and None here."""
    values: Fields = {"where": row.where, "file": str(row.path)}
    wrong: set[str] = set()  # targets

    def refuse(target: str, expected: str, found: str, fix: str = "") -> None:
        wrong.add(target)
        name = "+".join(name for name, _ in columns[target])
        said = name if name == target else f"{name} ({target})"
        if target in guessed:
            guess = f"the column was guessed: --map {target}=COLUMN takes another, {target}=none leaves it out"
            fix = "; ".join(filter(None, [fix, guess]))
        faults.add(f"{row.where} {said}", target, expected=expected, found=found, fix=fix)

    for target, terms in columns.items():
        if target in KEYS:
            parts = [look_up(row.fields, name) for name, _ in terms]
            values[target] = None if None in parts else tuple(map(str, parts))
            if None in parts:
                refuse(target, "a value", "null")
            continue
        value = value_of(terms, row.fields)
        if target == "reward":
            values["parts"] = tuple(_known_number(look_up(row.fields, name)) for name, _ in terms)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        try:
            read = READERS[target](value)
        except InputError as error:
            refuse(target, error.expected, error.found, error.fix)
            continue
        values |= read if target in SPREAD else {target: read}
    # A conversation that holds its answer, where no column has its text: the last message is the completion.
    messages = values.get("messages")
    if messages and "completion" not in columns and messages[-1]["role"] == "assistant":
        values |= {"completion": messages[-1]["content"], "messages": messages[:-1] or None}
    if wrong & {*PROMPTS, *COMPLETIONS}:
        return values
    # A prompt, and a completion where the log has columns of them.
    lacking = [what for what, targets in NEEDED.items() if all(values.get(target) is None for target in targets)]
    for what in lacking:
        if any(target in columns for target in NEEDED[what]):
            faults.add(f"{row.where} {what}", f"{what} missing", expected=f"a {what}", found="none")
    if not lacking and all(values.get(name) is None for name in ("rendered", "skipped", "prompt_ids")):
        # Messages alone say what the prompt is.
        target, last = "prompt" if "prompt" in columns else "messages", values["messages"][-1]
        if not last["content"].strip():
            refuse(target, "a prompt with text", "an empty message at its end")
        if last["role"] == "assistant":
            fix = "--map completion=none takes that message for the completion"
            refuse(target, "a prompt without its answer", "a turn of the assistant at its end", fix)
    return values


def wrong_value(expected: str, value: Any, place: Sequence[int | str] = ()) -> InputError:
    """The error of a value, at no place yet; of a list, of its item at `place`."""
    return InputError("", expected=expected, found=described(value) + "".join(f" at {part}" for part in place))


def is_text(value: Any) -> bool:
    """Whether it is a TEXT that can be written as UTF-8: JSON has escapes for lone surrogates, which cannot."""
    return isinstance(value, str) and len(value) <= MOST_CHARACTERS and not re.search("[\ud800-\udfff]", value)


def _checker(expected: str, kind: Any) -> Callable[[Any], Any]:
    """A reader of values that are exactly of a type."""
    adapter = TypeAdapter(kind)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise wrong_value(expected, first["input"], first["loc"]) from error

    return read


def _listed(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A reader of lists that also takes the JSON text of one, as a table without lists holds it."""

    def read_either(value: Any) -> Any:
        is_text_of_one = isinstance(value, str) and value.startswith("[")
        return read(parse_python_json(value.encode(errors="replace"), "", float) if is_text_of_one else value)

    return read_either


def _label(value: Any) -> bool | None:
    """True, false, or None for -1, by which loggers without a null say that they do not know."""
    if not isinstance(value, bool | int | float) or value not in (0, 1, UNKNOWN_LABEL):
        raise wrong_value("true or false (or 1, 0, and -1 for unknown)", value)
    return None if value == UNKNOWN_LABEL else bool(value)


def _length(value: Any) -> int:
    is_whole = isinstance(value, float) and value.is_integer()  # a table with a gap holds its whole numbers so
    return _whole(int(value) if is_whole else value)


def _step(value: Any) -> int:
    is_text_of_one = isinstance(value, str) and value.isdecimal() and len(value) < MAX_DIGITS  # as wandb writes them
    return int(value) if is_text_of_one else _length(value)


def _finish(value: Any) -> FinishReason:
    if not isinstance(value, str) or value not in FINISHES:
        raise wrong_value("stop or length", value)
    return FINISHES[value]


def chat_of(value: Any) -> Chat | None:
    """The messages in a list, an object, or the JSON text of a list, with role and content alone; None: no messages.

    Raises:
        InputError: what is meant as messages and is none: without text, with tool calls, as Python prints them.
    """
    messages: Any = [value] if isinstance(value, dict) else value
    if isinstance(value, str):
        try:
            messages = parse_python_json(value.encode(), "", float) if value.lstrip().startswith("[") else None
        except (InputError, UnicodeEncodeError):
            messages = None
        if not messages or not all(isinstance(message, dict) and "role" in message for message in messages):
            if MESSAGES_AS_TEXT.match(value):
                expected = "messages, as a list or as the JSON text of one"
                raise InputError("", expected=expected, found=described(value), fix="write them with json.dumps")
            return None
    if not isinstance(messages, list):
        return None
    messages = [
        {**message, "content": joined_text(message.get("content"))} if isinstance(message, dict) else message
        for message in messages
    ]
    texts = [message.get(key) if isinstance(message, dict) else None for message in messages for key in TURN]
    if not texts or not all(map(is_text, texts)):
        raise wrong_value(f"a list of role and content, each {TEXT}", messages)
    if extra := [key for message in messages for key in message if key not in PLAIN_KEYS and message[key]]:
        found = f"{', '.join(extra)} too"
        raise InputError("", expected="messages of role and content", found=found, fix="log completion_ids")
    # In the order of the file, by which the hash of a set of pairs goes.
    return [{key: message[key] for key in message if key in TURN} for message in messages]


def _ordered(chat: Chat) -> Chat:
    return [{"role": message["role"], "content": message["content"]} for message in chat]


def _messages(value: Any) -> Chat:
    chat = chat_of(value)
    if chat is None:
        raise wrong_value("a list of role and content, each a text", value)
    return _ordered(chat)


def _prompt(value: Any) -> Fields:
    """Messages, or a text, which is one message of the user unless it begins with the markup of a template."""
    chat = chat_of(value)
    if chat is not None:
        return {"messages": _ordered(chat)}
    text = _text(value)
    return {"rendered": text} if MARKUP.match(text) else {"messages": [{"role": "user", "content": text}]}


def _completion(value: Any) -> str:
    """A text, or one message of the assistant."""
    chat = chat_of(value)
    if chat is None:
        return _text(value)
    if len(chat) != 1:
        raise InputError("", expected="one message, the sampled turn", found=f"{len(chat)} messages")
    return chat[0]["content"]


def _known_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _truncated(value: Any) -> Fields:
    was_cut = _label(value)
    return {"finish": None if was_cut is None else "length" if was_cut else "stop"}


_TokenId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_text = _checker(TEXT, Annotated[str, Field(max_length=MOST_CHARACTERS)])
_Ids = Annotated[list[_TokenId], Field(max_length=MOST_TOKENS)]
_ids = _listed(_checker(f"a list of at most {MOST_TOKENS:,} token ids", _Ids))
_name = _checker("a text without control characters", Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")])
_whole = _checker("a whole number from 0 on", _TokenId)


def _number(value: Any) -> float:
    return _finite(float(value) if isinstance(value, bool) else value)


_finite = _checker("a finite number", _Finite)
# How the value of a target is read; those of SPREAD give other fields of LogRow.
READERS: dict[str, Callable[[Any], Any]] = {
    "messages": _messages,
    "prompt": _prompt,
    "rendered": _text,
    "skipped": _text,
    "prompt_ids": _ids,
    "plen": _length,
    "completion": _completion,
    "completion_ids": _ids,
    "comp_len": _length,
    "logprobs": _listed(_checker("a list of finite numbers", Annotated[list[_Finite], Field(max_length=MOST_TOKENS)])),
    "reward": _number,
    "advantage": _number,
    "hacked": _label,
    "gt_pass": _label,
    "fmt_ok": _label,
    "finish": _finish,
    "truncated": _truncated,
    "hint": _label,
    "env": _name,
    "env_mode": _name,
    "step": _step,
}
SPREAD = ("prompt", "truncated")
