"""Checks of one stored group of rollouts. `PoolWriter` runs them before it writes, `Pool.verify` when it reads.

To add a check of a field that follows from other fields: add a row to the table in `_value_faults`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from replay_pools.errors import InputError
from replay_pools.files import sha256
from replay_pools.rollout import Grade, Rollout

PREDECESSOR_GRADER = "predecessor"  # `grade.grader` of rollouts that were read from the predecessor format
FINISH_REASONS = ("stop", "length")


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
    """Fields that do not hold exactly their type: a bool is no int, text is UTF-8, token ids are ints."""
    for field in fields(record):
        value, kind = getattr(record, field.name), field.type
        # JSON does not tell 3 from 3.0, so a float field may hold an int.
        allowed = (float, int) if kind is float else (kind,)
        if kind in (bool, int, float, str) and type(value) not in allowed:
            yield InputError(f"{place} {field.name}", expected=getattr(kind, "__name__", str(kind)), found=repr(value))
        elif kind is str and not _is_utf8(value):
            yield InputError(f"{place} {field.name}", expected="valid UTF-8 text", found="a lone surrogate")
        elif kind == list[int] and set(map(type, value)) - {int}:
            yield InputError(f"{place} {field.name}", expected="token ids", found="something that is not an int")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
        ("grade exploited", grade.exploited, grade.passed and not grade.gt_correct),
    ]
    if logprobs is not None:
        checks.append(("sampling_logprobs", len(logprobs), rollout.comp_len))
    # The predecessor paid by other rules: its rewards are kept as recorded and follow from no label.
    if grade.grader != PREDECESSOR_GRADER:
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
