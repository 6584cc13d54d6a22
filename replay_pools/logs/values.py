"""Read the value of each target. A value of the wrong kind is an InputError; what may be unknown is None."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from replay_pools.base.errors import InputError
from replay_pools.base.tables import HACKS, TRUTHS
from replay_pools.logs.columns import MARKUP, UNKNOWN_LABEL, number_of, opened, truth_of
from replay_pools.logs.rows import Fields, SkipRow, described
from replay_pools.rollout import LARGEST_ID, FinishReason

Chat = list[dict[str, str]]
Turns = list[dict[str, Any]]  # messages with whatever keys they have
WHOLES = ("total", "score", "reward", "overall", "value")  # keys of a number that the others are parts of
TEXT = "a text"
MESSAGES = f"a list of role and content, each {TEXT}"
FINISHES: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "eos", "end_turn", "eos_token", "stop_sequence", "finished", "completed"), "stop"),
    **dict.fromkeys(("end_of_turn", "stop_token", "tool_calls", "tool_call", "tool_use", "function_call"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_length", "max_new_tokens", "model_length", "truncated"), "length"),
    **dict.fromkeys(("max_output_tokens", "max_completion_tokens", "context_length"), "length"),
}
FAILURES = ("abort", "aborted", "error", "failed", "cancelled", "content_filter")  # of the sampler
NOT_LOGGED = ("", "unknown", "none", "null")  # finish reasons that say nothing
MAX_LOGPROB = 1e-3  # of rounding
TURN = ("role", "content")
ROLES = {"system", "developer", "user", "assistant", "tool", "function", "environment", "ipython"}
# Other keys change what a message says.
PLAIN_KEYS = (*TURN, "name", "id", "source", "model", "metadata", "tool_call_id", "trainable")
MESSAGES_AS_TEXT = re.compile(r"""\s*\[\s*\{\s*["'](role|content)["']""")


def wrong_value(expected: str, value: Any, place: Sequence[int | str] = (), fix: str = "") -> InputError:
    """Return the error of a value, at no place yet; of a list, of its item at `place`."""
    found = described(value) + "".join(f" at {part}" for part in place)
    return InputError("", expected=expected, found=found, fix=fix)


def is_text(value: Any) -> bool:
    """Return whether a value is a TEXT that can be written as UTF-8; JSON has escapes for lone surrogates."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _checker(expected: str, kind: Any) -> Callable[[Any], Any]:
    """Return a reader of values that are exactly of a type; a list may stand in a cell as its JSON text."""
    adapter = TypeAdapter(kind)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_python(opened(value), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise wrong_value(expected, first["input"], first["loc"]) from error

    return read


def _text(value: Any) -> str:
    if not is_text(value):
        fix = "half of a character was logged: --skip-bad N leaves such rows out" if isinstance(value, str) else ""
        raise wrong_value(TEXT, value, fix=fix)
    return value


def _label(value: Any) -> bool | None:
    """Return true, false, or None for -1, by which loggers without a null say that they do not know."""
    value = TRUTHS.get(value.strip().lower(), value) if isinstance(value, str) else value
    if value in ("", "-1", UNKNOWN_LABEL):
        return None
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        is_score = isinstance(value, int | float)
        fix = "a score needs a threshold: --map TARGET=COLUMN>0.5" if is_score else "write it as 0 and 1"
        raise wrong_value("true or false (or 1, 0, and -1 for unknown)", value, fix=fix)
    return bool(value)


def _number(value: Any) -> float:
    """Return a finite number, which may stand in a text."""
    if (number := number_of(value)) is not None:
        return number or 0.0  # -0.0 is 0.0
    value, fix = opened(value), ""
    if isinstance(value, dict):
        keys = [str(key) for key, inner in value.items() if isinstance(inner, int | float | None)]
        keys = [key for key in keys if key.lower() in WHOLES][:1] or keys
        fix = f"name the paid parts: --map TARGET={'+'.join(f'COLUMN.{key}' for key in keys)}" if keys else ""
    if isinstance(value, list) and value and all(isinstance(inner, int | float) for inner in value):
        fix = "one number for each token: --map TARGET=COLUMN.sum, or COLUMN.last"
    raise wrong_value("a finite number", value, fix=fix)


def _advantage(value: Any) -> float:
    """Return a number, or the one number of all tokens."""
    values = opened(value)
    return _number(values[0] if isinstance(values, list) and len({*map(str, values)}) == 1 else value)


def _whole(value: Any) -> int:
    """Return a whole number; tables with a gap hold it as a fraction, wandb as a text."""
    number = None if isinstance(value, bool) else number_of(value)
    if number is None or not 0 <= number <= LARGEST_ID or not number.is_integer():
        raise wrong_value("a whole number from 0 on", value)
    return int(number)


def _finish(value: Any) -> FinishReason | None:
    value = value.get("type") if isinstance(value, dict) else value
    # As FinishReason.LENGTH or FINISH_REASON_STOP.
    word = value.lower().rpartition(".")[2].removeprefix("finish_reason_") if isinstance(value, str) else None
    if (was_cut_off := truth_of(value)) is not None:  # a column `truncated`
        return "length" if was_cut_off else "stop"
    if word in NOT_LOGGED or value == UNKNOWN_LABEL:
        return None
    if word in FAILURES:
        raise SkipRow(f"sampling ended by {value}")
    if word not in FINISHES:
        raise wrong_value("stop or length", value)
    return FINISHES[word]


def _mask(value: Any) -> list[bool]:
    values = opened(value)
    if not isinstance(values, list) or not all(each in (0, 1) for each in values):
        raise wrong_value("a list of 0 and 1", value)
    return [bool(each) for each in values]


def _logprobs(value: Any) -> list[float]:
    values = _numbers(value)
    if any(each > MAX_LOGPROB for each in values):
        fix = "these are probabilities" if all(0 <= each <= 1 for each in values) else "--map logprobs=none"
        raise wrong_value("log-probabilities, at most 0", max(values), fix=fix)
    return [min(each, 0.0) for each in values]


def joined_text(content: Any) -> Any:
    """Return the text of a message's content that is a list of texts in parts; any other content unchanged."""
    if not isinstance(content, list):
        return content
    kinds = ("text", "output_text", "input_text")
    texts: list[Any] = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") in kinds]
    is_text_alone = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
    return "".join(texts) if is_text_alone else content


def turns_of(value: Any) -> Turns | None:
    """Return the messages in a list, an object, or the JSON text of either, each with all its keys; None: no messages.

    Raises:
        InputError: messages without text, or as Python prints them.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        plain = opened(value.strip())
        messages = plain if isinstance(plain, list) else [plain]
        are_turns = all(isinstance(turn, dict) and "role" in turn and len(turn) > 1 for turn in messages)
        if messages and are_turns and messages[0]["role"] in ROLES:
            value = plain
        elif isinstance(plain, str) and MESSAGES_AS_TEXT.match(value):  # as Python prints them
            raise wrong_value("messages, as a list or its JSON text", value, fix="write them with json.dumps")
    messages: Any = [value] if isinstance(value, dict) else value
    if not isinstance(messages, list):
        return None
    turns = list[dict[str, Any]]()
    for message in messages:
        pairs = message.items() if isinstance(message, dict) else ()
        turn = {key: each for key, each in pairs if each not in (None, [])}
        if "tool_calls" in turn:
            turn["tool_calls"] = _calls(turn["tool_calls"])
        turn["content"] = joined_text(turn.get("content", "" if "tool_calls" in turn else None))
        if not all(is_text(turn.get(key)) for key in TURN):
            raise wrong_value(MESSAGES, messages)
        turns.append(turn)
    return turns or None


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return calls of tools as chat templates take them; some writers write each as JSON text, or flat."""
    calls: list[Any] = opened(value) if isinstance(opened(value), list) else [value]
    calls = [opened(call) for call in calls]
    if not all(isinstance(call, dict) and ("name" in call or isinstance(call.get("function"), dict)) for call in calls):
        raise wrong_value("tool calls, each an object with a name and arguments", value)
    return [_function(call) for call in calls]


def _function(item: dict[str, Any]) -> dict[str, Any]:
    """Return a call or a schema in the form that chat templates take; some writers write it flat."""
    keys, item = ("name", "description", "parameters", "arguments"), _without_gaps(item)
    is_nested = isinstance(item.get("function"), dict)
    return item if is_nested else {"type": "function", "function": {k: item[k] for k in keys if k in item}}


def _without_gaps(value: Any) -> Any:
    """Return a value without keys of null: tables give each object the keys of all."""
    if isinstance(value, dict):
        return {key: _without_gaps(inner) for key, inner in value.items() if inner is not None}
    return [*map(_without_gaps, value)] if isinstance(value, list) else value


def is_plain(turns: Turns) -> bool:
    """Return whether role and content are all that the messages say."""
    return all(key in PLAIN_KEYS for turn in turns for key in turn)


def plain_chat(turns: Turns) -> Chat:
    """Return the messages with role and content alone."""
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def _messages(value: Any) -> Turns:
    if (turns := turns_of(value)) is None:
        raise wrong_value(MESSAGES, value)
    return turns


def _prompt(value: Any) -> Fields:
    """Return messages, or a text, which is one message of the user unless it begins with the markup of a template."""
    turns = turns_of(value)
    if turns is not None:
        return {"messages": turns}
    text = _text(value)
    return {"rendered": text} if MARKUP.match(text) else {"messages": [{"role": "user", "content": text}]}


def _completion(value: Any) -> Fields:
    """Return a text, or turns: of the assistant, with turns of tools and users between."""
    if value == []:
        raise SkipRow("no answer")
    turns = turns_of(value)
    return {"completion": _text(value)} if turns is None else answer_of(turns)


def answer_of(turns: Turns) -> Fields:
    """Return the fields of a completion: its text, where one message says all, else its turns."""
    is_one_text = len(turns) == 1 and is_plain(turns)
    return {"completion": turns[0]["content"], "turns": None} if is_one_text else {"turns": turns}


def _tools(value: Any) -> list[dict[str, Any]] | None:
    """Return schemas of tools as chat templates take them."""
    tools = opened(value)
    return [*map(_function, _objects([*map(opened, tools)] if isinstance(tools, list) else tools))] or None


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_name = _checker("a text without control characters", Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$")])
_objects = _checker("a list of objects", list[dict[str, Any]])
_ids = _checker("a list of token ids", list[Annotated[int, Field(ge=0, le=LARGEST_ID)]])
_numbers = _checker("a list of finite numbers", list[_Finite])
# {target: its reader}; the readers of SPREAD return fields of a rollout.
READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("system", "rendered", "skipped", "reasoning"), _text),
    "messages": _messages,
    "prompt": _prompt,
    "completion": _completion,
    "tools": _tools,
    **dict.fromkeys(("prompt_ids", "completion_ids"), _ids),
    **dict.fromkeys(("plen", "comp_len", "step"), _whole),
    "mask": _mask,
    "logprobs": _logprobs,
    "reward": _number,
    "advantage": _advantage,
    "hacked": lambda value: _label(HACKS.get(value.strip().lower(), value) if isinstance(value, str) else value),
    **dict.fromkeys(("gt_pass", "fmt_ok", "passed", "hint"), _label),
    "finish": _finish,
    **dict.fromkeys(("env", "env_mode"), _name),
}
SPREAD = ("prompt", "completion")
