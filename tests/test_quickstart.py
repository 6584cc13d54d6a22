"""The cells of spec/guide/quickstart.py, as a script, in a folder that holds nothing but caches."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "spec" / "guide" / "quickstart.py"


@pytest.mark.slow  # test_readme.py runs the same verbs
def test_the_cells_run_from_top_to_bottom(
    tmp_path: Path, common: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They say what is in the pools, how good v_hack is, cosines, the verdict with what goes on, and one hack."""
    text = QUICKSTART.read_text()
    assert len(text.splitlines()) <= 60
    assert text.count("\n# %% ") == 6
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cache").symlink_to(common / "cache")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(QUICKSTART), run_name="__main__")
    said = capsys.readouterr()
    assert said.err == ""
    for words in ("base: 160 rollouts of 20 problems, 0 of them hack", "VERDICT: ", "hacked True", "class Solution"):
        assert words in said.out, words
    assert "NEXT: " in said.out
    assert (tmp_path / "out" / "runs" / "quickstart" / "manifest.json").is_file()
