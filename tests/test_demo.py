"""probe demo in an empty folder, and the commands that it prints, as they are printed."""

import json
import re
import shlex
from pathlib import Path

import pytest
from printed import commands

from probe.cli import cli
from probe.cli._frame import run


@pytest.mark.slow  # a training of the organism: a minute and a half of CPU
def test_the_commands_that_the_demo_prints_run(
    tmp_path: Path, common: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train, sample and replay, with fewer rollouts; the plan has a price, and the next command of what is no GO."""
    monkeypatch.setattr("probe.analysis.verdict.next_step.PROMPTS", 20)
    monkeypatch.setattr("probe.analysis.verdict.next_step.ROLLOUTS", 8)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cache").symlink_to(common / "cache")
    monkeypatch.chdir(tmp_path)
    assert run(cli, ["demo"]) == 0
    screen = capsys.readouterr().out
    assert Path("out/reports/demo.html").is_file()
    assert "VERDICT: CONFOUNDED" in screen
    printed = commands(screen[screen.index("NEXT: ") :])
    assert [command.split()[1] for command in printed] == ["train", "pool", "replay", "spec"]
    for command in printed:
        assert run(cli, shlex.split(command)[1:]) == 0, command
    planned = capsys.readouterr()
    assert re.search(r"COST of this spec: \d+ runs, [\d.]+ hours, [\d.]+ USD", planned.out)
    assert run(cli, ["analyze", "natural", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["word"] not in ("BROKEN", "TRAINED")
    if verdict["word"] != "GO":
        assert f"caution: {verdict['plain']} First: " in planned.err
        assert all(command in planned.err for command in verdict["next"]["command"].splitlines())
