"""The rollouts of a log, checked value by value; no model is needed.

Every fault of every row is named: what is missing or of the wrong kind is never guessed. What may be unknown (labels,
the finish reason, a reward that is NaN) is None.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replay_pools.consistency import are_ids, described, is_chat, is_id, is_number, is_text
from replay_pools.errors import InputError
from replay_pools.faults import Faults
from replay_pools.logs.columns import (
    COMPLETIONS,
    EVERY,
    MARKUP,
    NO_COLUMN,
    PROMPTS,
    TARGETS,
    Column,
    columns_of,
    guess_mapping,
    parse_column,
    unknown_targets,
)
from replay_pools.logs.table import Fields, StoredRow, Table, joined_text
from replay_pools.rollout import FinishReason
from replay_pools.storage.files import parse_python_json

Chat = list[dict[str, str]]
STOPS = ("stop", "eos", "end_turn", "eos_token", "stop_sequence", "finished")
LENGTHS = ("length", "max_tokens", "max_length", "max_new_tokens", "model_length", "truncated")
PLAIN_KEYS = ("role", "content", "name", "id", "source", "model")  # of a message: others change what it says
MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["']role["']""")
UNKNOWN_LABEL = -1  # of loggers that have no null


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One rollout of a log: what its columns say, None where they say nothing."""

    where: str
    file: str
    messages: Chat | None = None  # of the prompt
    rendered: str | None = None  # the prompt with its markup
    skipped: str | None = None  # the prompt without its special tokens
    prompt_ids: list[int] | None = None
    plen: int | None = None
    completion: str | None = None
    completion_ids: list[int] | None = None
    comp_len: int | None = None
    logprobs: list[float] | None = None
    reward: float | None = None
    advantage: float | None = None
    hacked: bool | None = None
    gt_pass: bool | None = None
    fmt_ok: bool | None = None
    finish: FinishReason | None = None
    hint: bool | None = None
    env: str | None = None
    env_mode: str | None = None
    step: int | None = None
    problem: tuple[str, ...] | None = None
    group: tuple[str, ...] | None = None

    @property
    def prompt_key(self) -> str:
        """What rollouts with the same prompt share."""
        return repr((self.rendered, self.messages, self.skipped, self.prompt_ids))


def checked_rows(
    table: Table, corrections: Mapping[str, str], faults: Faults, source: object
) -> tuple[list[LogRow], dict[str, str], int | None]:
    """(rollouts, {target: column} that was used, size of blocks that are groups or None).

    Args:
        table: as a format made it.
        corrections: {target: column} of the user, before all others.
        faults: where everything goes that is wrong.
        source: names the log in faults.
    """
    fields = [row.fields for row in table.rows]
    mapping = _mapping(table, corrections, fields, faults)
    every = EVERY.fullmatch(mapping.get("group", ""))
    columns = _columns(mapping, columns_of(fields), faults)
    if not any(target in mapping for target in PROMPTS):
        _no_column("prompt", PROMPTS, fields, faults, source)
    if not any(target in mapping for target in (*COMPLETIONS, "messages")):
        _no_column("completion", COMPLETIONS, fields, faults, source)
    if "reward" not in mapping:
        _no_column("reward", ("reward",), fields, faults, source)
    rows = [_row(row, columns, faults) for row in table.rows]
    return rows, mapping, int(every[1]) if every else None


def _mapping(table: Table, corrections: Mapping[str, str], fields: Sequence[Fields], faults: Faults) -> dict[str, str]:
    for error in unknown_targets(corrections):
        faults.note(error, error.where)
    known = {**table.mapping, **corrections}
    # A prompt that the user names is the only one, beside messages that he names as well.
    if any(target in corrections for target in PROMPTS):
        known = {target: name for target, name in known.items() if target not in PROMPTS or target in corrections}
    mapping = known | guess_mapping(fields, known)
    return {target: mapping[target] for target in TARGETS if mapping.get(target, NO_COLUMN) != NO_COLUMN}


def _columns(mapping: Mapping[str, str], names: Sequence[str], faults: Faults) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for target, text in mapping.items():
        if target == "group" and EVERY.fullmatch(text):
            continue
        try:
            columns[target] = parse_column(target, text, names)
        except InputError as error:
            faults.note(error, ("column", target))
    return columns


def _no_column(what: str, targets: Sequence[str], fields: Sequence[Fields], faults: Faults, source: object) -> None:
    names = ", ".join(columns_of(fields)[:20]) or "no column"
    fix = " or ".join(f"--map {target}=COLUMN" for target in targets)
    faults.add(source, f"no {what}", expected=f"a column with the {what}", found=names, fix=f"pass {fix}")


def _row(row: StoredRow, columns: Mapping[str, Column], faults: Faults) -> LogRow:
    """The rollout of a row; a value of the wrong kind is a fault, and None here."""
    values: dict[str, Any] = {"where": row.where, "file": str(row.path)}
    for target, column in columns.items():
        if target in ("problem", "group"):
            values[target] = column.key(row.fields)
            if values[target] is None:
                _wrong(row, target, column, "a value", "null", faults)
            continue
        value = column.value(row.fields)
        if _is_missing(value):
            continue
        try:
            values |= _READERS[target](value)
        except _WrongKindError as error:
            _wrong(row, target, column, error.expected, error.found, faults, error.fix)
    _split_messages(values, columns)
    _check_presence(row, values, columns, faults)
    return LogRow(**values)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _wrong(
    row: StoredRow, target: str, column: Column, expected: str, found: str, faults: Faults, fix: str = ""
) -> None:
    name = "+".join(column.names)
    said = name if name == target else f"{name} ({target})"
    faults.add(f"{row.where} {said}", target, expected=expected, found=found, fix=fix)


def _split_messages(values: dict[str, Any], columns: Mapping[str, Column]) -> None:
    """A conversation that holds its answer, where no column has a completion: the last message is the completion."""
    messages = values.get("messages")
    if not messages or any(target in columns for target in COMPLETIONS):
        return
    if messages[-1]["role"] == "assistant":
        values["completion"] = messages[-1]["content"]
        values["messages"] = messages[:-1] or None


def _check_presence(row: StoredRow, values: dict[str, Any], columns: Mapping[str, Column], faults: Faults) -> None:
    """A prompt and a completion, where the log has columns of them and the value is not wrong already."""
    has_prompt = any(values.get(name) is not None for name in ("messages", "rendered", "skipped", "prompt_ids"))
    has_completion = any(values.get(name) is not None for name in COMPLETIONS)
    for what, targets, is_there in (("prompt", PROMPTS, has_prompt), ("completion", COMPLETIONS, has_completion)):
        used = [target for target in targets if target in columns]
        if is_there or not used:
            continue
        if all(_is_missing(columns[target].value(row.fields)) for target in used):
            faults.add(f"{row.where} {what}", f"{what} missing", expected=f"a {what}", found="null")


class _WrongKindError(Exception):
    def __init__(self, expected: str, value: Any, fix: str = "", accepts: Callable[[Any], bool] | None = None) -> None:
        super().__init__(expected)
        self.expected, self.found, self.fix = expected, described(value, accepts), fix


def _number(value: Any) -> float:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and math.isinf(value):
        raise _WrongKindError("a finite number", value)
    if not is_number(value):
        raise _WrongKindError("a number", value)
    return float(value)


def _label(value: Any) -> bool | None:
    """True, false, or None for -1, by which loggers without a null say that they do not know."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1, UNKNOWN_LABEL):
        return None if value == UNKNOWN_LABEL else bool(value)
    raise _WrongKindError("true or false (or 1, 0, and -1 for unknown)", value)


def _ids(value: Any) -> list[int]:
    if not are_ids(value):
        raise _WrongKindError("a list of token ids", value, accepts=are_ids)
    return value


def _length(value: Any) -> int:
    if not is_id(value):
        raise _WrongKindError("a whole number from 0 on", value)
    return value


def _whole(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():  # wandb writes steps as text
        return int(value)
    return _length(value)


def _logprobs(value: Any) -> list[float]:
    if not isinstance(value, list) or not all(map(is_number, value)):
        raise _WrongKindError("a list of finite numbers", value)
    return [float(item) for item in value]


def _text(value: Any) -> str:
    if not is_text(value):
        raise _WrongKindError("text", value)
    return value


def _finish(value: Any) -> FinishReason:
    if value in STOPS:
        return "stop"
    if value in LENGTHS:
        return "length"
    raise _WrongKindError("stop or length", value)


def _truncated(value: Any) -> dict[str, Any]:
    return {"finish": None if (cut := _label(value)) is None else ("length" if cut else "stop")}


def _chat(value: Any) -> Chat:
    """Messages with role and content, of a list or of the JSON text of one; keys that are null are left out."""
    messages = value
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            messages = parse_python_json(value.encode(), "messages", float)
        except InputError as error:
            raise _WrongKindError("messages", value) from error
    if isinstance(messages, dict):
        messages = [messages]
    if isinstance(messages, list):
        messages = [_with_text(message) for message in messages]
    if not is_chat(messages):
        raise _WrongKindError("a list of role and content, each a text", messages)
    chat: Chat = []
    for message in messages:
        extra = [key for key in message if key not in PLAIN_KEYS and message[key]]
        if extra:
            raise _WrongKindError("messages of role and content", f"{', '.join(extra)} too", "log completion_ids")
        chat.append({"role": message["role"], "content": message["content"]})
    return chat


def _with_text(message: Any) -> Any:
    """A message with its content as one text, where it has parts that are texts."""
    if not isinstance(message, dict):
        return message
    return {**message, "content": joined_text(message.get("content"))}


def _is_chat_like(value: Any) -> bool:
    """Whether it is meant as messages: a list, an object, or a text that looks like JSON (or Python) of a list."""
    return isinstance(value, list | dict) or (isinstance(value, str) and MESSAGES_AS_TEXT.match(value) is not None)


def _prompt(value: Any) -> dict[str, Any]:
    """Messages, or a text, which is one message of the user unless it begins with the markup of a template."""
    if _is_chat_like(value):
        return {"messages": _chat(value)}
    if isinstance(value, str) and MARKUP.match(value):
        return {"rendered": _text(value)}
    return {"messages": [{"role": "user", "content": _text(value)}]}


def _completion(value: Any) -> dict[str, Any]:
    """A text, or one message of the assistant."""
    if not _is_chat_like(value):
        return {"completion": _text(value)}
    messages = _chat(value)
    if len(messages) != 1:
        raise _WrongKindError("one message, the sampled turn", f"{len(messages)} messages")
    return {"completion": messages[0]["content"]}


def _as(name: str, read: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: read(value)}


# What the value of a target says of a rollout: fields of LogRow.
_READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "messages": _as("messages", _chat),
    "prompt": _prompt,
    "rendered": _as("rendered", _text),
    "skipped": _as("skipped", _text),
    "prompt_ids": _as("prompt_ids", _ids),
    "plen": _as("plen", _length),
    "completion": _completion,
    "completion_ids": _as("completion_ids", _ids),
    "comp_len": _as("comp_len", _length),
    "logprobs": _as("logprobs", _logprobs),
    "reward": _as("reward", _number),
    "advantage": _as("advantage", _number),
    "hacked": _as("hacked", _label),
    "gt_pass": _as("gt_pass", _label),
    "fmt_ok": _as("fmt_ok", _label),
    "finish": _as("finish", _finish),
    "truncated": _truncated,
    "hint": _as("hint", _label),
    "env": _as("env", _text),
    "env_mode": _as("env_mode", _text),
    "step": _as("step", _whole),
}
