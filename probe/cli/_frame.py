"""The frame of the command line for all verbs: lazy import, errors, exit codes, options, completion, output.

To add an exit code, change `_describe`; to add advice for an OSError, add a row to OS_FIXES.
"""

import errno
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from probe.records.run import DEFAULT_OUT, elsewhere
from replay_pools.base.errors import EXIT_INPUT, InputError
from replay_pools.base.files import dump_json, plain_name
from replay_pools.base.terminal import aligned, is_invisible, visible, without_secrets

COMPLETE_VARIABLE = "_PROBE_COMPLETE"
EXIT_INTERNAL = 70  # sysexits EX_SOFTWARE: a bug of this program
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_PIPE = 141  # 128 + SIGPIPE: the reader of our output has closed
FULL, DENIED = (
    "free some space, or choose another place: --out, TMPDIR for a log",
    "check the permissions, or use --out",
)
OS_FIXES = {errno.ENOSPC: FULL, errno.EDQUOT: FULL, errno.EACCES: DENIED, errno.EPERM: DENIED, errno.EROFS: DENIED}

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


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
    """Run a command and turn every error into one line on stderr and an exit code.

    A command with a failed check calls `ctx.exit(1)`; return values are ignored. `command.main` would print errors on
    several lines and exit with 1 on an interrupt or a closed pipe.
    """
    args = sys.argv[1:] if args is None else list(args)
    code = 0
    try:
        try:
            with command.make_context("probe", [*args]) as context:
                command.invoke(context)
        except click.exceptions.Exit as stop:
            code = stop.exit_code
        # Flush here: at exit, a closed pipe could no longer be caught.
        sys.stdout.flush()
        return code
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.format_message(), err=True)
        return EXIT_INPUT
    except (KeyboardInterrupt, click.Abort):
        echo("probe: interrupted; repeat the command to continue", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python's flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    # The program's boundary: print a traceback only on request.
    except Exception as error:
        if "--debug" in args or os.environ.get("PROBE_DEBUG", "0") not in ("", "0"):
            echo(traceback.format_exc(), err=True)
        messages, code = _describe(error)
        for message in messages:
            echo(f"probe: error: {_rooted(' '.join(message.split()), args)}", err=True)
        return code


def _rooted(message: str, args: Sequence[str]) -> str:
    """Append --out of the command line to a command at the end of a message, which was raised without it."""
    for option, following in zip(args, [*args[1:], ""], strict=False):
        name, equals, value = option.partition("=")
        if name == "--out" and re.search(r": probe (?:(?!--out|;).)*$", message):
            return message + elsewhere(Path(value if equals else following))
    return message


def _describe(error: Exception) -> tuple[list[str], int]:
    """Return the lines to print for an error, and its exit code."""
    match error:
        case InputError():
            return [str(each) for each in error.errors], EXIT_INPUT
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "probe"
            return [f"{error.format_message().rstrip('.')}; see `{path} --help`"], EXIT_INPUT
        case click.ClickException():
            return [error.format_message()], EXIT_INPUT
        case OSError():
            fix = OS_FIXES.get(error.errno or 0)
            message = f"{error.filename or 'input/output'}: {error.strerror or error}"
            return [f"{message}; {fix}" if fix else message], EXIT_INPUT
    return [f"internal: {type(error).__name__}: {error}; run `probe --debug ...` for the traceback"], EXIT_INTERNAL


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


def name_option(what: str, usual: str = "", **settings: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Add `--name NAME` -> `name: str`, a plain file name for `what`; `settings` go to click.

    Args:
        usual: the default, if it is not a fixed name.
    """

    def check(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
        return value if value is None else plain_name(value, "--name")

    text = f"Name of the {what} inside --out." + (f" Default: {usual}." if usual else "")
    return click.option("--name", callback=check, help=text, **settings)


class MapOption(click.Option):
    """The option `--map TARGET=COLUMN,...` -> `mapping: dict[str, str]`; its help lists the targets."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """List the targets, which only the help imports."""
        from replay_pools.logs.columns import TARGETS

        self.help = f"Name columns that are guessed wrong, or not at all. Targets: {', '.join(TARGETS)}."
        return super().get_help_record(ctx)

    def process_value(self, ctx: click.Context, value: Any) -> dict[str, str]:
        """Parse and merge all occurrences of the option."""
        if not (texts := super().process_value(ctx, value)):  # click's sentinel for an absent option is truthy
            return {}
        from replay_pools.logs.columns import parse_mapping

        return parse_mapping(",".join(texts))


def column_options(function: AnyFunction) -> AnyFunction:
    """Add `--map TARGET=COLUMN,... --format NAME` -> `mapping: dict[str, str], format_name: str | None`."""
    text = "Format of the log. Default: detected."
    function = click.option("--format", "format_name", metavar="FORMAT", help=text)(function)
    return click.option("--map", "mapping", cls=MapOption, multiple=True, metavar="TARGET=COLUMN,...")(function)


def log_options(function: AnyFunction) -> AnyFunction:
    """Add `column_options` and `--completion-limit N --skip-bad N` -> `limit: int | None, skip_bad: int`."""
    text = "Leave out at most N rows that are broken, and say which; with more, import nothing. Default: 0."
    function = click.option("--skip-bad", type=click.IntRange(0), default=0, metavar="N", help=text)(function)
    text = "Tokens at which completions were cut off, where the log does not say it."
    return column_options(click.option("--completion-limit", "limit", type=click.IntRange(1), help=text)(function))


def one_of(names: Sequence[str]) -> Complete:
    """Return a completion for one of `names`, or a file."""

    def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        matching = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return matching or [CompletionItem(incomplete, type="file")]

    return complete


def several_of(names: Callable[[click.Context], Sequence[str]]) -> Complete:
    """Return a completion for the last of several comma-separated names."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given, comma, last = incomplete.rpartition(",")
        left = [name for name in names(ctx) if name.startswith(last) and name not in given.split(",")]
        return [CompletionItem(f"{given}{comma}{name}") for name in left]

    return complete


def known_pools(ctx: click.Context) -> list[str]:
    """Return the names of the pools in OUT/pools and of the bundled pools."""
    from replay_pools.pool import pool_names

    return pool_names(ctx.params.get("out") or DEFAULT_OUT)


def one_pool(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a pool, or a path."""
    return one_of(known_pools(ctx))(ctx, parameter, incomplete)


def one_run(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a run in OUT/runs, or a path."""
    places = (ctx.params.get("out") or DEFAULT_OUT).glob("runs/*/")
    return one_of(sorted(path.name for path in places))(ctx, parameter, incomplete)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a text on stdout or stderr; verbs print everything through this function.

    Parts may come from pools, servers and models, so control characters are escaped and passwords in addresses become
    ***. Newlines and tabs stay, so callers must fold foreign lines first.
    """
    text = visible(without_secrets(text))
    if not (sys.stderr if err else sys.stdout).isatty():
        click.echo(text, err=err)
        return
    from probe.cli._terminal import print_text

    print_text(text, err=err)


def echo_json(value: Any) -> None:
    """Print one strict JSON value (NaN as null) on one line."""
    # JSON strings can escape invisible characters, and a reader restores them.
    text = "".join(json.dumps(part)[1:-1] if is_invisible(part) else part for part in dump_json(value).decode())
    click.echo(without_secrets(text))


def echo_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1) -> None:
    """Print an aligned text table, with the first `left` columns flush left and the others flush right."""
    cells = [[without_secrets(visible(str(cell), kept="")) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        click.echo("\n".join(aligned(header, cells, left)))
        return
    from probe.cli._terminal import print_table

    print_table(header, cells, left)
