"""model.svd_rank: from --set or a preset to the basis, the manifest and the terminal."""

from collections.abc import Callable
from pathlib import Path

from small import LAYERS

from probe.records.run import read_run

CUT = ["--set", "model.svd_rank=16"]


def test_a_replay_in_a_truncated_basis(replay: Callable[..., Path], quick: list[str]) -> None:
    """Recorded in config and manifest, and additive."""
    cut = read_run(replay("cut", "--steps", "2", *quick, *CUT))
    assert cut.config["settings"]["model"]["svd_rank"] == 16
    assert cut.manifest["num_coordinates"] == {"svd": 16 * 7 * LAYERS}
    assert cut.manifest["additivity"]["exceeded_steps"] == []


def test_projections_of_one_kind(replay: Callable[..., Path], quick: list[str]) -> None:
    """model.targets reaches the basis: v_hack and the gradient have the modules of attention alone."""
    made = read_run(replay("attention", "--steps", "2", *quick, "--set", 'model.targets=["attention"]'))
    assert made.manifest["num_modules"] == {"svd": 4 * LAYERS}
    assert made.manifest["additivity"]["exceeded_steps"] == []
    assert all(row.cos_in is not None for row in made.steps if row.null_reason is None)
