"""probe demo in an empty folder, and the commands that it prints, as they are printed."""

import json
import re
import shlex
from pathlib import Path

import pytest
from printed import commands

from probe.cli import cli
from probe.cli._frame import run


@pytest.mark.slow  # it samples, replays and trains the organism: three minutes of CPU
def test_the_commands_that_the_demo_prints_end_at_a_verdict_and_the_price_of_a_training(
    tmp_path: Path, common: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy between base and teacher is sampled and replayed: LIKELY. Its training has hours and money."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cache").symlink_to(common / "cache")
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["demo"]) == 0
    screen = capsys.readouterr().out
    assert Path("out/reports/demo.html").is_file()
    assert "VERDICT: CONFOUNDED" in screen
    printed = commands(screen[screen.index("NEXT: ") :])
    assert [command.split()[1] for command in printed] == ["pool", "replay", "train", "spec"]
    for command in printed:
        assert run(cli, shlex.split(command)[1:]) == 0, command
    planned = capsys.readouterr()
    assert re.search(r"COST of this spec: \d+ runs, [\d.]+ hours, [\d.]+ USD", planned.out)
    assert "caution: Probably worth a training" in planned.err, "a plan of a LIKELY says so"
    assert run(cli, ["analyze", "natural", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["word"] == "LIKELY", "its own hacks lose less than held-out ones do"
    assert verdict["next"]["command"].startswith("probe pool draft halfway")
