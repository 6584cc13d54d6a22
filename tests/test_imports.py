"""What a layer contract cannot say: public names, data at rest is torch-free, mathematics knows nothing of ours."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import probe
from probe.integrations.hook import attach
from probe.records.run import read_run

ROOT = Path(__file__).parents[1]
OURS = ("probe", "extraction", "replay_pools")
HEAVY = ("torch", "transformers", "peft")
LIGHT_PATTERNS = (  # by folder, so that a new file is covered
    "replay_pools/base/errors.py",
    "replay_pools/base/*.py",
    "replay_pools/rollout.py",
    "replay_pools/pool.py",
    "replay_pools/regrade.py",
    "replay_pools/logs/[!t]*.py",
    "replay_pools/environments/*.py",
    "replay_pools/grading/*.py",
    "extraction/settings.py",
    "probe/__init__.py",
    "probe/settings/*.py",
    "probe/records/*.py",
    "probe/analysis/**/*.py",
    "probe/cli/*.py",
    "probe/experiments/**/*.py",
    "probe/report/**/*.py",
)
WORDS = {
    "probe.analysis.estimate",  # the type of every number with an interval
    "probe.settings.words",
    "probe.settings.loss",
    "probe.settings.arms",
    "extraction.settings",
    "replay_pools.base.terminal",
}
MATHEMATICS = (
    "probe/objective/advantages.py",
    "probe/objective/credit.py",
    "probe/objective/terms.py",
    "probe/step/projection.py",
    "probe/analysis/statistics/intervals.py",
    "probe/analysis/statistics/geometry.py",
    "probe/analysis/statistics/significance.py",
    "probe/analysis/statistics/nulls.py",
    "probe/analysis/statistics/thresholds.py",
    "extraction/loss_weights.py",
    "extraction/stacks.py",
)


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def light_modules() -> list[str]:
    """Every module at rest that exists, found on disk so that new files are covered."""
    return sorted({dotted(path) for pattern in LIGHT_PATTERNS for path in ROOT.glob(pattern)})


def test_data_at_rest_and_help_import_no_torch() -> None:
    """In one fresh interpreter: `import probe` and its reader of runs bring not even numpy, each module at rest and
    `python -m probe --help` no torch; probe/test_cli_frame.py asks every verb.
    """
    code = f"""
import importlib, runpy, sys
def check(name, heavy):
    if found := [h for h in heavy if h in sys.modules]:
        sys.exit(f"{{name}} imports {{found}}")
import probe
dir(probe), probe.read_run
check("probe.read_run", ("numpy", *{HEAVY!r}))
for name in {light_modules()!r}:
    importlib.import_module(name)
    check(name, {HEAVY!r})
sys.argv = ["probe", "--help"]
try:
    runpy.run_module("probe", run_name="__main__")
except SystemExit as end:
    check("probe --help", {HEAVY!r})
    sys.exit(end.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout


def test_the_public_names_are_these() -> None:
    """A name that is added or lost is a change of the interface."""
    public = [
        "Direction",
        "InputError",
        "analyze",
        "attach",
        "check",
        "cosines",
        "detect",
        "extract",
        "load",
        "read_run",
        "replay",
    ]
    assert [*probe._PLACES] == public
    assert {*public} <= {*dir(probe)}
    assert (probe.attach, probe.read_run) == (attach, read_run)
    with pytest.raises(AttributeError, match="module 'probe' has no attribute 'nothing'"):
        probe.nothing  # noqa: B018


def test_the_light_modules_are_found() -> None:
    """The patterns above match what they are meant to match."""
    assert {"replay_pools.pool", "replay_pools.base.files", "probe.cli.pool"} <= {*light_modules()}
    assert [pattern for pattern in LIGHT_PATTERNS if not any(ROOT.glob(pattern))] == [], "of files that are gone"


@pytest.mark.parametrize("path", MATHEMATICS)
def test_mathematics_imports_only_mathematics(path: str) -> None:
    """Pure formulas take tensors and numbers: of ours they import one another, the words of settings, and progress."""
    mathematics = {dotted(ROOT / listed) for listed in MATHEMATICS}
    imported = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} relative import"
            imported.add(node.module or "")
    assert sorted(name for name in imported - mathematics - WORDS if name.split(".")[0] in OURS) == []
