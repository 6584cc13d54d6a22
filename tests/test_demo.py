"""probe demo in an empty folder, and the commands that it prints, as they are printed."""

import json
import re
from pathlib import Path

import pytest
from printed import commands

from probe.cli import cli
from probe.cli._frame import run


@pytest.mark.slow  # it replays the organism twice: a minute of CPU
def test_the_demo_takes_the_next_step_that_it_prints(tmp_path, common, monkeypatch, capsys) -> None:
    """CONFOUNDED of two policies; LIKELY of one that does both, which the first advice leads to as well."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cache").symlink_to(common / "cache")
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["demo"]) == 0
    screen, work = capsys.readouterr()
    assert [Path(f"out/reports/{name}.html").is_file() for name in ("demo", "mixed")] == [True, True]
    assert re.findall(r"VERDICT: (\w+)", screen) == ["CONFOUNDED", "LIKELY"]
    (command,) = commands(screen[screen.index("NEXT: ") : screen.index("report out/reports/demo.html")])
    assert command in work.splitlines(), "the demo takes another step than the one that it prints"
    assert run(cli, ["analyze", "mixed", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["word"] == "LIKELY", "its own hacks lose less than held-out ones do"
