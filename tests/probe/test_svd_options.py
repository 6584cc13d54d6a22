"""model.svd_rank and model.svd_storage: from --set or a preset to the basis, the manifest and the terminal."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small import LAYERS

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.records.timings import Timings
from probe.runs.assemble import attach_bases
from probe.settings.arms import get_arm
from probe.settings.presets import configure
from replay_pools.errors import InputError
from replay_pools.policy.load import load_policy

CUT = ["--set", "model.svd_rank=16", "--set", "model.svd_storage=bfloat16"]


def test_a_replay_in_a_truncated_and_rounded_basis(
    replay: Callable[..., Path], quick: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded in config and manifest, shown, and additive."""
    cut = read_run(replay("cut", "--steps", "2", *quick, *CUT))
    assert cut.config["settings"]["model"]["svd_rank"] == 16
    assert cut.manifest["additivity"]["exceeded_steps"] == []
    rounding = cut.manifest["rounding"]["svd"]
    assert rounding["storage"] == "bfloat16"
    assert 0 < rounding["cosine_error"]["max"] < 1e-4
    assert f"orthonormal up to {rounding['orthonormality']:.1e}" in capsys.readouterr().out


def test_rounding_alone_hardly_moves_the_cosines(replay: Callable[..., Path], quick: list[str]) -> None:
    exact = read_run(replay("exact", "--steps", "2", *quick))
    found = read_run(replay("rounded", "--steps", "2", *quick, *CUT[2:]))
    assert exact.manifest["rounding"] == {"svd": None}
    for row, expected in zip(found.steps, exact.steps, strict=True):
        assert row.cos_in == pytest.approx(expected.cos_in, abs=5e-3)
        assert row.cos_in != expected.cos_in, "the option has no effect"


def test_directions_of_another_basis_are_refused(
    out: Path, quick: list[str], small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both fingerprints are in the line."""
    extract = ["extract", "--model", small, "--name", "of-cut", "--out", str(out)]
    assert run(cli, [*extract, *quick[2:], *CUT]) == 0
    assert "orthonormal up to" in capsys.readouterr().out
    directions = str(out / "directions" / "of-cut.safetensors")
    line = ["replay", *quick[:2], "--name", "along-cut", "--out", str(out), "--steps", "1", "--k", "2"]
    assert run(cli, [*line, "--v-hack", directions]) == 2
    error = capsys.readouterr().err
    for field, value in (("rank", "16"), ("storage", "bfloat16")):
        assert f"{field}=None" in error
        assert f"{field}={value}" in error
    assert run(cli, [*line, "--v-hack", directions, *CUT]) == 0


def test_a_preset_may_set_them(tmp_path: Path) -> None:
    """[model] of a preset reaches the coordinates; a rank below 1 is refused."""
    path = tmp_path / "own.toml"
    path.write_text('[model]\nname = "organism"\nsvd_rank = 16\nsvd_storage = "bfloat16"\n')
    model = configure("replay", preset=str(path)).model
    bases = attach_bases(load_policy("organism"), [get_arm("projected")], model, tmp_path, Timings())
    fingerprint = bases["svd"].fingerprint()
    assert (fingerprint["rank"], fingerprint["storage"]) == (16, "bfloat16")
    assert max(bases["svd"].sizes.values()) == 16
    path.write_text('[model]\nname = "organism"\nsvd_rank = 0\n')
    with pytest.raises(InputError, match="model.svd_rank: .* found 0"):
        configure("replay", preset=str(path))


def test_projections_of_one_kind(replay: Callable[..., Path], quick: list[str]) -> None:
    """model.targets reaches the basis: v_hack and the gradient have the modules of attention alone."""
    made = read_run(replay("attention", "--steps", "2", *quick, "--set", 'model.targets=["attention"]'))
    assert made.manifest["num_modules"] == {"svd": 4 * LAYERS}
    assert made.manifest["additivity"]["exceeded_steps"] == []
    assert all(row.cos_in is not None for row in made.steps if row.null_reason is None)
