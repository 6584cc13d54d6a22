"""The rollouts of a log, checked value by value; no model is needed.

Every fault of every row is named: what is missing or of the wrong kind is never guessed. What may be unknown (labels,
the finish reason, a reward that is NaN) is None.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from replay_pools.consistency import are_ids, described, is_chat, is_id, is_number, is_text
from replay_pools.errors import Faults, InputError
from replay_pools.logs.choice import Choice
from replay_pools.logs.columns import COMPLETIONS, EVERY, MARKUP, PROMPTS, Column, columns_of, parse_column
from replay_pools.logs.table import Fields, StoredRow, Table, joined_text
from replay_pools.rollout import FinishReason
from replay_pools.storage.files import parse_python_json

Chat = list[dict[str, str]]
STOPS = ("stop", "eos", "end_turn", "eos_token", "stop_sequence", "finished")
LENGTHS = ("length", "max_tokens", "max_length", "max_new_tokens", "model_length", "truncated")
PLAIN_KEYS = ("role", "content", "name", "id", "source", "model")  # of a message: others change what it says
MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["']role["']""")
UNKNOWN_LABEL = -1  # of loggers that have no null
NEEDED = ("prompt", "messages", "completion", "reward")  # targets that no rollout can do without


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
    lead: int = 0  # ids before the prompt that are padding: they make it no other prompt

    @property
    def prompt_key(self) -> str:
        """What rollouts with the same prompt share."""
        ids = None if self.prompt_ids is None else self.prompt_ids[self.lead :]
        return repr((self.rendered, self.messages, self.skipped, ids))


def checked_rows(table: Table, choice: Choice, faults: Faults, source: object) -> list[LogRow]:
    """The rollouts of a table.

    Args:
        table: as a format made it.
        choice: its columns.
        faults: where everything goes that is wrong.
        source: names the log in faults.
    """
    fields = [row.fields for row in table.rows]
    columns = _columns(choice.mapping, columns_of(fields), faults)
    rows = [_row(row, columns, choice, faults) for row in table.rows]
    if not any(target in choice.mapping for target in PROMPTS):
        _no_column("prompt", PROMPTS, fields, faults, source)
    if not any(target in choice.mapping for target in COMPLETIONS):
        lacking = [row for row in rows if row.completion is None]
        if len(lacking) == len(rows):
            _no_column("completion", COMPLETIONS, fields, faults, source)
        for row in lacking if len(lacking) < len(rows) else ():
            expected = "a conversation that ends in the answer of the assistant"
            faults.add(f"{row.where} completion", "no answer", expected=expected, found="another turn at its end")
    if "reward" not in choice.mapping:
        _no_column("reward", ("reward",), fields, faults, source)
    return _with_left_padding(rows)


def _with_left_padding(rows: Sequence[LogRow]) -> list[LogRow]:
    """The rows with the number of ids before their prompts that are padding, as far as can be told without a model.

    Padding repeats: ids are padding that lead some prompt of the log in a run of two or more.
    """
    padding = {row.prompt_ids[0] for row in rows if row.prompt_ids and row.prompt_ids[0] in row.prompt_ids[1:2]}
    padded: list[LogRow] = []
    for row in rows:
        ids, lead = row.prompt_ids or [], 0
        if row.plen:
            lead = max(0, len(ids) - row.plen)
        elif ids and ids[0] in padding:
            lead = leading_run(ids)
        padded.append(replace(row, lead=lead))
    return padded


def leading_run(ids: Sequence[int]) -> int:
    """How often the first id stands at the start."""
    return next((place for place, token in enumerate(ids) if token != ids[0]), len(ids))


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


def _row(row: StoredRow, columns: Mapping[str, Column], choice: Choice, faults: Faults) -> LogRow:
    """The rollout of a row; a value of the wrong kind is a fault, and None here."""
    values: dict[str, Any] = {"where": row.where, "file": str(row.path)}
    wrong: set[str] = set()  # targets

    def refuse_value(target: str, expected: str, found: str, fix: str = "") -> None:
        wrong.add(target)
        name = "+".join(columns[target].names)
        said = name if name == target else f"{name} ({target})"
        fixes = [text for text in (fix, _other_column(target, choice)) if text]
        faults.add(f"{row.where} {said}", target, expected=expected, found=found, fix="; ".join(fixes))

    for target, column in columns.items():
        if target in ("problem", "group"):
            values[target] = column.key(row.fields)
            if values[target] is None:
                refuse_value(target, "a value", "null")
            continue
        value = column.value(row.fields)
        if _is_missing(value):
            continue
        try:
            values |= _READERS[target](value)
        except _WrongKindError as error:
            refuse_value(target, error.expected, error.found, error.fix)
    _split_messages(values, columns)
    is_whole = not wrong & {*PROMPTS, *COMPLETIONS}
    if is_whole and _has_all(row, values, columns, faults):
        _check_prompt(values, columns, refuse_value)
    return LogRow(**values)


def _other_column(target: str, choice: Choice) -> str:
    """What to do about a column that was only guessed to be a target."""
    if target not in choice.guessed:
        return ""
    if target in NEEDED:
        return f"the column was guessed: --map {target}=COLUMN takes another"
    return f"the column was guessed: --map {target}=none leaves it out, {target}=COLUMN takes another"


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _split_messages(values: dict[str, Any], columns: Mapping[str, Column]) -> None:
    """A conversation that holds its answer, where no column has its text: the last message is the completion."""
    messages = values.get("messages")
    if messages and "completion" not in columns and messages[-1]["role"] == "assistant":
        values["completion"] = messages[-1]["content"]
        values["messages"] = messages[:-1] or None


def _has_all(row: StoredRow, values: dict[str, Any], columns: Mapping[str, Column], faults: Faults) -> bool:
    """Whether there is a prompt, and a completion where the log has columns of them; what lacks is a fault."""
    has_prompt = any(values.get(name) is not None for name in ("messages", "rendered", "skipped", "prompt_ids"))
    has_completion = any(values.get(name) is not None for name in COMPLETIONS)
    for what, targets, is_there in (("prompt", PROMPTS, has_prompt), ("completion", COMPLETIONS, has_completion)):
        if not is_there and any(target in columns for target in targets):
            faults.add(f"{row.where} {what}", f"{what} missing", expected=f"a {what}", found="none")
    return has_prompt and has_completion


def _check_prompt(
    values: Mapping[str, Any], columns: Mapping[str, Column], refuse_value: Callable[[str, str, str, str], None]
) -> None:
    """Refuse messages without text, or with the answer, where they alone say what the prompt is."""
    if any(values.get(name) is not None for name in ("rendered", "skipped", "prompt_ids")):
        return
    target = "prompt" if "prompt" in columns else "messages"
    last = values["messages"][-1]
    if not last["content"].strip():
        refuse_value(target, "a prompt with text", "an empty message at its end", "")
    if last["role"] == "assistant":
        fix = "--map completion=none takes that message for the completion"
        refuse_value(target, "a prompt without its answer", "a turn of the assistant at its end", fix)


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
    if isinstance(value, float) and value.is_integer():  # a table with a gap holds its whole numbers so
        return _length(int(value))
    if not is_id(value):
        raise _WrongKindError("a whole number from 0 on", value)
    return int(value)


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
