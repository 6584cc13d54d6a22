"""Rollout and Grade: wire form and reward."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import pytest

from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json
from replay_pools.base.tables import decode_json
from replay_pools.pool import encode_group
from replay_pools.rollout import Rollout, group_faults

MakeRollout = Callable[..., Rollout]


@pytest.mark.parametrize("logprobs", [None, [-0.25, 0.1 + 0.2, 0.0, -1e-9, -30.0]])
def test_json_round_trip(make_rollout: MakeRollout, logprobs: list[float] | None) -> None:
    """A line reads back as the rollout; its bytes are those of the plain dictionary, in the order of the fields."""
    rollout = make_rollout(completion='\x00\n\u2028\x7f"\\\u4e2d\U0001f600', sampling_logprobs=logprobs)
    plain = asdict(rollout)
    del plain["completion_mask"], plain["turn_chars"]
    line = encode_group([rollout])
    assert line == dump_json(plain) + b"\n"
    assert decode_json(Rollout, line, "here") == rollout
    assert [*json.loads(line), "completion_mask", "turn_chars"] == [field.name for field in fields(Rollout)]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, ""),
        ({"completion_mask": [True, False]}, "completion_mask"),
        ({"completion_mask": [False, True, True]}, "completion_mask"),
        ({"completion_mask": [True, True, False]}, "completion_mask"),
        ({"sampling_logprobs": [-0.5, -0.5, -0.5]}, "sampling_logprobs"),
        ({"turn_chars": [1, 1]}, "turn_chars"),
        ({"turn_chars": [1, 1, 1]}, "turn_chars"),
    ],
)
def test_mask(make_rollout: MakeRollout, changes: dict[str, Any], fault: str) -> None:
    """A mask is stored as it is. Another length, an end that is not sampled or a score of other ids is a fault."""
    turns = {"completion_ids": [4, 9, 5], "comp_len": 3, "completion_mask": [True, False, True]}
    turns |= {"completion": "one tool two", "turn_chars": [3, 6, 3]}
    rollout = make_rollout(0, **turns | {"sampling_logprobs": [-0.5, 0.0, -0.5]} | changes)
    assert decode_json(Rollout, encode_group([rollout]), "here") == rollout
    assert rollout.num_sampled == sum(changes.get("completion_mask", [True, True]))
    faults = [error.where for error in group_faults([rollout], "here", step=0, tail="").errors()]
    assert faults == ([f"here sample 0 {fault}"] if fault else [])
    if not fault:
        assert rollout.turns == [(True, "one"), (False, " tool "), (True, "two")]


def test_unknown_and_misshapen_rows_are_refused(make_rollout: MakeRollout) -> None:
    """Unknown fields (of the grade too), a grade that is no object, NaN, damage: all faults of a line at once."""
    row = asdict(make_rollout())
    del row["plen"]
    bad = {"extra": 1, "grade": {**row["grade"], "more": 1}, "hacked": 1, "completion_ids": ["x"] * 99}
    with pytest.raises(InputError) as caught:
        decode_json(Rollout, dump_json({**row, **bad}), "here")
    for key in ("here plen: expected a value", "here extra", "here grade.more", "here hacked", "here completion_ids"):
        assert key in str(caught.value)
    assert len(str(caught.value)) < 3000, "a line for each item"
    nan = dump_json(row).replace(b'"reward":0.5', b'"reward":NaN')
    for line in (dump_json({**row, "grade": None}), nan, b"[]", b"{", b"\xff"):
        with pytest.raises(InputError, match="here"):
            decode_json(Rollout, line, "here")
