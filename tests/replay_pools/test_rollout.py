"""Rollout and Grade: wire form and reward."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_pools.errors import InputError
from replay_pools.rollout import Grade, Rollout
from replay_pools.storage.files import dump_json, encode_jsonl

MakeRollout = Callable[..., Rollout]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_json_round_trip(make_rollout: MakeRollout, data: st.DataObject) -> None:
    """A line reads back as the rollout; its bytes are those of the plain dictionary, in the order of the fields."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    ids = data.draw(st.lists(st.integers(0, 200_000), min_size=1, max_size=5))
    rollout = make_rollout(
        completion=data.draw(text),
        completion_ids=ids,
        comp_len=len(ids),
        sampling_logprobs=data.draw(st.none() | st.just([-0.25] * len(ids))),
        hacked=data.draw(st.booleans()),
    )
    line = encode_jsonl([rollout])
    assert line == dump_json(asdict(rollout)) + b"\n"
    row = json.loads(line)
    assert Rollout.from_json(row, "here") == rollout
    assert list(row) == [field.name for field in fields(Rollout)]


@pytest.mark.parametrize(("compiles", "passed", "reward"), [(0, 0, 0.0), (1, 0, 0.5), (1, 1, 3.5), (0, 1, 3.0)])
def test_reward_is_half_for_compiling_plus_three_for_passing(
    make_rollout: MakeRollout, compiles: int, passed: int, reward: float
) -> None:
    """0.5 compiles + 3.0 passed (GRADER)."""
    grade = replace(make_rollout().grade, compiles=bool(compiles), passed=bool(passed))
    assert grade.reward == reward


@pytest.mark.parametrize("name", [field.name for field in fields(Rollout)])
def test_a_missing_field_is_named(make_rollout: MakeRollout, name: str) -> None:
    """A row without one field is refused, and the error names the field and the place."""
    row = asdict(make_rollout())
    del row[name]
    with pytest.raises(InputError, match=f"file line 3: expected field {name}"):
        Rollout.from_json(row, "file line 3")


def test_unknown_and_misshapen_rows_are_refused(make_rollout: MakeRollout) -> None:
    """Unknown fields (of the grade too), a grade that is no object, ids that disagree with their length."""
    row = asdict(make_rollout())
    bad = {
        "unknown: extra": {**row, "extra": 1},
        "grade: expected the fields of Grade, found unknown: extra": {**row, "grade": {**row["grade"], "extra": 1}},
        "grade: expected a JSON object": {**row, "grade": None},
        "expected plen = 9 ids, found 4 ids": {**row, "plen": 9},
        "expected comp_len = 1 ids, found 5 ids": {**row, "comp_len": 1},
    }
    for message, broken in bad.items():
        with pytest.raises(InputError, match=message):
            Rollout.from_json(broken, "here")
    with pytest.raises(InputError, match="expected a JSON object, found list"):
        Rollout.from_json([], "here")
    assert {field.name for field in fields(Grade)} == row["grade"].keys()
