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


@pytest.mark.slow
def test_runs_without_a_name_do_not_collide_and_go_on(out: Path, quick: list[str], probe) -> None:
    """Pools and arms name a run, with a hash where other settings are not the default; the same settings are the same
    run, which is found again.
    """

    def made(*options: str) -> str:
        (directory,) = re.findall(r"; run in (\S+);", probe("replay", "--steps", "1", *quick, *options)[0])
        return Path(directory).name

    first, gated = made("--arm", "vanilla"), made("--arm", "vanilla,projected")
    assert re.fullmatch(r"teacher-base\.vanilla-[0-9a-f]{6}", first)
    assert re.fullmatch(r"teacher-base\.vanilla-projected-[0-9a-f]{6}", gated)
    assert len({first, gated, made("--arm", "vanilla", "--seed", "1")}) == 3
    before = (out / "runs" / first / "timings.jsonl").read_bytes()
    assert made("--arm", "vanilla") == first
    assert (out / "runs" / first / "timings.jsonl").read_bytes() == before, "made again"


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
