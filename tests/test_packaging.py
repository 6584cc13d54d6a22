"""One distribution, three import names, and the data files that a wheel has to carry."""

import importlib.metadata
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("probe", "extraction", "replay_pools")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_import_names_are_ours_alone() -> None:
    """`probe`, `extraction` and `replay_pools` belong to gradient-probe only (a foreign `probe` exists on PyPI)."""
    owners = importlib.metadata.packages_distributions()
    for name in OURS:
        assert set(owners.get(name, [])) == {"gradient-probe"}, (
            f"{name} belongs to {owners.get(name)}: pip uninstall it"
        )


def test_the_packages_share_one_parent_folder() -> None:
    """No mix of a checkout and an installed copy."""
    parents = set()
    for name in OURS:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None, f"{name} is a namespace package: its __init__.py is missing"
        parents.add(Path(spec.origin).parent.parent)
    assert len(parents) == 1, f"packages come from {parents}"


def test_every_folder_with_code_is_a_package() -> None:
    """Package discovery skips folders without __init__.py: their modules would be missing in a wheel."""
    for name in OURS:
        for path in (ROOT / name).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def test_script_and_type_marker() -> None:
    """`probe` runs probe.cli:main, and each package says that it is typed."""
    assert PROJECT["project"]["scripts"] == {"probe": "probe.cli:main"}
    for name in OURS:
        assert (ROOT / name / "py.typed").exists()


@pytest.mark.parametrize("folder", ["replay_pools/organism", "replay_pools/builtin", "probe", "extraction"])
def test_data_files_are_in_the_wheel(folder: str) -> None:
    """Every data file below the folder matches a package-data pattern: weights, pools, presets, the report's styles."""
    base = ROOT / folder.partition("/")[0]
    package_data = PROJECT["tool"]["setuptools"]["package-data"]
    patterns = [*package_data["*"], *package_data.get(base.name, [])]
    matched = {path for pattern in patterns for path in base.glob(pattern)}
    data = {path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert data <= matched, f"left out of the wheel: {sorted(str(path) for path in data - matched)}"


def test_bench_is_not_collected() -> None:
    """Benchmarks are scripts, not tests."""
    assert "--ignore=tests/bench" in PROJECT["tool"]["pytest"]["ini_options"]["addopts"]
