"""The public surface of `import probe`: these names, and no torch before one of them needs it."""

import subprocess
import sys

import pytest

import probe
from probe.integrations.hook import attach
from probe.records.run import read_run

PUBLIC = {"attach": attach, "load": read_run}


def test_the_names_are_these() -> None:
    """A name that is added or lost is a change of the interface."""
    assert probe.__all__ == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(probe))
    for name, found in PUBLIC.items():
        assert getattr(probe, name) is found
    with pytest.raises(AttributeError, match="module 'probe' has no attribute 'nothing'"):
        probe.nothing  # noqa: B018


@pytest.mark.parametrize("code", ["import probe; dir(probe)", "import probe; probe.load"])
def test_importing_is_light(code: str) -> None:
    """In a fresh interpreter neither the package nor the reader of runs brings torch or numpy in."""
    check = f"{code}; import sys; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'peft')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
