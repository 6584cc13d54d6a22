"""What the command line says unasked: the verb that is meant, options in groups, what was chosen by default."""

import re
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.cli.replay import GROUPS, replay


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["import"], "pool import"),
        (["imprt", "x", "--name", "y"], "pool import"),
        (["generate"], "pool generate"),
        (["regarde"], "pool regrade"),
        (["repaly"], "replay"),
        (["pool", "imprt"], "import"),
    ],
)
def test_the_verb_that_is_meant_is_named(args: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs of groups included."""
    assert run(cli, args) == 2
    assert f"; did you mean {meant}?; see `probe " in capsys.readouterr().err


def test_the_help_of_replay_is_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option once; what a first run needs comes first."""
    assert run(cli, ["replay", "--help"]) == 0
    text = capsys.readouterr().out
    positions = [text.index(f"{title}:") for title in GROUPS]
    assert positions == sorted(positions)
    printed = re.findall(r"^  (--?[\w-]+)", text, re.M)
    assert printed == [option for options in GROUPS.values() for option in options]
    assert {option.opts[0] for option in replay.params} | {"-h"} == set(printed)
    assert printed[:2] == ["--replay-dirs", "--arm"]


def test_what_was_chosen_by_default_is_said_once(
    out: Path, few_pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As options that change it; what was given by a flag or by --set is not among them; stdout stays as it is."""
    args = ["replay", "--name", "chosen", "--steps", "1", "--set", "source.per_pool=2", "--out", str(out), *few_pairs]
    assert run(cli, args) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("by default")]
    chosen = "--replay-dirs teacher,base --arm projected --match problem --seed 0"
    assert lines == [f"by default (--preset replay): {chosen}; give any to change it"]
    assert "by default" not in printed.out
    assert (
        run(cli, ["replay", "--name", "chosen-again", "--config", f"{out}/runs/chosen/config.json", "--out", str(out)])
        == 0
    )
    assert "by default" not in capsys.readouterr().err, "a config chooses everything"


def test_write_on_runs_keeps_what_full_prints(
    out: Path, few_pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several runs one file; the same command writes the same bytes."""
    for name in ("kept", "other"):
        assert run(cli, ["replay", "--name", name, "--steps", "2", "--out", str(out), *few_pairs]) == 0
    capsys.readouterr()
    options = ["--draws", "99", "--out", str(out)]
    assert run(cli, ["analyze", "kept", "--full", *options]) == 0
    full = capsys.readouterr().out.strip()
    path = out / "reports" / "kept.md"
    assert run(cli, ["analyze", "kept", "--write", *options]) == 0
    assert capsys.readouterr().out.endswith(f"written: {path}\n")
    assert path.read_text() == f"# kept\n\n```\n{full}\n```\n"
    assert run(cli, ["analyze", "kept", "other", "--write", "--json", *options]) == 0
    both = (out / "reports" / "kept-other.md").read_text()
    assert full in both
    assert "run other: " in both
