"""A spec of two real replays that several files judge."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from in_process import InProcess
from specs import criterion, replay_spec

from probe.experiments.spec import Spec
from probe.experiments.spec_file import load_spec
from probe.experiments.sweep import has_failed, sweep

CAPPED = {"objective.advantage_clip": 5.0, "intervention.extraction.k": 1}
BESIDE = {"arm": "vanilla", "versus_arm": "random"}
GO = MappingProxyType({"verdict": "GO", "aligned": "PASS"})


@pytest.fixture(scope="session")
def write_judged(quick: list[str]) -> Callable[..., Spec]:
    """write_judged(folder, level, go) -> the spec, with its .md; its second criterion has `level`, GO requires `go`."""
    settings = {"steps": 5, "source.per_pool": 2, "source.replay_dirs": quick[1].split(",")}
    settings |= {"intervention.extraction.pairs": quick[3], "intervention.extraction.k": 2}

    def write(folder: Path, level: float = 0.9, go: Mapping[str, Any] = GO) -> Spec:
        text = replay_spec(
            "judged",
            settings,
            arms=["vanilla", "projected", "random"],
            conditions={"plain": {}, "capped": CAPPED},
            criteria=[
                criterion("aligned", "cos_in above 0.05", "primary", **BESIDE),
                criterion("alone", f"cos_in below {level}"),
                criterion("cap-binds", "largest adv_cap_fraction above 0.0", condition="capped"),
                criterion("absent", "kl/mean above 0.0"),  # without a reference
                criterion("same", "reward_mean inside [-1.0, 1.0]", **BESIDE),
                criterion("gate", "largest hackward_frac_out below 1e-5", "mechanism", arm="projected"),
            ],
            decisions=[{"name": "GO", "then": "on", "requires": go}, {"name": "MORE", "then": "again"}],
            budget={"sd": 0.1, "expected_effect": 0.5},
        )
        path = folder / "judged.toml"
        path.write_text(text)
        if not path.with_suffix(".md").exists():
            path.with_suffix(".md").write_text("# judged\n\n## Why\n\nSo.\n\n## Results\n\n(nothing yet)\n")
        return load_spec(path)

    return write


@pytest.fixture(scope="session")
def swept_once(write_judged: Callable[..., Spec], out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An out/ with the runs of the spec, to be copied."""
    place = tmp_path_factory.mktemp("judged") / "out"
    place.mkdir()
    (place / "cache").symlink_to(out / "cache")
    assert not has_failed(sweep(write_judged(place.parent), place, engine=InProcess()))
    return place


@pytest.fixture
def swept(write_judged: Callable[..., Spec], swept_once: Path, tmp_path: Path) -> tuple[Spec, Path]:
    """(the spec, its own out/ with finished runs)."""
    shutil.copytree(swept_once, tmp_path / "out", symlinks=True)
    return write_judged(tmp_path), tmp_path / "out"
