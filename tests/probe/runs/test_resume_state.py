"""Checkpoints of probe.runs.resume: the same state gives the same bytes, whole or not at all; the right ones stay."""

from pathlib import Path
from typing import Any

import pytest
import torch

from probe.runs.resume import drop_checkpoints, load_checkpoint, save_checkpoint


class State:
    """Two tables under the same names, as coordinates and quarantine are, and a reason."""

    def __init__(self, *names: str) -> None:
        self.one = {name: torch.zeros(3) for name in names}
        self.two = {name: torch.ones(2) for name in names}
        self.reason: str | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"one": dict(self.one), "nested": [{"two": dict(self.two)}], "reason": self.reason}

    def load_state_dict(self, state: Any) -> None:
        """Takes half of its names from the file, as a dictionary that was loaded does."""
        self.one = {name: state["one"][name] for name in self.one}
        self.two, self.reason = dict(state["nested"][0]["two"]), state["reason"]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "checkpoint").iterdir())


def test_a_state_that_was_loaded_is_saved_in_the_same_bytes(tmp_path: Path) -> None:
    """pickle writes a string once an object: names from the file and names from the program are different objects."""
    state = State("model.layers.0.q_proj", "model.layers.0.k_proj")
    state.reason = "model.layers.0.q_proj"
    save_checkpoint(tmp_path / "a", 1, state)
    again = State("model.layers.0.q_proj", "model.layers.0.k_proj")
    assert load_checkpoint(tmp_path / "a", again) == 1
    save_checkpoint(tmp_path / "b", 1, again)
    found = [(tmp_path / name / "checkpoint" / "step_000001.pt").read_bytes() for name in "ab"]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("recorded", "left"),
    [
        (8, [6, 8]),
        (7, [4, 6]),  # killed between the checkpoint and the record of a step: it is not to be had, and 6 is needed
        (3, [2]),
        (1, []),
    ],
)
def test_the_newest_two_that_are_recorded_stay(recorded: int, left: list[int], tmp_path: Path) -> None:
    for done in (2, 4, 6, 8):
        save_checkpoint(tmp_path, done, State("x"))
    drop_checkpoints(tmp_path, recorded)
    assert files(tmp_path) == [f"step_{done:06d}.pt" for done in left]
