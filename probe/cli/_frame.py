"""Frame of the command line, shared by all verbs: lazy import, one-line errors with exit codes, options, completion,
tables.

To add an exit code or a fix for an error of the operating system: `_describe`, OS_FIXES.
"""

import errno
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from probe.cli._heartbeat import heard
from probe.records.run import DEFAULT_OUT, elsewhere
from replay_pools.base.errors import EXIT_INPUT, InputError
from replay_pools.base.files import dump_json, plain_name
from replay_pools.base.terminal import aligned, is_invisible, visible, without_secrets

COMPLETE_VARIABLE = "_PROBE_COMPLETE"
EXIT_INTERNAL = 70  # sysexits EX_SOFTWARE: a bug of ours, neither bad input nor a failed check
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_PIPE = 141  # 128 + SIGPIPE: the reader of our output has gone
OS_FIXES = {
    errno.ENOSPC: "free some space, or choose another place with --out",
    errno.EDQUOT: "free some space, or choose another place with --out",
    errno.EACCES: "check the permissions, or choose another place with --out",
    errno.EPERM: "check the permissions, or choose another place with --out",
    errno.EROFS: "choose a writable place with --out",
}

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class LazyGroup(click.Group):
    """A group that imports a verb only when it is called; its help comes from the table alone.

    Args:
        sections: {title: {verb: ("module:command" in probe.cli or a table of verbs, one line of help)}}.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, tuple[Any, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.verbs = {name: row for section in sections.values() for name, row in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of the table."""
        return [*self.verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb; a verb with verbs of its own is a group of them."""
        if cmd_name not in self.verbs:
            return None
        target, line = self.verbs[cmd_name]
        if isinstance(target, Mapping):
            return LazyGroup(cmd_name, help=line, sections={"Commands": target})
        module, _, attribute = target.partition(":")
        return getattr(import_module(f"probe.cli.{module}"), attribute)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As click does, with the verb that is meant in the message, one of a group (`pool import`) included."""
        if args[0] not in self.verbs and not ctx.resilient_parsing:
            meant = {name: name for name in self.verbs}
            for group, (target, _) in self.verbs.items():
                for name in target if isinstance(target, Mapping) else ():
                    meant.setdefault(name, f"{group} {name}")
            close = get_close_matches(args[0], meant, n=1)
            hint = f"; did you mean {meant[close[0]]}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list for each section, by the help lines of the table; click's own version would import every verb."""
        for title, verbs in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in verbs.items()])


def run(command: click.Command, args: Sequence[str] | None = None) -> int:
    """Run a command and turn every error into one line on stderr and an exit code.

    A command whose check failed calls `ctx.exit(1)`; return values are ignored.
    """
    args = sys.argv[1:] if args is None else list(args)
    # Read before click parses, whose own errors may be the ones to trace. Only flags before the verb are ours.
    flags = takewhile(lambda argument: argument.startswith("-"), args)
    debug = "--debug" in flags or os.environ.get("PROBE_DEBUG", "0") not in ("", "0")
    try:
        code = _invoke(command, list(args))
        # Here and not at exit, where a closed pipe could no longer be caught.
        sys.stdout.flush()
        return code
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.format_message(), err=True)
        return EXIT_INPUT
    except (KeyboardInterrupt, click.Abort):
        heard(result=True)
        echo("probe: interrupted; the same command goes on where it stopped", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes once more at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    # The boundary of the program: no error gets past it with a traceback, unless asked for.
    except Exception as error:
        heard(result=True)
        if debug:
            echo(traceback.format_exc(), err=True)
        messages, code = _describe(error)
        for message in messages:
            echo(f"probe: error: {_rooted(' '.join(message.split()), args)}", err=True)
        return code


def _rooted(message: str, args: Sequence[str]) -> str:
    """A message with the --out of the command line at the command that it ends in: who raised it knows of no root."""
    for option, following in zip(args, [*args[1:], ""], strict=False):
        name, equals, value = option.partition("=")
        if name == "--out" and re.search(r": probe (?:(?!--out|;).)*$", message):
            return message + elsewhere(Path(value if equals else following))
    return message


def _invoke(command: click.Command, args: list[str]) -> int:
    """Parse the arguments and call the command; `command.main` would print errors and exit by itself."""
    try:
        with command.make_context("probe", args) as context:
            command.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return 0


def _describe(error: Exception) -> tuple[list[str], int]:
    """The lines to print for an error, and its exit code."""
    if isinstance(error, InputError):
        return [str(each) for each in error.errors], EXIT_INPUT
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "probe"
        return [f"{error.format_message().rstrip('.')}; see `{path} --help`"], EXIT_INPUT
    if isinstance(error, click.ClickException):
        return [error.format_message()], EXIT_INPUT
    if isinstance(error, OSError):
        where = error.filename or "input/output"
        message = f"{where}: {error.strerror or error}"
        fix = OS_FIXES.get(error.errno or 0)
        if fix:
            message += f"; {fix}"
        return [message], EXIT_INPUT
    return [f"internal: {type(error).__name__}: {error}; run `probe --debug ...` for the traceback"], EXIT_INTERNAL


class Real(click.FloatRange):
    """A finite number; click's own floats take nan, which no bound refuses."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the number; one that is not finite is a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def out_option(function: AnyFunction) -> AnyFunction:
    """`--out DIR` -> `out: Path`, the root of everything that a verb writes and looks up."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option(
        "--out",
        type=kind,
        default=DEFAULT_OUT,
        show_default=True,
        help="Root folder of all that is written and looked up.",
    )(function)


def name_option(what: str, usual: str = "", **settings: Any) -> Callable[[AnyFunction], AnyFunction]:
    """`--name NAME` -> `name: str`, a plain file name for `what`; `settings` go to click.

    Args:
        usual: what it is by default, where that is no fixed name.
    """
    text = f"Name of the {what} inside --out." + (f" Default: {usual}." if usual else "")
    return click.option("--name", callback=_check_name, help=text, **settings)


def dry_run_option(function: AnyFunction) -> AnyFunction:
    """`--dry-run` -> `dry_run: bool`, for runs, which take long."""
    text = "Say what would be done and what it needs; write nothing, load no weights."
    return click.option("--dry-run", is_flag=True, help=text)(function)


def column_options(function: AnyFunction) -> AnyFunction:
    """`--map TARGET=COLUMN,... --format NAME` -> `mapping: dict[str, str], format_name: str | None`, for logs."""
    text = "Read the log in this format. Default: the one that recognises it."
    function = click.option("--format", "format_name", metavar="FORMAT", help=text)(function)
    text, settings = "Name columns that are guessed wrong, or not at all.", {"multiple": True, "callback": _mapping}
    return click.option("--map", "mapping", metavar="TARGET=COLUMN,...", help=text, **settings)(function)


def _mapping(_ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    if not texts:
        return {}
    from replay_pools.logs.columns import parse_mapping  # what reads logs: only for those who read one

    return parse_mapping(",".join(texts))


def log_options(function: AnyFunction) -> AnyFunction:
    """Those of columns, and `--completion-limit N --skip-bad N` -> `limit: int | None, skip_bad: int`."""
    text = "Leave out at most N rows that are broken, and say which; with more, import nothing. Default: 0."
    function = click.option("--skip-bad", type=click.IntRange(0), default=0, metavar="N", help=text)(function)
    text = "Tokens at which completions were cut off, where the log does not say it."
    return column_options(click.option("--completion-limit", "limit", type=click.IntRange(1), help=text)(function))


def json_option(function: AnyFunction) -> AnyFunction:
    """`--json` -> `as_json: bool`, one JSON object instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(function)


def _check_name(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    return value if value is None else plain_name(value, "--name")


def one_of(names: Sequence[str]) -> Complete:
    """One of `names`, or a file."""

    def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        matching = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return matching or [CompletionItem(incomplete, type="file")]

    return complete


def several_of(names: Callable[[click.Context], Sequence[str]]) -> Complete:
    """Some of the names, with commas between them: the last one is completed."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given, comma, last = incomplete.rpartition(",")
        taken = set(given.split(","))
        items = []
        for name in names(ctx):
            if name.startswith(last) and name not in taken:
                items.append(CompletionItem(f"{given}{comma}{name}"))
        return items

    return complete


def known_pools(ctx: click.Context) -> list[str]:
    """Pools that a name without a slash finds: those in OUT/pools, and the built-in ones."""
    from replay_pools.pool import pool_names

    return pool_names(ctx.params.get("out") or DEFAULT_OUT)


def one_pool(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A pool by its name, or a path."""
    return one_of(known_pools(ctx))(ctx, parameter, incomplete)


def one_run(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A run by its name in OUT/runs, or a path."""
    places = (ctx.params.get("out") or DEFAULT_OUT).glob("runs/*/")
    return one_of(sorted(path.name for path in places))(ctx, parameter, incomplete)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a text; the way of all that a verb prints, on stdout or stderr.

    Pools, servers and models wrote parts of it: what a terminal would obey is shown as an escape, and a password in an
    address as ***. Newlines and tabs stay; who prints lines of others folds them first.
    """
    heard(result=not err)
    text = visible(without_secrets(text))
    if (sys.stderr if err else sys.stdout).isatty():
        from probe.cli._colour import painted

        text = painted(text, err=err)
    click.echo(text, err=err)


def echo_json(value: Any) -> None:
    """Print one strict JSON value (NaN as null) on a line of its own."""
    # Within a string of JSON an invisible character has an escape, which a reader turns back.
    text = "".join(json.dumps(part)[1:-1] if is_invisible(part) else part for part in dump_json(value).decode())
    heard(result=True)
    click.echo(without_secrets(text))


def echo_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1) -> None:
    """Print an aligned text table: the first `left` columns to the left, the others to the right."""
    cells = [[without_secrets(visible(str(cell), kept="")) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        echo("\n".join(aligned(header, cells, left)))
        return
    from probe.cli._colour import table

    heard(result=True)
    click.echo(table(header, cells, left))
