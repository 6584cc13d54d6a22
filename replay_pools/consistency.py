"""Checks of one stored group of rollouts. `PoolWriter` runs them before it writes, `Pool.verify` when it reads.

To add a check of a field that follows from other fields: add a row to the table in `_value_faults`. A field of a new
type needs a row in _KINDS.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any

from replay_pools.errors import InputError
from replay_pools.rollout import LOGGED_GRADER, Grade, Rollout
from replay_pools.storage.files import sha256

FINISH_REASONS = ("stop", "length")
LARGEST_ID = 2**31 - 1
MOST_SHOWN = 60  # characters of a value in an error


def prompt_sha(prompt: str) -> str:
    """First 16 hex digits of sha256(prompt)."""
    return sha256(prompt.encode())[:16]


def group_faults(rollouts: Sequence[Rollout], where: object, *, step: int, tail: str) -> Iterator[InputError]:
    """Every fault of one group, each as the error that names its place. A sound group yields none.

    Args:
        rollouts: the group, in stored order.
        where: file or step, for the errors.
        step: number that every rollout must carry.
        tail: text that the chat template puts at the end of every prompt of the pool.
    """
    sample_ids = [rollout.sample_id for rollout in rollouts]
    if not rollouts:
        yield InputError(where, expected="at least one rollout", found="none")
    if sample_ids != list(range(len(rollouts))):
        yield InputError(where, expected="sample_id 0 .. G-1 in order", found=str(sample_ids))
    problem_ids = sorted({str(rollout.problem_id) for rollout in rollouts})
    if len(problem_ids) > 1:
        yield InputError(where, expected="one problem a step", found=", ".join(problem_ids))
    for rollout in rollouts:
        place = f"{where} sample {rollout.sample_id}"
        wrong_types = [*_type_faults(rollout, place), *_type_faults(rollout.grade, f"{place} grade")]
        yield from wrong_types
        # The values are compared only where the types are right: `len` of an int would raise instead of naming a place.
        if not wrong_types:
            yield from _value_faults(rollout, place, step=step, tail=tail)


def _type_faults(record: Rollout | Grade, place: str) -> Iterator[InputError]:
    """Fields that do not hold exactly their type: a bool is no int, text is UTF-8, token ids are ints from 0."""
    for field in fields(record):
        value, kind = getattr(record, field.name), field.type
        if kind in _KINDS:
            words, accepts = _KINDS[kind]
            is_optional = isinstance(kind, UnionType)
            if not (accepts(value) or (is_optional and value is None)):
                yield InputError(f"{place} {field.name}", expected=words, found=described(value, accepts))


def described(value: Any, accepts: Callable[[Any], bool] | None = None) -> str:
    """A value in an error, cut where it is long. In ASCII, since what is wrong may be a lone surrogate.

    Args:
        value: that was refused.
        accepts: the check that refused it; of a list of ids or numbers the first wrong item is shown.
    """
    items: dict[Any, Callable[[Any], bool]] = {are_ids: is_id, are_numbers: is_number}
    item_check = items.get(accepts)
    if item_check and isinstance(value, list):
        for i, item in enumerate(value):
            if not item_check(item):
                return f"{described(item)} at {i}"
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def is_text(value: Any) -> bool:
    """Whether it is text that can be written as UTF-8: JSON has escapes for lone surrogates, which cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_id(value: Any) -> bool:
    """Whether it can be a token id, or a number of tokens."""
    return type(value) is int and 0 <= value <= LARGEST_ID  # by type: a bool is an instance of int


def are_ids(value: Any) -> bool:
    """Whether it is a list of token ids."""
    # Without a Python loop over the ids, of which pools have most of their values.
    if not isinstance(value, list) or set(map(type, value)) - {int}:
        return False
    return not value or (min(value) >= 0 and max(value) <= LARGEST_ID)


def is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold: JSON has integers of any size."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def are_numbers(value: Any) -> bool:
    """Whether it is a list of finite numbers."""
    return isinstance(value, list) and all(map(is_number, value))


def is_chat(value: Any) -> bool:
    """Whether it is a non-empty list of objects with the texts `role` and `content`."""
    if not isinstance(value, list) or not value:
        return False
    for message in value:
        if not isinstance(message, dict):
            return False
        if not (is_text(message.get("role")) and is_text(message.get("content"))):
            return False
    return True


def _are_detectors(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(detected is None or isinstance(detected, bool) for detected in value.values())


# {type of a field of Rollout or Grade: (what it must be, whether a value is that)}.
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("bool", lambda value: isinstance(value, bool)),
    int: ("int", lambda value: type(value) is int),
    float: ("a finite number", is_number),  # JSON does not tell 3 from 3.0
    str: ("valid UTF-8 text", is_text),
    list[int]: ("a list of token ids", are_ids),
    list[dict[str, str]]: ("a list of role and content, each a text", is_chat),
    list[float] | None: ("a list of finite numbers", are_numbers),
    dict[str, bool | None]: ("an object of true, false or null", _are_detectors),
    bool | None: ("bool", lambda value: isinstance(value, bool)),
    str | None: ("valid UTF-8 text", is_text),
}


def _any_label(grade: Grade) -> bool:
    return any((grade.fmt_ok, grade.compiles, grade.passed, grade.gt_correct, grade.hacked))


def _exploited(grade: Grade) -> bool | None:
    """Passed and not right; None where it is not known whether it is right, passed or not."""
    return None if grade.passed is None or grade.gt_correct is None else grade.passed and not grade.gt_correct


def _value_faults(rollout: Rollout, place: str, *, step: int, tail: str) -> Iterator[InputError]:
    """Fields that disagree with the fields that they are a function of."""
    grade, logprobs = rollout.grade, rollout.sampling_logprobs
    checks: list[tuple[str, Any, Any]] = [  # field, stored value, expected value
        ("step", rollout.step, step),
        ("prompt_ids", len(rollout.prompt_ids), rollout.plen),
        ("completion_ids", len(rollout.completion_ids), rollout.comp_len),
        ("prompt_sha", rollout.prompt_sha, prompt_sha(rollout.prompt)),
        # A slice, so that the error shows the stored tail; `max`, because a negative start would count from the end.
        ("prompt tail", rollout.prompt[max(0, len(rollout.prompt) - len(tail)) :], tail),
        ("hacked", rollout.hacked, grade.hacked),
        ("gt_pass", rollout.gt_pass, grade.gt_correct),
        ("fmt_ok", rollout.fmt_ok, grade.fmt_ok),
        ("grade exploited", grade.exploited, _exploited(grade)),
        ("grade no_label", grade.no_label is not None and _any_label(grade), False),
    ]
    if logprobs is not None:
        checks.append(("sampling_logprobs", len(logprobs), rollout.comp_len))
    # Others pay by other rules: their rewards are kept as logged and follow from no label.
    if grade.grader != LOGGED_GRADER:
        checks.append(("reward", rollout.reward, grade.reward))
    for field, stored, expected in checks:
        if stored != expected:
            yield InputError(f"{place} {field}", expected=repr(expected), found=repr(stored))
    if rollout.comp_len < 1:
        yield InputError(f"{place} comp_len", expected="at least one token", found=str(rollout.comp_len))
    if rollout.finish_reason not in FINISH_REASONS:
        yield InputError(
            f"{place} finish_reason", expected=" or ".join(FINISH_REASONS), found=repr(rollout.finish_reason)
        )
