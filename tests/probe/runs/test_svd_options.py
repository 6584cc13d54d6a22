"""model.svd_rank: from --set or a preset to the basis, the manifest and the terminal."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small import LAYERS

from probe.records.run import read_run

CUT = ["--set", "model.svd_rank=16"]


def test_a_replay_in_a_truncated_basis(
    replay: Callable[..., Path], quick: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded in config and manifest, shown, and additive."""
    cut = read_run(replay("cut", "--steps", "2", *quick, *CUT))
    assert cut.config["settings"]["model"]["svd_rank"] == 16
    assert cut.manifest["additivity"]["exceeded_steps"] == []
    truncation = cut.manifest["truncation"]["svd"]
    assert truncation["modules"] == 7 * LAYERS
    assert 0 < truncation["left_out"]["median"] <= truncation["left_out"]["max"] < 1
    assert f"leaves out {truncation['left_out']['median']:.0%} of |W|" in capsys.readouterr().out


def test_projections_of_one_kind(replay: Callable[..., Path], quick: list[str]) -> None:
    """model.targets reaches the basis: v_hack and the gradient have the modules of attention alone."""
    made = read_run(replay("attention", "--steps", "2", *quick, "--set", 'model.targets=["attention"]'))
    assert made.manifest["num_modules"] == {"svd": 4 * LAYERS}
    assert made.manifest["additivity"]["exceeded_steps"] == []
    assert all(row.cos_in is not None for row in made.steps if row.null_reason is None)
