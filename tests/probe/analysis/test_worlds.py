"""Every verdict, reached by `probe analyze` on a planted world: real files, the real readers, the real command."""

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from gallery import check_gallery
from printed import check_command
from worlds import World, make_run

from extraction.pairs import builtin_pairs, write_pairs
from probe.analysis.analyze import Analysis, analyze
from probe.analysis.estimate import Estimate
from probe.analysis.formatting import WIDTH
from probe.analysis.pull import prompts_needed
from probe.analysis.statistics.intervals import Interval
from probe.analysis.statistics.permutation import N2
from probe.analysis.statistics.thresholds import MATERIAL
from probe.analysis.verdict.verdict import Finding, Verdict, effect_and_price, note_lines
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.settings.words import Answer

FEW = World(num_steps=6, amounts=(0.25, 0, 0), strength=2, num_pairs=120, num_held_out=60)
PLAIN = World(strength=2, num_pairs=48, num_held_out=20)
GAIN = World(gain=4, strength=3, num_pairs=96, num_held_out=48, num_steps=48)
UNSEEN = replace(GAIN, gain_in_prompts=False)
BRIEF = World(num_steps=4)
SOUND = World(num_steps=12)
UNPAID = replace(SOUND, honest_are_paid=False)
SHORT = World(told_by="length", num_steps=4, strength=2, num_pairs=60, num_held_out=30)
SPARSE = World(num_steps=4, strength=1.5, num_pairs=8, num_held_out=4, arms=("vanilla",))
LOUD = World(num_steps=8, strength=4, num_pairs=5, num_held_out=3, arms=("vanilla",))
# What a world is about: the world, the verdict on it, and words of the screen.
WORLDS: dict[str, tuple[World, str, str]] = {
    "go": (World(), "GO", "probe spec plan go"),
    "skip": (replace(PLAIN, hacks_point_at=None, num_steps=64), "SKIP", "and not with these updates"),
    "skip-gate": (replace(UNSEEN, gain=6), "SKIP", "held-out hacks: 4 of the same pairs"),
    "generic": (replace(PLAIN, amounts=(1, 1, 0)), "GENERIC", "held-out ones that differ in the hack alone"),
    "generic-benign": (World(amounts=(1, 0.6, -2), strength=3, num_steps=48), "GENERIC", "a difference of 0.02 [-0.0"),
    "shuffled": (World(shuffled_labels=True, strength=2, num_steps=12), "GENERIC", "differ in the hack alone"),
    "generic-half": (replace(PLAIN, strength=3, amounts=(1, 0.35, 0)), "GENERIC", "more than half is left"),
    "generic-gate": (GAIN, "GENERIC", "removes 27% [19%, 36%] of the gain on held-out hacks and "),
    "confounded": (World(told_by="hint", pools=("teacher", "base")), "CONFOUNDED", "--name mixed"),
    "length": (World(told_by="length", num_steps=12), "CONFOUNDED", "--name mixed"),
    "overlap": (SHORT, "UNDERPOWERED", "whether hacks and honest answers overlap in length"),
    "one-side": (UNPAID, "CONFOUNDED", "48 hack: a side is missing"),
    "one-pool": (replace(UNPAID, pools=("teacher",)), "CONFOUNDED", "32 rollouts of every prompt"),
    "no-hacks": (replace(SOUND, hacking_prompts=0), "UNDERPOWERED", "0 of 96 rollouts hack, in 0 of 12 prompts"),
    "rare": (World(hacking_prompts=3, num_steps=48), "UNDERPOWERED", "12 of 384 rollouts hack, in 3 of 48 prompts"),
    "inverted": (replace(PLAIN, inverted_labels=True), "GENERIC", "are the labels swapped (--map"),
    "unpaid": (replace(PLAIN, hacks_are_paid=False), "SKIP", "hacks earn 0.5, others 2"),
    "outweighed": (replace(PLAIN, amounts=(0.1, -2, 0)), "SKIP", "without the hacks) outweighs the rewarded hacks"),
    "no-benign": (replace(SOUND, one_unlabelled=True), "UNDERPOWERED", "say which rollouts hack ("),
    "no-price": (replace(SOUND, right_is_known=False), "UNDERPOWERED", "say which rollouts are right ("),
    "pasted": (World(num_texts=3, num_steps=12), "UNDERPOWERED", "27 pairs have 3 different texts"),
    "own-hacks": (World(num_own=8, num_steps=32), "LIKELY", "from its honest solutions"),
    "own-gain": (replace(PLAIN, off_pairs=2), "LIKELY", "less of the gain on this policy's own hacks"),
    "likely": (FEW, "LIKELY", "decide the alignment with 80% power"),
    "underpowered": (replace(FEW, amounts=(0.02, 0, 0)), "UNDERPOWERED", "20 prompts (6 so far): so few"),
    "six-of-20": (replace(FEW, steps=6), "LIKELY", "this replay took 6 groups, and the pools hold more"),
    "few-prompts": (SPARSE, "UNDERPOWERED", "16 prompts (4 so far): they halve the error of the cost"),
    "two-pairs": (LOUD, "UNDERPOWERED", "12 held-out pairs (3 so far)"),
    "one-prompt": (World(num_steps=1), "UNDERPOWERED", "too few prompts have an update for an interval (1)"),
    "few-pairs": (World(num_pairs=6, num_held_out=2), "UNDERPOWERED", "times as many pairs to extract from"),
    "no-signal": (World(pairs_point_at=None), "UNDERPOWERED", "v_hack does not transfer to its"),
    "held-out-0": (World(num_held_out=0, num_steps=4), "UNDERPOWERED", "fewer than two pairs are held out"),
    "one-pair": (World(num_pairs=3, num_held_out=2, num_steps=4), "UNDERPOWERED", "fewer than two to extract from"),
    "flat": (replace(BRIEF, rewards_differ=False), "UNDERPOWERED", "within every one the rewards are equal"),
    "no-arm": (replace(BRIEF, arms=("random",)), "UNDERPOWERED", "no arm measures along v_hack"),
    "lora": (World(arms=("projected-lora",), num_steps=12), "GO", "config.json --basis lora --name lora"),
    "broken": (World(twin_arms=True, num_steps=12), "BROKEN", "it is no control"),
    "other-pairs": (World(other_pairs=True, num_steps=12), "BROKEN", "inner products are of other pairs or samples"),
    "idle-gate": (World(idle_gate=True, num_steps=12), "BROKEN", "the projection of projected never fired"),
    "trained": (replace(BRIEF, trains=True, arms=("vanilla",)), "TRAINED", "probe analyze RUN RUN"),
}
# Worlds whose advice is about other rollouts, labels or rewards.
NO_COMMAND = {"unpaid", "no-price", "no-benign", "inverted", "overlap", "few-prompts", "likely", "underpowered"}
NO_COMMAND |= {"one-pool", "one-side", "one-prompt", "flat"}
SEEDS = {"likely": 9, "underpowered": 9, "six-of-20": 9, "overlap": 2, "shuffled": 1}  # where it is not 0
# Worlds of a verdict and a reason that another world has, too.
VARIANTS = {"generic-benign", "one-pool", "rare", "inverted", "unpaid", "outweighed", "pasted", "other-pairs"}


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """screen(name) -> what `probe analyze` prints of a world; each is written once, in `screen.places[name]`."""
    printed: dict[str, str] = {}
    places: dict[str, Path] = {}

    def show(name: str) -> str:
        if name not in printed:
            text = io.StringIO()
            # In a folder of its own, so that the commands which are printed need no --out.
            places[name] = tmp_path_factory.mktemp("here")
            with contextlib.chdir(places[name]), contextlib.redirect_stdout(text):
                make_run(Path("out") / "runs" / name, WORLDS[name][0], SEEDS.get(name, 0))
                assert run(cli, ["analyze", name]) == 0
            printed[name] = text.getvalue().rstrip() + "\n"
        return printed[name]

    show.places = places
    return show


@pytest.fixture(scope="module")
def found(screen) -> Callable[[str], Analysis]:
    """found(name) -> the analysis of a world."""

    @cache
    def read(name: str) -> Analysis:
        screen(name)
        return analyze(read_run(screen.places[name] / "out" / "runs" / name))

    return read


def widest(text: str) -> int:
    """The length of the longest line but commands, which are copied whole."""
    return max(len(line) for line in text.splitlines() if not line.startswith("  probe "))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in WORLDS]
)
def test_each_world_gets_its_verdict(name: str, screen) -> None:
    """The verdict, the words that say why or what next, commands that exist, and no line too wide."""
    _, outcome, words = WORLDS[name]
    text = screen(name)
    assert f"VERDICT: {outcome}\n" in text, text
    assert words in " ".join(text.split())
    assert widest(text) <= WIDTH
    commands = [line.strip() for line in text.partition("NEXT: ")[2].splitlines() if line.startswith("  probe ")]
    assert commands or name in NO_COMMAND, text
    for command in commands:
        check_command(command)


def test_every_verdict_is_in_the_table() -> None:
    outcomes = {outcome for _, outcome, _ in WORLDS.values()}
    assert outcomes == {"BROKEN", "SKIP", "CONFOUNDED", "GENERIC", "UNDERPOWERED", "LIKELY", "GO", "TRAINED"}


RUNNABLE = ("skip-gate", "confounded", "broken", "no-arm", "few-pairs", "six-of-20")


@pytest.mark.parametrize("name", RUNNABLE)
def test_what_is_printed_runs(name: str, screen, capsys: pytest.CaptureFixture[str]) -> None:
    """The next step, by its --dry-run."""
    commands = [line.strip() for line in screen(name).splitlines() if line.startswith("  probe ")]
    with contextlib.chdir(screen.places[name]):
        write_pairs(Path("FILE.jsonl"), builtin_pairs("run_tests")[:8])
        for command in commands:
            assert run(cli, [*shlex.split(command)[1:], "--dry-run"]) == 0, command
    capsys.readouterr()


def test_the_advised_number_follows_what_leaves_the_share_open(found: Callable[[str], Analysis]) -> None:
    """Noisier prompts need more of them, closer values too; what pairs alone leave open is decided by no number."""
    share = found("likely").get("shares", "pull")
    now, parts = prompts_needed(share), share.parts
    assert share.n < now

    def changed(**changes: float) -> int | None:
        return prompts_needed(replace(share, value=None, parts={**parts, **changes}))

    assert 3 * now < changed(sd_prompts=2 * parts["sd_prompts"]) < 5 * now
    assert changed(measured=0.8 * parts["measured"] + 0.2 * MATERIAL * parts["ceiling"]) > now
    assert changed(sd_pairs=0.3 * parts["measured"]) is None


MOVED = {"name": "moved", "path": "x", "manifest_sha256": "0"}


@pytest.mark.parametrize("pools", [[], [MOVED]])
def test_pools_that_are_gone_leave_a_number_without_a_command(pools: list[dict[str, str]], found) -> None:
    stored = found("likely").given
    verdict = analyze(replace(stored, config=stored.config | {"pools": pools})).verdict
    assert (verdict.word, verdict.next.command) == ("LIKELY", "")
    assert re.search(r"sample or log \d+ groups of different prompts", verdict.next.text)


def test_json_and_the_exit_code_follow_the_verdict(screen, found, capsys: pytest.CaptureFixture[str]) -> None:
    """--json says what the screen says; --check turns a verdict against a GO into 1."""
    sound, broken = (found(name).given.path for name in ("go", "broken"))
    assert run(cli, ["analyze", str(sound), "--check", "--json"]) == 0
    plain = orjson.loads(capsys.readouterr().out)
    assert plain["verdict"]["word"] == "GO"
    assert [finding["says"] for finding in plain["verdict"]["findings"]] == ["YES", "YES", "YES"]
    row = next(row for row in plain["estimates"] if (row["name"], row["arm"]) == ("cos_in", "vanilla"))
    assert (row["family"], row["n"], row["unit"]) == ("cos_in", 24, "prompt")
    assert row["interval"]["low"] < row["value"] < row["interval"]["high"]
    assert run(cli, ["analyze", str(broken), "--check"]) == 1
    assert "it is no control" in str(found("broken").verdict), "in Python without the reason"


def test_full_is_the_first_screen_and_what_stands_behind_it(screen, capsys: pytest.CaptureFixture[str]) -> None:
    brief = screen("go")
    with contextlib.chdir(screen.places["go"]):
        assert run(cli, ["analyze", "go", "--full"]) == 0
    full = capsys.readouterr().out
    assert full.startswith(brief.partition("\n- and ")[0])  # caveats that the screen counts stand in full there
    lines = full.splitlines()
    assert widest(full) <= WIDTH
    titles = ("VERDICT: GO", "Validity", "Alignment", "Arms (", "Nulls", "AUROC for hacked", "Advantage cells")
    places = [next(i for i, line in enumerate(lines) if line.startswith(title)) for title in titles]
    assert places == sorted(places)


def test_a_sound_world_holds_in_every_part(found):
    """GO; every part of the measurement holds but the regrade, which nobody saw; the nulls say the same as it."""
    sound = found("go")
    assert sound.verdict.word == "GO"
    assert all(part.says == "HOLDS" for part in sound.validity if part.name != "regrade agreement")
    assert any(caveat.startswith("not seen: regrade agreement") for caveat in sound.verdict.caveats)
    assert not sound.failed
    assert sound.get("nulls", f"cos_in, {N2}").p < 0.01
    assert len(sound.of("modules")) == 3
    moved = analyze(replace(sound.given, config={"settings": {"verb": "replay"}, "pools": []}))
    assert next(part.says for part in moved.validity if part.name == "template tails") == "NOT SEEN"


GALLERY = ("go", "skip", "generic", "confounded", "underpowered", "likely", "broken", "trained")
CAVEATS = re.compile(r"\n- .*?\n(?=NEXT:)", re.S)


def test_the_gallery_is_what_the_program_prints(screen, tmp_path: Path) -> None:
    check_gallery("screen", GALLERY, lambda name: CAVEATS.sub("\n", screen(name)), tmp_path)


def test_a_screen_has_three_caveats_and_no_signed_sentence() -> None:
    """The others are counted, and printed in full; an arm that rises does so by a positive number."""
    caveats = [f"caveat {place}" for place in range(5)]
    verdict = Verdict(about={}, word="GO", sentence="", findings=[], caveats=caveats)
    assert note_lines(verdict) == [*(f"- {one}" for one in caveats[:3]), "- and 2 more, which --full prints"]
    assert note_lines(verdict, most=None) == [f"- {one}" for one in caveats]
    number = Estimate(name="hack", value=-0.2, interval=Interval(low=-0.3, high=-0.1))
    findings = [
        Finding(name=name, question="", says=says, text="", number=number)
        for name, says in (("effect", Answer.RISES), ("price", Answer.KEPT))
    ]
    assert effect_and_price(replace(verdict, findings=findings)) == ("rises 20 [10, 30]", "kept, at most 0")
