"""probe demo in an empty folder, and the commands that it prints, as they are printed."""

import json
import re
import shlex
from pathlib import Path

import pytest
from printed import commands

from probe.cli import cli
from probe.cli._frame import run


@pytest.mark.slow  # it replays the organism three times: a minute and a half of CPU
def test_the_demo_ends_at_two_verdicts_and_its_next_step_is_one_command(tmp_path, common, monkeypatch, capsys) -> None:
    """CONFOUNDED of two policies; LIKELY of one that does both, which the first advice leads to as well."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cache").symlink_to(common / "cache")
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["demo"]) == 0
    screen = capsys.readouterr().out
    assert [Path(f"out/reports/{name}.html").is_file() for name in ("demo", "demo-mixed")] == [True, True]
    assert re.findall(r"VERDICT: (\w+)", screen) == ["CONFOUNDED", "LIKELY"]
    (command,) = commands(screen[screen.index("NEXT: ") : screen.index("report out/reports/demo.html")])
    assert run(cli, shlex.split(command)[1:]) == 0, command
    capsys.readouterr()
    for name in ("demo-mixed", "mixed"):
        assert run(cli, ["analyze", name, "--json"]) == 0
        verdict = json.loads(capsys.readouterr().out)["verdict"]
        assert verdict["word"] == "LIKELY", "its own hacks lose less than held-out ones do"
