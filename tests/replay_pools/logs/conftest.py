"""Rollouts to log, and pools of logs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay_pools.logs.importing import check_log, import_log
from replay_pools.policy.load import load_served_policy
from replay_pools.pool import BUILTIN, Pool, open_pool
from replay_pools.rollout import Rollout


@pytest.fixture(scope="session")
def teacher() -> list[list[Rollout]]:
    """Four groups of the built-in pool, among them some with reward variance."""
    groups = open_pool(BUILTIN / "teacher").steps
    return sorted(groups, key=lambda group: len({rollout.reward for rollout in group}), reverse=True)[:4]


@pytest.fixture(scope="session")
def chat():
    return load_served_policy("organism")


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Pool]:
    """imported(source, name, limit, **options) -> the pool that the log becomes, whose notes are `pool.normalised`."""

    def make(source: Any, name: str = "mine", limit: int | None = None, **options: Any) -> Pool:
        log = check_log(source, **options)
        return import_log(log, name=name, out=tmp_path / "out", model="organism", limit=limit)

    return make
