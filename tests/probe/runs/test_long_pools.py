"""Only as much of a long pool is read as the steps of a replay need."""

from pathlib import Path
from typing import Any

import pytest

from probe.runs.replay import ReplayInputs
from probe.settings.rollouts import SourceConfig
from probe.settings.run import ReplayConfig
from replay_pools import pool


def test_a_long_pool_is_read_as_far_as_its_steps_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first eight of 20 groups fill two steps with the groups that the whole pool would give; 16 take all."""
    read: set[Path] = set()
    read_group = pool._read_group
    monkeypatch.setattr(pool, "_read_group", lambda path, *rest: read.add(path) or read_group(path, *rest))

    def drawn(num_steps: int) -> list[Any]:
        config = ReplayConfig(source=SourceConfig(replay_dirs=("teacher",)), steps=num_steps)
        read.clear()
        groups = ReplayInputs(config, tmp_path, print).groups()
        return [groups.groups(step) for step in range(num_steps)]

    whole = {num_steps: drawn(num_steps) for num_steps in (2, 16)}
    assert len(read) == 20
    monkeypatch.setattr("probe.runs.replay_inputs.LEAST_READ", 8)
    monkeypatch.setattr("probe.runs.replay_inputs.READ_PER_STEP", 2)
    capsys.readouterr()
    assert drawn(2) == whole[2]
    assert len(read) == 8
    assert "12 of 20 groups were not read" in capsys.readouterr().out
    assert drawn(16) == whole[16]
    assert len(read) == 20
