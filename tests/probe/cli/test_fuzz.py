"""The command line under bad input: whatever is typed for any option of any verb is answered, in one line."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from probe.cli import cli, doctor
from probe.cli._frame import run


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every verb with its path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


VERBS = dict(leaves(cli))
NEEDED = {  # what a verb must be given beside the option in question
    ("pool", "generate"): ["--name", "new", "--adapter", "./no-such"],
    ("pool", "regrade"): ["no-such-pool", "--name", "new"],
    ("pool", "import"): ["no-such-pool", "--name", "new"],
    ("pool", "show"): ["no-such-pool"],
    ("pool", "verify"): ["no-such-pool"],
    ("extract",): ["--pairs", "no-such-pairs.jsonl"],
    ("policy", "finetune"): ["--name", "new", "--completions", "hack", "--env", "no-such-env"],
    ("policy", "eval"): ["no-such-run"],
    ("analyze",): ["no-such-run"],
    ("report",): ["no-such-run"],
    ("show",): ["no-such-run"],
    # Of a machine that is named, whose speed is not measured.
    ("replay",): ["--dry-run", "--replay-dirs", "teacher"],
    ("train",): ["--dry-run"],
}


def bad_value(kind: click.ParamType) -> str | None:
    """What an option of this type must refuse, though one of another type would take it; None for a text."""
    if isinstance(kind, click.Choice):
        return str(kind.choices[0]).upper()
    if isinstance(kind, click.types.IntParamType):
        return "1.5"
    return "nan" if isinstance(kind, click.types.FloatParamType) else None


OPTIONS = [
    (verb, option)
    for verb, command in VERBS.items()
    for option in command.params
    if isinstance(option, click.Option) and not option.is_flag
]
CASES: dict[tuple[str, ...], list[tuple[str, str]]] = {}  # {verb: [(option, a value that it must refuse)]}
TEXTS: dict[tuple[str, ...], list[str]] = {}  # {verb: options that take a text}
for _verb, _option in OPTIONS:
    if (_value := bad_value(_option.type)) is not None:
        CASES.setdefault(_verb, []).append((_option.opts[0], _value))
    elif _verb != ("demo",):  # which has no option but --out, and would run
        TEXTS.setdefault(_verb, []).append(_option.opts[0])
WORDS = ["", "../x", "a\n½", "a.b=1"]


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that must end in exit code 2."""
    capsys.readouterr()
    code = run(cli, args)
    found = capsys.readouterr()
    lines = [line for line in found.err.splitlines() if line.startswith("probe: error: ")]
    assert (code, len(lines), found.out) == (2, 1, ""), f"{args}: {code}\n{found.out}\n{found.err}"
    assert found.err.endswith(f"{lines[0]}\n")
    assert "Traceback" not in found.err
    return lines[0]


@pytest.mark.parametrize("verb", CASES, ids=" ".join)
def test_a_value_of_the_wrong_kind_is_refused(verb: tuple[str, ...], tmp_path: Path, capsys) -> None:
    """Of every typed option of every verb."""
    start = [*verb, *NEEDED.get(verb, []), "--out", str(tmp_path / "out")]
    if "--out" not in {name for p in VERBS[verb].params for name in p.opts}:
        start = [*verb]
    for option, value in CASES[verb]:
        error = refused([*start, option, value], capsys)
        assert option in error or option.lstrip("-").replace("-", "_") in error, (option, value)
        assert not (tmp_path / "out").exists(), (option, value)


def answered(args: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """The exit code of a command that may be right or wrong, never ours to blame."""
    code = run(cli, args)
    error = capsys.readouterr().err
    assert code in (0, 1, 2), f"{args}: {code}\n{error}"
    assert "Traceback" not in error
    assert sum(line.startswith("probe: error: ") for line in error.splitlines()) == (code == 2), f"{args}\n{error}"
    return code


@pytest.mark.parametrize("verb", TEXTS, ids=" ".join)
def test_any_text_is_answered(verb: tuple[str, ...], tmp_path: Path, capsys, monkeypatch) -> None:
    """Of every other option: what it does not mean something to is refused in one line; each in a folder of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # names of models: nothing is asked for
    monkeypatch.setattr(doctor, "CHECKS", {})
    for i, (option, word) in enumerate(itertools.product(TEXTS[verb], WORDS)):
        (tmp_path / str(i)).mkdir()
        monkeypatch.chdir(tmp_path / str(i))
        answered([*verb, *NEEDED.get(verb, []), option, word], capsys)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_an_example_and_answers_in_json(verb: tuple[str, ...]) -> None:
    """Help shows a command of the verb with options that it has; `--json` is there, `--dry-run` where it is long."""
    command = VERBS[verb]
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert f"probe {' '.join(verb)}" in (command.help or "")
    used = {
        word
        for line in (command.help or "").splitlines()
        if "  probe " in line
        for word in line.split()
        if word[:2] == "--"
    }
    assert used <= names
    assert ("--json" in names) != (verb == ("demo",))
    assert ("--dry-run" in names) == (verb in {("replay",), ("train",)})
