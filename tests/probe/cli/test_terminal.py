"""What a terminal shows: progress, dry runs, completion."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from terminals import on_a_terminal

from probe.cli import cli, main
from probe.records.run import read_run
from probe.records.timings import mean_times

SHOW = """
import sys, time
from probe.cli._frame import say
from probe.cli._terminal import shown_progress
from replay_pools.base.terminal import report
with shown_progress(say):
    for done in range(1, 4):
        report("steps", done, 3)
        say(f"a line about {done}")
        time.sleep(0.2)
"""


def shown(code: str = SHOW, **environment: str) -> str:
    """What it writes to a terminal of 60 columns."""
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    done, text = on_a_terminal(["-c", code], {**plain, "TERM": "xterm-256color", "COLUMNS": "60", **environment})
    assert done == 0
    return text.replace("\r\n", "\n")


def test_a_terminal_gets_bars_and_lines_above_them() -> None:
    """Colour where it is wanted, none with NO_COLOR, and no redrawing on a dumb terminal."""
    text = shown()
    assert all(part in text for part in ("\x1b[?25l", "\x1b[?25h", "━", "2/3", "a line about 2"))
    assert "\x1b[3" in text, "colour"
    assert "\x1b[3" not in shown(NO_COLOR="1")
    assert "\x1b[?25l" not in shown(TERM="dumb")


SAY = """
from probe.cli import _terminal
from probe.cli._frame import echo, echo_table, say
from replay_pools.base.terminal import report
with _terminal.shown_progress(say):
    report("steps", 1, 3)
    say("at work")
echo("VERDICT: GO\\n  Does it?   NO\\n  probe spec plan go")
echo_table(("run", "what it is"), [("demo", "word " * 20), ("x", "UNCLEAR")], left=2)
"""


@pytest.mark.slow
def test_words_have_their_colour_on_a_terminal_alone() -> None:
    """Good green, bad red, open yellow; a table breaks its cells; a pipe gets plain bytes even under FORCE_COLOR."""
    coloured = shown(SAY)
    for part in ("\x1b[1;32mGO", "\x1b[1;31mNO", "\x1b[1;33mUNCLEAR", "\x1b[36mprobe spec plan go"):
        assert part in coloured, coloured
    assert max(len(re.sub("\x1b.*?m", "", line)) for line in coloured.splitlines()) <= 60
    forced = {**os.environ, "FORCE_COLOR": "1"}
    piped = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True, env=forced)
    head = "VERDICT: GO\n  Does it?   NO\n  probe spec plan go\nrun   what it is\ndemo  word word"
    assert piped.stdout.startswith(head)
    assert piped.stdout.endswith("word\nx     UNCLEAR\n")
    assert piped.stderr == "at work\n"


@pytest.mark.parametrize("args", ["replay --steps 3", "train --preset fast"])
def test_a_dry_run_writes_nothing_and_loads_no_weights(
    args: str, tmp_path: Path, probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words and as JSON."""
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("weights"))
    command, out = (*args.split(), "--dry-run"), tmp_path / "out"
    assert "nothing was written" in probe(*command, root=out)[0]
    found = json.loads(probe(*command, "--json", root=out)[0])
    assert found["state"] == "new"
    assert found["work"]["steps"] > 0
    assert not out.exists()


def test_a_dry_run_says_what_the_run_then_does(out: Path, quick: list[str], probe, refused) -> None:
    """Steps and rollouts; that a run is complete; that it is another one."""

    def foreseen(*options: str) -> dict[str, Any]:
        return json.loads(probe(*args, *options, "--dry-run", "--json")[0])

    # No other test here has steps of this size.
    args = ["replay", "--name", "foreseen", "--arm", "vanilla,random", "--steps", "2", *quick, "--per-pool", "3"]
    found = foreseen()
    work = found["work"]
    assert (found["hours"], found["peak_gib"], "--steps 2" in found["measured"]) == (None, None, True)
    assert "peak memory" in probe(*args)[1]
    times = mean_times([out / "runs" / "foreseen"])
    assert times is not None
    found = foreseen("--name", "longer", "--steps", "7")
    assert found["hours"] == pytest.approx((times["start"] + 7 * times["step"]) / 3600)
    assert found["measured"].startswith("measured in foreseen:")
    assert found["peak_gib"] == times["peak"] / 2**30 > 0.1
    samples = [sample for sample in read_run(out / "runs" / "foreseen").samples if sample.arm == "vanilla"]
    assert work == {"steps": 2, "rollouts": len(samples), "cells (arms x conditions)": 2}
    assert foreseen()["state"] == "complete, nothing to do"
    assert "use another --name" in refused(*args, "--dry-run", "--seed", "1")


def complete(words: str, last: int, monkeypatch: pytest.MonkeyPatch, capfd) -> list[str]:
    """What bash is told to offer for the word at `last`."""
    for name, value in {"COMP_WORDS": words, "COMP_CWORD": str(last), "_PROBE_COMPLETE": "bash_complete"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="^0$"):
        main()
    return [line.partition(",")[2] for line in capfd.readouterr().out.splitlines()]


def test_completion_knows_verbs_options_and_words(monkeypatch, capfd, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert {*complete("probe ", 1, monkeypatch, capfd)} == {*cli.verbs}
    assert "--replay-dirs" in complete("probe replay --rep", 2, monkeypatch, capfd)
    assert complete("probe replay --match pro", 3, monkeypatch, capfd) == ["problem", "prompt"]
