"""Every command that a screen prints runs as it stands, with the reader's own names in its places."""

import html
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from log_rows import lines, two_policies
from printed import commands, verb_of
from specs import replay_spec

from probe.cli import cli, main
from probe.cli._frame import run

# What a long verb is given beside, so that it ends soon: later options take the place of earlier ones.
SHORT = {
    "pool generate": ["--steps", "1", "--group", "4", "--max-new-tokens", "4"],
    "replay": ["--steps", "1"],
    "train": ["--dry-run"],
    "spec sweep": ["--print-jobs"],
    "policy eval": ["--problems", "1", "--rollouts", "1", "--set", "rollouts.sampler.max_new_tokens=4"],
}


class Walk:
    """Runs commands in a folder of its own, and after each one those that it printed."""

    def __init__(self, out: Path, words: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self.words, self.capsys = out, words, capsys
        self.done: dict[tuple[str, ...], str] = {}

    def __call__(self, *args: str, code: int = 0) -> str:
        """What the command prints; everything that this proposes has run, too."""
        screen = self.run([*args, "--out", str(self.out)], code)
        self.follow(screen, shlex.join(["probe", *args]))
        return screen

    def follow(self, screen: str, source: str) -> None:
        for command in commands(screen):
            if "PROBLEMS.jsonl" in command:  # of a log whose problems nobody has here
                continue
            for place, word in self.words.items():
                command = re.sub(rf"(?<![\w/.-]){re.escape(place)}(?![\w/.-])", word, command)
            found = verb_of(command)
            assert found is not None
            (verb, _), args = found, shlex.split(command)[1:]
            # Commands of one kind, with the same options, stand for each other.
            kind = (*verb, *sorted({word for word in args if word.startswith("--")}))
            if kind not in self.done:
                self.done[kind] = f"{command}   (printed by {source})"
                assert not re.search(r"\b[A-Z]{2,}\b(?![\w/.-])", re.sub(r"/\S+", "", command)), self.done[kind]
                screen = self.run([*args, *SHORT.get(" ".join(verb), [])], 0, self.done[kind])
                if (
                    verb != ["docs"] and "--help" not in args
                ):  # usage and pages, which are read with the files of others
                    self.follow(screen, command)

    def run(self, args: list[str], code: int, said: str = "") -> str:
        self.capsys.readouterr()
        ended = run(cli, args)
        printed = self.capsys.readouterr()
        assert ended == code, f"{said or shlex.join(args)}\nended with {ended}:\n{printed.err}"
        return f"{printed.err}\n{printed.out}"


@pytest.fixture
def walk(
    tmp_path: Path,
    common: Path,
    pools: Path,
    small: str,
    few_pairs: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Walk:
    """In a folder that has folders of the same names as what is in OUT; two pools of the small model are there."""
    out, here = tmp_path / "results of mine", tmp_path / "here"
    for name in ("mine", "v_hack", "first", "spec"):
        (here / name).mkdir(parents=True)
    out.mkdir()
    (out / "cache").symlink_to(common / "cache")
    for name, source in (("mine", "teacher"), ("other", "base")):
        shutil.copytree(pools / source, out / "pools" / name)
    extraction = {"intervention.extraction.pairs": few_pairs[1], "intervention.extraction.k": 2}
    (here / "spec" / "tiny.toml").write_text(
        replay_spec("tiny", {"steps": 1, "source.replay_dirs": ["mine", "other"], **extraction})
    )
    monkeypatch.chdir(here)
    words = {"FILE.jsonl": few_pairs[1], "NAME": "named", "MODEL": small, "OTHER": "other-directions", "STEP": "0"}
    words |= {"MODE": "run_tests", "PAGE": "replay", "RUN RUN ...": "first first"}
    return Walk(out, words, capsys)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """What a trainer logs: text, reward and label."""
    return str(lines(tmp_path / "logs" / "log.jsonl", two_policies(groups=3, each=3)))


def texts(page: Path) -> str:
    """What a reader of an HTML page sees, a line each."""
    body = re.sub(r"(?s)<(script|style)\b.*?</\1>|</?(?:abbr|span)[^>]*>", "", page.read_text())
    return html.unescape(re.sub(r"<[^>]+>", "\n", body))


@pytest.mark.slow
def test_every_printed_command_runs(walk: Walk, log: str, small: str, few_pairs: list[str]) -> None:
    """From pairs and pools to a page, with a root folder of one's own."""
    walk("extract", "--model", small, *few_pairs)
    walk("extract", "--model", small, *few_pairs, "--basis", "lora", "--name", "low-rank")
    replayed = ("replay", "--replay-dirs", "mine,other", "--arm", "vanilla,projected,projected-lora", *few_pairs)
    walk(*replayed, "--steps", "2", "--name", "first")
    walk("analyze", "first", "--full")
    walk("report", "first")
    walk.follow(texts(walk.out / "reports" / "first.html"), "the page")
    for shown in ([], ["first"], ["mine"], ["v_hack"]):
        walk("show", *shown)
    walk("check", log, *few_pairs, "--model", small, "--steps", "1", "--name", "odd")
    for verb in ("show", "verify"):
        walk("pool", verb, "mine")
    walk("pool", "import", log, "--name", "imported", "--model", small)
    walk("pool", "regrade", "mine", "--name", "mine-again")
    walk("spec", "plan", "spec/tiny.toml")
    walk("spec", "list")
    walk.follow(walk.run(["docs"], 0), "docs")
    assert len(walk.done) >= 12
    assert not (Path.cwd() / "out").exists(), "a command without the root folder that was given"


def test_what_an_error_proposes_runs(walk: Walk, log: str, few_pairs: list[str]) -> None:
    """The fixes of errors whose cause is gone once they have run."""
    walk("check", log, code=2)
    walk("check", log, *few_pairs, code=2)
    walk("analyze", "spec/tiny.toml", code=2)
    walk("analyze", "absent", code=2)
    walk("show", "absent", code=2)
    walk("replay", "--v-hack", "absent", code=2)
    walk("replay", "--replay-dirs", "absent", code=2)
    walk("replay", "--replay-dirs", str(Path(log).parent), code=2)
    walk.follow(walk.run(["docs", "absent"], 2), "docs absent")
    assert not (Path.cwd() / "out").exists(), "a command without the root folder that was given"


def test_blas_has_one_thread_before_numpy_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy reads the number when it is imported, which no help of a verb does (test_cli_frame)."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr("probe.cli.run", lambda _: os.environ["OPENBLAS_NUM_THREADS"])
    assert main() == "1"
