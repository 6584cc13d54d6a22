"""What the command line says unasked: the verb that is meant, common options, what was chosen by default."""

import re
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.cli.replay import replay
from probe.settings.arms import ARMS


def test_the_help_of_replay_begins_with_what_a_first_run_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option once."""
    assert run(cli, ["replay", "--help"]) == 0
    printed = re.findall(r"^  (--?[\w-]+)", capsys.readouterr().out, re.M)
    assert printed[:6] == ["--name", "--dry-run", "--replay-dirs", "--arm", "--steps", "--model"]
    assert sorted(printed) == sorted([*(option.opts[0] for option in replay.params), "-h"])


def test_what_was_chosen_by_default_is_said_once(out: Path, few_pairs: list[str], probe) -> None:
    """As options that change it; what was given by a flag or by --set is not among them; stdout stays as it is."""
    printed, said = probe("replay", "--name", "chosen", "--steps", "1", "--set", "source.per_pool=2", *few_pairs)
    lines = [line for line in said.splitlines() if line.startswith("defaults (")]
    chosen = 'source.replay_dirs=["teacher", "base"] intervention.arms=["projected"] source.match=problem seed=0'
    chosen += " model.template=chat"
    assert lines == [f"defaults (--preset replay): {chosen}"]
    assert "defaults (" not in printed
    _, said = probe("replay", "--name", "chosen-again", "--config", out / "runs" / "chosen" / "config.json")
    assert "defaults (" not in said, "a config chooses everything"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--arm", "vanilla"], r"teacher-base\.vanilla"),
        (["--arm", "vanilla", "--set", "source.match=problem"], r"teacher-base\.vanilla"),
        (["--arm", "vanilla", "--match", "none"], r"teacher-base\.vanilla-[0-9a-f]{6}"),
        (["--arm", ",".join(ARMS)], r"teacher-base\.vanilla-projected-[a-z-]+-[0-9a-f]{6}"),
    ],
)
def test_the_default_name_says_what_it_can(options: list[str], name: str, probe) -> None:
    """Pools and arms alone where all else is the default; a name is no longer than a file's."""
    given = Path(probe("replay", "--dry-run", *options)[0].partition(": new")[0]).name
    assert re.fullmatch(name, given)
    assert len(given) < 128
