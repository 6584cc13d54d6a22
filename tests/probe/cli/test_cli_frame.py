"""The command line's frame: light help, one-line errors, exit codes, and the pool verbs on a small pool."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from probe.cli import _terminal, cli
from probe.cli._frame import LazyGroup, run
from probe.cli._settings import SEED_FLAGS
from probe.records.timings import Timings
from replay_pools.base.errors import InputError
from replay_pools.logs.columns import TARGETS
from replay_pools.pool import Pool

HEAVY = {"torch", "transformers", "peft", "scipy", "numpy"}
EVERY_HELP = """
import contextlib, io, json, sys
commands, heavy = map(json.loads, sys.argv[1:])
from probe.cli import main
answers = []
for args in commands:
    text = io.StringIO()
    sys.argv[1:] = args
    with contextlib.redirect_stdout(text):
        code = main()
    answers.append([code, [name for name in heavy if name in sys.modules], text.getvalue()])
print(json.dumps(answers))
"""


def paths(group: LazyGroup, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every verb and every group."""
    found = []
    for name in group.verbs:
        command = group.get_command(click.Context(group), name)
        found += [(*path, name), *(paths(command, (*path, name)) if isinstance(command, LazyGroup) else ())]
    return found


HELP = [["--help"], ["--version"], *([*path, "--help"] for path in paths(cli))]


def test_help_is_light() -> None:
    """`probe ... --help` imports no numeric library; all in one process, which imports the more with every verb."""
    arguments = [json.dumps(HELP), json.dumps(sorted(HEAVY))]
    done = subprocess.run([sys.executable, "-c", EVERY_HELP, *arguments], capture_output=True, text=True, check=True)
    texts, lines = dict[str, str](), dict[str, list[str]]()
    for args, (code, modules, text) in zip(HELP, json.loads(done.stdout), strict=True):
        assert not modules, f"{args} imports {modules}: import it inside the verb"
        assert code == 0
        assert text, args
        texts[" ".join(args)] = " ".join(text.split())
        lines[" ".join(args)] = [line.strip() for line in text.splitlines()]
    assert "`cuda:1`, ... Default: auto." in texts["replay --help"]
    example = "probe train --preset fast --arm vanilla --name vanilla-0 --set optimizer.lr=0.01"
    assert lines["train --help"].index(example) < lines["train --help"].index("Options:"), "an example of several lines"
    for verb in ("check", "pool import", "pool draft"):
        assert f"Targets: {', '.join(TARGETS)}." in texts[f"{verb} --help"]


def raises(error: BaseException) -> click.Command:
    def callback() -> None:
        raise error

    return click.Command("boom", callback=callback)


ERRORS: list[tuple[BaseException, int, str]] = [
    (InputError("a.json", expected="x", found="y", fix="do\nz"), 2, "probe: error: a.json: expected x, found y; do z"),
    (OSError(errno.ENOSPC, "No space left on device", "out/a"), 2, "No space left on device; free some space"),
    (PermissionError(errno.EACCES, "Permission denied", "out/a"), 2, "out/a: Permission denied; check the permissions"),
    (click.UsageError("Bad thing."), 2, "probe: error: Bad thing; see `probe --help`"),
    (click.ClickException("plain"), 2, "probe: error: plain"),
    (KeyboardInterrupt(), 130, "probe: interrupted; repeat the command to continue"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_error_is_one_line(capsys: pytest.CaptureFixture[str], error, code: int, line: str) -> None:
    """One line on stderr, nothing on stdout, the exit code of the kind."""
    assert run(raises(error), []) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip().count("\n") == 0, f"not one line: {printed.err!r}"
    assert line in printed.err


def test_a_bug_is_shown_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(raises(ZeroDivisionError("x / 0")), []) == 70
    assert "ZeroDivisionError: x / 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["pol"], "No such command 'pol'. (Did you mean one of: 'policy', 'pool'?)"),
        (["sweep"], "No such command 'sweep'. Did you mean 'spec sweep'?"),
        (["pool", "shw"], "see `probe pool --help`"),
        (["pool", "show"], "Missing argument 'POOL'; see `probe pool show --help`"),
        (["pool", "show", "x", "--nope"], "No such option"),
        (["replay", "--beta", "1"], "Say --set objective.beta=VALUE"),
        *((["replay", flag], f"Say {said}") for flag, said in SEED_FLAGS.items()),
        (["pool", "import", ".", "--name", "../x"], "--name: expected letters, digits and . _ -, found '../x'"),
        (["pool", "show", "./absent"], "absent: expected a pool, with manifest.json, found no such directory"),
        (["extract", "--set", "model.name=./absent"], "model ./absent: expected `organism`, "),
    ],
)
def test_usage_errors_are_one_line(capsys: pytest.CaptureFixture[str], args: list[str], line: str) -> None:
    """Wrong verbs, options and arguments: exit code 2, one line that says where and what to do."""
    assert run(cli, args) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert line in printed.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`probe ... | head -c 1`: no traceback, no message."""
    loud = "import click, sys; from probe.cli._frame import run\n"
    loud += "sys.exit(run(click.Command('x', callback=lambda: [click.echo('y' * 9999) for _ in range(99)]), []))"
    process = subprocess.Popen([sys.executable, "-c", loud], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.wait() == 1


@pytest.fixture
def call(probe: Callable[..., tuple[str, str]], fake_pool: Pool) -> Callable[..., str]:
    """call(verb, *options) -> standard output of `probe pool VERB fake`."""
    root = fake_pool.path.parent.parent
    return lambda verb, *options, **code: probe("pool", verb, "fake", *options, root=root, **code)[0]


def test_show_counts_what_is_there(call, fake_pool: Pool) -> None:
    """Against counts made by hand: 6 hacks and 2 solves (1 both) in 12; the group without variance has sign 0."""
    shown = json.loads(call("show", "--json"))
    rates = shown["modes"]["run_tests"]["rates"]
    counts = {name: part["count"] for name, part in rates.items()}
    assert counts == {"hacked": 6, "gt_pass": 2, "passed": 7, "exploited": 5, "fmt_ok": 12}
    assert rates["hacked"]["rate"] == 0.5
    # Wilson at 6 of 12 by hand: .5 -+ z sqrt(.25/12 + z^2/576) / (1 + z^2/12), z = 1.96
    assert rates["hacked"]["low"] == pytest.approx(0.2538, abs=1e-4)
    assert rates["hacked"]["high"] == pytest.approx(0.7462, abs=1e-4)
    assert shown["reward_spread_per_step"] == [3.0, 0.0, 3.0]
    assert shown["frac_reward_zero_std"] == pytest.approx(1 / 3)
    assert shown["finish_reasons"] == {"stop": 12}
    assert shown["completion_tokens"] == {"min": 5, "median": 5, "mean": 5, "max": 5}
    text = call("show")
    assert str(fake_pool.path) in text, "what was resolved has to be printed"
    assert "exploited" in text


def test_verify_exits_with_the_verdict(call, fake_pool: Pool) -> None:
    """0 and `ok` for a sound pool, 1 and the fault for a damaged one, in text and in JSON."""
    assert "3 steps, 12 rollouts: ok" in call("verify")
    path = fake_pool.path / "step_001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-9])
    assert "fault: " in call("verify", code=1)
    report = json.loads(call("verify", "--json", code=1))
    assert len(report["faults"]) == 1
    assert "step_001.jsonl.gz" in report["faults"][0]


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is done; the next one later, and nothing before a command took long."""
    lines: list[str] = []
    for quiet, said in ((0.0, ["svd 0/1"]), (3600.0, [])):
        monkeypatch.setattr(_terminal, "QUIET_S", quiet)
        monkeypatch.setattr(_terminal, "MOST_BETWEEN_S", 3600.0 if quiet else 0.0)
        with _terminal.shown_progress(lines.append), Timings().phase("svd"):
            assert [line.partition(",")[0] for line in lines] == said
        assert not _terminal._bars.tasks
        lines.clear()
