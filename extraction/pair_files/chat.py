"""What stands in a prompt or completion column: a text, a rendered ChatML chat, messages, or messages as a JSON text.

A rendered prompt is parsed into messages, which the model's own template renders again: it never reaches a model as it
stands, since its last line break or think block may be that of another template.
"""

import re
from typing import Any

from extraction.pair_files.pair import Messages
from replay_pools.consistency import is_text
from replay_pools.errors import InputError
from replay_pools.logs.rows import MESSAGES_AS_TEXT
from replay_pools.storage.files import parse_python_json

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
_TURN = re.compile(rf"{re.escape(TURN_START)}(\w+)\n(.*?){re.escape(TURN_END)}\s*", re.S)
# What a template puts after the last turn, with the empty think block of one that has thinking switched off.
_GENERATION = re.compile(rf"{re.escape(TURN_START)}assistant\s*(<think>\s*</think>\s*)?")
OTHER_TEMPLATES = ("<|start_header_id|>", "<start_of_turn>", "<|start|>", "[INST]")


class ValueFault(ValueError):  # noqa: N818 a fault, as `Faults` calls it
    """A value that is no prompt or completion: what was expected, and what was found instead."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected, self.found = expected, found


def is_rendered(value: Any) -> bool:
    """Whether a prompt is a text with the marks of ChatML."""
    return isinstance(value, str) and TURN_START in value


def messages_of(value: Any) -> Messages:
    """The messages of a prompt.

    >>> messages_of("Add 1 and 2.")
    [{'role': 'user', 'content': 'Add 1 and 2.'}]

    Raises:
        ValueFault: neither a text nor messages, a rendered chat that cannot be taken apart.
    """
    value = _decoded(value)
    if isinstance(value, list):
        return _checked(value)
    if not is_text(value) or not value.strip():
        raise ValueFault("a text, or messages with role and content", _shown(value))
    if is_rendered(value):
        return _parsed(value)
    for mark in OTHER_TEMPLATES:
        if mark in value:
            raise ValueFault("a text, ChatML, or messages with role and content", f"another template's {mark}")
    return [{"role": "user", "content": value}]


def answer_of(value: Any) -> str:
    """The text of a completion: as it stands, or the content of its one assistant message; '' for null.

    An end-of-turn mark at its end is cut: the extraction adds the model's own.

    Raises:
        ValueFault: neither a text nor one assistant message.
    """
    value = _decoded(value)
    if value is None:
        return ""
    if isinstance(value, list):
        messages = _checked(value) if value else []
        if len(messages) != 1 or messages[0]["role"] != "assistant":
            roles = ", ".join(message["role"] for message in messages) or "none"
            raise ValueFault("a text, or one assistant message", f"messages of {roles}")
        value = messages[0]["content"]
    if not is_text(value):
        raise ValueFault("a text, or one assistant message", _shown(value))
    return value.rstrip().removesuffix(TURN_END).rstrip("\n") if value.rstrip().endswith(TURN_END) else value


def is_conversation(value: Any) -> bool:
    """Whether a completion is a whole conversation: messages, of which the last is the answer."""
    try:
        value = _decoded(value)
    except ValueFault:
        return False
    return isinstance(value, list) and len(value) > 1


def split_conversations(first: Any, second: Any) -> tuple[Messages, str, str]:
    """The prompt and the two answers of two conversations that have all but the last message in common.

    Raises:
        ValueFault: no conversations, or other messages in common.
    """
    conversations = []
    for value in (first, second):
        value = _decoded(value)
        if not isinstance(value, list) or len(value) < 2:
            raise ValueFault("a prompt column, or two conversations of messages", _shown(value))
        conversations.append(_checked(value))
    prompt, other_prompt = (conversation[:-1] for conversation in conversations)
    if prompt != other_prompt:
        raise ValueFault("two conversations that differ in the last message alone", "other messages before it")
    answers = [answer_of(conversation[-1:]) for conversation in conversations]
    return prompt, answers[0], answers[1]


def _decoded(value: Any) -> Any:
    """A JSON text of messages as messages; any other value as it is.

    Raises:
        ValueFault: a text that looks like messages and is no JSON of them, as Python prints them: as a text it would
            be one message of the user.
    """
    if not is_text(value) or not value.lstrip().startswith("["):
        return value
    try:
        decoded = parse_python_json(value.encode(), "messages", float)
    except InputError:
        decoded = None
    if isinstance(decoded, list) and decoded and all(isinstance(item, dict) and "role" in item for item in decoded):
        return decoded
    if MESSAGES_AS_TEXT.match(value):
        raise ValueFault("messages, as a list or as the JSON text of one", _shown(value))
    return value


def _checked(value: list[Any]) -> Messages:
    """Messages with their role and content alone; other keys (a name, empty tool calls) are left out."""
    messages: Messages = []
    for message in value:
        fields = message if isinstance(message, dict) else {}
        role, content = fields.get("role"), fields.get("content")
        if not is_text(role) or not is_text(content):
            raise ValueFault('a list of {"role", "content"} texts', _shown(value))
        # In the order of the file, by which the hash of a set of pairs goes.
        messages.append({key: text for key, text in fields.items() if key in ("role", "content")})
    if not messages:
        raise ValueFault('a list of {"role", "content"} texts', "an empty list")
    return messages


def _parsed(text: str) -> Messages:
    """The turns of a ChatML prompt, without the start of the answer at its end."""
    messages: Messages = []
    position = len(text) - len(text.lstrip())
    while match := _TURN.match(text, position):
        messages.append({"role": match[1], "content": match[2]})
        position = match.end()
    rest = text[position:]
    if not messages or (rest and not _GENERATION.fullmatch(rest)):
        raise ValueFault("ChatML turns, and the start of the answer behind them", _shown(rest or text))
    return messages


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
