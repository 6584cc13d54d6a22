"""Texts of others in messages: nothing that a terminal obeys, and no password."""

import ast
import json
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe.cli
from probe.cli import cli
from probe.cli._frame import echo, echo_json, echo_table, run, say
from replay_pools.base.errors import InputError
from replay_pools.base.terminal import is_invisible, visible, without_secrets
from replay_pools.serving import Server

EVIL = "\x1b]0;title\x07\x1b[2J\x9b1A\u202eabc\u2066\u200b\ufeff\x7f\ud800"


@given(st.text())
def test_visible_text_has_nothing_to_obey(text: str) -> None:
    """Its escapes are Python's, so nothing is lost; printable text stays as it is."""
    shown = visible(text, kept="")
    assert not any(map(is_invisible, shown))
    shown.encode()  # raises for a lone surrogate
    if text.isprintable():
        assert shown == text


def test_every_way_out_is_safe(capsys: pytest.CaptureFixture[str]) -> None:
    """Results, progress, tables, JSON (which reads back as what it was), and errors, of ours and of others."""
    plain = EVIL.removesuffix("\ud800")
    echo(f"a\n\t{EVIL}")
    echo_table(("name", "n"), [(f"{EVIL}\n", 3)])
    echo_json({"text": plain})
    say(f"two\nlines {EVIL}")
    for error in (InputError(EVIL, expected="x", found=EVIL), OSError(5, "broken", EVIL), ValueError(EVIL)):

        @click.command()
        def fail(error: Exception = error) -> None:
            raise error

        assert run(fail, []) in (2, 70)
    result = capsys.readouterr()
    assert not any(is_invisible(part) and part not in "\n\t" for part in result.out + result.err)
    assert json.loads(result.out.splitlines()[-1]) == {"text": plain}
    assert result.err.splitlines()[0].startswith(r"two\nlines \x1b]0;title\x07")


def test_no_verb_prints_by_another_way() -> None:
    """`click.echo` and `print` stand in the frame alone."""
    for path in Path(probe.cli.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and path.name != "_frame.py":
                assert ast.unparse(call.func) not in ("click.echo", "click.secho", "print"), f"{path}:{call.lineno}"


def test_passwords_are_not_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nor used: a key of a server comes by the environment."""
    assert without_secrets("http://me:pw@host:1/x?token=abc&n=1 and https://k@h") == (
        "http://***@host:1/x?token=***&n=1 and https://***@h"
    )
    for url in ("http://me:hunter2@127.0.0.1:1", "http://127.0.0.1:1?token=hunter2", "http://me:hunter2@h:1/v1"):
        with pytest.raises(InputError, match="PROBE_SERVER_KEY") as error:
            Server(url=url)
        assert "hunter2" not in str(error.value)
        options = ["--url", url, "--name", "x", "--out", str(tmp_path)]
        assert run(cli, ["pool", "generate", *options]) == 2
        assert "hunter2" not in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
