"""Shell completion of pools and runs; `probe doctor --completion SHELL` prints the script for a shell.

click completes verbs, options and choices by itself. To complete a parameter by names that only this project knows:
pass `shell_complete=one_of(names)` (or `one_pool`, `one_run`, `several_of(...)`) to its click option or argument.
"""

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from probe.records.root import DEFAULT_OUT

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


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
