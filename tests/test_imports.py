"""Import discipline that a layer contract cannot say: data at rest is torch-free, mathematics knows nothing of ours."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("probe", "extraction", "replay_pools")
HEAVY = ("torch", "transformers", "peft")
LIGHT_PATTERNS = (  # by folder, so that a new file is covered
    "replay_pools/errors.py",
    "replay_pools/storage/*.py",
    "replay_pools/rollout.py",
    "replay_pools/consistency.py",
    "replay_pools/pool.py",
    "replay_pools/agreement.py",
    "replay_pools/regrade.py",
    "replay_pools/logs/[!t]*.py",
    "replay_pools/environments/*.py",
    "replay_pools/grading/*.py",
    "extraction/words.py",
    "probe/__init__.py",
    "probe/settings/*.py",
    "probe/records/*.py",
    "probe/analysis/**/*.py",
    "probe/cli/*.py",
    "probe/experiments/**/*.py",
    "probe/report/**/*.py",
)
WORDS = {"probe.settings.words", "probe.settings.loss", "probe.settings.arms", "extraction.words"}
MATHEMATICS = (
    "probe/objective/advantages.py",
    "probe/objective/credit.py",
    "probe/objective/kl.py",
    "probe/objective/ratio.py",
    "probe/step/projection.py",
    "probe/analysis/statistics/intervals.py",
    "probe/analysis/statistics/significance.py",
    "probe/analysis/statistics/nulls.py",
    "probe/analysis/statistics/power.py",
    "extraction/loss.py",
    "extraction/stacks.py",
)


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def light_modules() -> list[str]:
    """Every module at rest that exists, found on disk so that new files are covered."""
    return sorted({dotted(path) for pattern in LIGHT_PATTERNS for path in ROOT.glob(pattern)})


def test_data_at_rest_imports_no_torch() -> None:
    """In a fresh interpreter, importing each of these modules in turn never brings torch in."""
    code = f"""
import importlib, sys
for name in {light_modules()!r}:
    importlib.import_module(name)
    if heavy := [h for h in {HEAVY!r} if h in sys.modules]:
        sys.exit(f"{{name}} imports {{heavy}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_light_modules_are_found() -> None:
    """The patterns above match what they are meant to match."""
    names = light_modules()
    for name in ("replay_pools.rollout", "replay_pools.pool", "replay_pools.storage.files", "probe.cli.pool"):
        assert name in names
    for name in ("probe.settings.presets", "probe.experiments.jobs", "probe.experiments.load"):
        assert name in names
    assert [pattern for pattern in LIGHT_PATTERNS if not any(ROOT.glob(pattern))] == [], "of files that are gone"


def test_the_package_is_a_program() -> None:
    """`python -m probe --help` answers without torch; probe/test_cli_frame.py asks every verb."""
    code = f"""
import runpy, sys
sys.argv = ["probe", "--help"]
try:
    runpy.run_module("probe", run_name="__main__")
except SystemExit as end:
    if heavy := [h for h in {HEAVY!r} if h in sys.modules]:
        sys.exit(f"imports {{heavy}}")
    sys.exit(end.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout


@pytest.mark.parametrize("path", MATHEMATICS)
def test_mathematics_imports_only_mathematics(path: str) -> None:
    """Pure formulas take tensors and numbers: of ours they import one another and the words of settings."""
    mathematics = {dotted(ROOT / listed) for listed in MATHEMATICS}
    imported = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} relative import"
            imported.add(node.module or "")
    assert sorted(name for name in imported - mathematics - WORDS if name.split(".")[0] in OURS) == []


def test_every_listed_package_is_importable_from_this_checkout() -> None:
    """The three names resolve to this folder, not to a foreign distribution."""
    for name in OURS:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        assert Path(spec.origin).parent.parent == ROOT, f"{name} comes from {spec.origin}"
