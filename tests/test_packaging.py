"""One distribution, three import names, and the data files that a wheel has to carry."""

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from probe.cli import docs

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


def test_script_and_type_marker() -> None:
    """`probe` runs probe.cli:main, and each package says that it is typed."""
    assert PROJECT["project"]["scripts"] == {"probe": "probe.cli:main"}
    for name in OURS:
        assert (ROOT / name / "py.typed").exists()


def test_the_manual_of_a_target_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install --target` puts share/ next to the packages."""
    shipped = tmp_path / "share" / "gradient-probe"
    (shipped / "guide").mkdir(parents=True)
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "probe" / "cli" / "docs.py"))
    assert docs.manual() == shipped


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy: the backend leaves a folder in the tree, whose old files later wheels would carry."""
    tree = tmp_path_factory.mktemp("tree")
    for name in OURS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "spec", tree / "spec")
    code = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    built = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = (tree / "dist").glob("*.whl")
    return path


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """Also what a folder without __init__.py would lose: code, weights, pools, presets, styles, scripts; the manual."""
    files = set()
    for name in OURS:
        files |= {path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    pages = [*(ROOT / "spec").glob("*.md"), *(ROOT / "spec").glob("*.svg"), *(ROOT / "spec" / "guide").glob("*.*")]
    share = f"gradient_probe-{PROJECT['project']['version']}.data/data/share/gradient-probe"
    manual = {f"{share}/{path.relative_to(ROOT / 'spec')}" for path in pages}
    assert names == manual | {str(path.relative_to(ROOT)) for path in files}
