"""The frame of the command line for all verbs: lazy import, errors, exit codes, common options, output.

To add advice for an OSError, add a row to OS_FIXES.
"""

import errno
import json
import math
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from probe.analysis.formatting import aligned
from probe.records.run import DEFAULT_OUT, elsewhere
from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, plain_name
from replay_pools.base.terminal import is_invisible, visible, without_secrets

EXIT_INPUT = 2  # repeating the command would fail again
EXIT_INTERNAL = 70  # sysexits EX_SOFTWARE: a bug of this program
EXIT_INTERRUPTED = 130  # 128 + SIGINT
FULL, DENIED = "free some space, or use another place: --out, TMPDIR for a log", "check the permissions, or use --out"
OS_FIXES = {errno.ENOSPC: FULL, errno.EDQUOT: FULL, errno.EACCES: DENIED, errno.EPERM: DENIED, errno.EROFS: DENIED}

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class Table(NamedTuple):
    """A table to print, with the first `left` columns flush left and the others flush right."""

    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    left: int = 1


class Checked(NamedTuple):
    """The object of a verb that checks something, or a function that makes it; if `failed`, the exit code is 1."""

    value: Any
    failed: bool


Text = Generator[str | Table, None, Any]  # what a verb prints, and at its end the object that --json prints


class LazyGroup(click.Group):
    """A group that imports a verb only when called; its help needs only the table.

    Args:
        sections: {title: {verb: ("module:command" in probe.cli or a table of verbs, one line of help)}}.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, tuple[Any, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.verbs = {name: row for section in sections.values() for name, row in section.items()}
        # Only the names matter: click suggests them, for example `spec sweep` for `sweep`.
        groups = {name: target for name, (target, _) in self.verbs.items() if isinstance(target, Mapping)}
        inner = [f"{name} {verb}" for name, verbs in groups.items() for verb in verbs]
        self.commands = dict.fromkeys([*self.verbs, *inner], click.Command("not imported yet"))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the table."""
        return [*self.verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb, or create the group of verbs."""
        if cmd_name not in self.verbs:
            return None
        target, line = self.verbs[cmd_name]
        if isinstance(target, Mapping):
            return LazyGroup(cmd_name, help=line, sections={"Commands": target})
        module, _, attribute = target.partition(":")
        return getattr(import_module(f"probe.cli.{module}"), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by section with the table's help lines; click's version would import every verb."""
        for title, verbs in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in verbs.items()])


def run(command: click.Command, args: Sequence[str] | None = None) -> int:
    """Run a command; print bad input as a line for each error, a bug as its traceback; return the exit code."""
    args = sys.argv[1:] if args is None else list(args)
    try:
        return command.main([*args], "probe", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.Abort:
        echo("probe: interrupted; repeat the command to continue", err=True)
        return EXIT_INTERRUPTED
    except (InputError, click.ClickException, OSError) as error:
        for line in _lines(error):
            echo(f"probe: error: {_rooted(' '.join(line.split()), args)}", err=True)
        return EXIT_INPUT
    # The program's boundary: `echo` makes foreign parts of the message safe.
    except Exception:
        echo(f"probe: internal error\n{traceback.format_exc()}", err=True)
        return EXIT_INTERNAL


def _lines(error: InputError | click.ClickException | OSError) -> list[str]:
    """Return the lines to print for bad input."""
    if isinstance(error, InputError):
        return [str(each) for each in error.errors]
    if isinstance(error, OSError):
        fix = OS_FIXES.get(error.errno or 0)
        message = f"{error.filename or 'input/output'}: {error.strerror or error}"
        return [f"{message}; {fix}" if fix else message]
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "probe"
        return [f"{error.format_message().rstrip('.')}; see `{path} --help`"]
    return [error.format_message()]


def _rooted(message: str, args: Sequence[str]) -> str:
    """Append --out of the command line to a command at the end of a message, which was raised without it."""
    for option, following in zip(args, [*args[1:], ""], strict=False):
        name, equals, value = option.partition("=")
        if name == "--out" and re.search(r": probe (?:(?!--out|;).)*$", message):
            return message + elsewhere(Path(value if equals else following))
    return message


class Real(click.FloatRange):
    """A finite number; click's floats accept nan, which passes any bound."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number; raise a usage error if it is not finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


# `out: Path`, the root folder of everything that a verb writes and looks up.
out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_OUT,
    show_default=True,
    help="Root folder of all that is written and looked up.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would be done and what it needs; write nothing, load no weights."
)


def one_of(flag: str, names: Iterable[str], text: str, **settings: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Add an option whose value is one of `names`; `settings` go to click."""
    return click.option(flag, type=click.Choice([*names]), help=text, show_default="default" in settings, **settings)


def name_option(what: str, usual: str = "", **settings: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Add `--name NAME` -> `name: str`, a plain file name for `what`; `settings` go to click.

    Args:
        usual: the default, if it is not a fixed name.
    """

    def check(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
        return value if value is None else plain_name(value, "--name")

    text = f"Name of the {what} inside --out." + (f" Default: {usual}." if usual else "")
    return click.option("--name", callback=check, help=text, **settings)


def column_options(function: AnyFunction) -> AnyFunction:
    """Add `--map TARGET=COLUMN,... --format NAME` -> `mapping: dict[str, str], format_name: str | None`."""
    from replay_pools.logs.columns import TARGETS, parse_mapping  # of verbs that read a log alone

    text = "Format of the log. Default: detected."
    function = click.option("--format", "format_name", metavar="FORMAT", help=text)(function)
    return click.option(
        "--map",
        "mapping",
        multiple=True,
        metavar="TARGET=COLUMN,...",
        callback=lambda _ctx, _option, texts: parse_mapping(",".join(texts)) if texts else {},
        help=f"Name columns that are guessed wrong, or not at all. Targets: {', '.join(TARGETS)}.",
    )(function)


def log_options(function: AnyFunction) -> AnyFunction:
    """Add `column_options` and `--completion-limit N --skip-bad N` -> `limit: int | None, skip_bad: int`."""
    text = "Leave out at most N rows that are broken, and say which; with more, import nothing. Default: 0."
    function = click.option("--skip-bad", type=click.IntRange(0), default=0, metavar="N", help=text)(function)
    text = "Tokens at which completions were cut off, where the log does not say it."
    return column_options(click.option("--completion-limit", "limit", type=click.IntRange(1), help=text)(function))


pool_argument = click.argument("pool_name", metavar="POOL")


def command(*words: object) -> str:
    """Return a command of probe to print, quoted, with the --out of the command that runs."""
    return f"probe {shlex.join(map(str, words))}{elsewhere(click.get_current_context().params['out'])}"


def plain(value: Any, missing: str = "-") -> str:
    """Return a value as a reader says it: yes or no, names with commas, `missing` for None or no names."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else "" if value is None else str(value)
    return text or missing


def answer(blocks: Text, as_json: bool) -> int:
    """Print what a verb yields, or with `as_json` the object that it returns; return the exit code."""
    while True:
        try:
            block = next(blocks)
        except StopIteration as end:
            value, failed = end.value if isinstance(end.value, Checked) else (end.value, False)
            if as_json and value is not None:  # of several processes, the first one speaks
                echo_json(value() if callable(value) else value)
            return int(failed)
        if as_json:
            continue
        if isinstance(block, Table):
            echo_table(*block)
        else:
            echo(block)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a text on stdout or stderr.

    Parts may come from pools, servers and models, so control characters are escaped and passwords in addresses become
    ***. Newlines and tabs stay, so callers must fold foreign lines first.
    """
    text = visible(without_secrets(text))
    if not (sys.stderr if err else sys.stdout).isatty():
        click.echo(text, err=err)
        return
    from probe.cli._terminal import print_text

    print_text(text, err=err)


def say(text: str) -> None:
    """Print a line about the work on stderr."""
    echo(visible(text, kept=""), err=True)


def echo_json(value: Any) -> None:
    """Print one strict JSON value (NaN as null) on one line."""
    # JSON strings can escape invisible characters, and a reader restores them.
    text = "".join(json.dumps(part)[1:-1] if is_invisible(part) else part for part in dump_json(value).decode())
    click.echo(without_secrets(text))


def echo_table(header: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> None:
    """Print the columns of a `Table`."""
    cells = [[without_secrets(visible(str(cell), kept="")) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        click.echo("\n".join(aligned(header, cells, left)))
        return
    from probe.cli._terminal import print_table

    print_table(header, cells, left)
