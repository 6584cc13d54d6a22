"""Shell completion: of verbs and options by click, of names that only this project knows by the functions here."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def one_of(names: Sequence[str]) -> Complete:
    """One of `names`, or a file."""

    def complete(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]

    return complete


def several_of(names: Callable[[click.Context], Sequence[str]]) -> Complete:
    """Some of the names, with commas between them: the last one is completed."""

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given, comma, last = incomplete.rpartition(",")
        taken = set(given.split(","))
        return [
            CompletionItem(f"{given}{comma}{name}")
            for name in names(ctx)
            if name.startswith(last) and name not in taken
        ]

    return complete


def known_pools(ctx: click.Context) -> list[str]:
    """Pools that a name without a slash finds: those in OUT/pools, and the built-in ones."""
    from replay_pools.pool import pool_names

    return pool_names(ctx.params.get("out") or Path("out"))


def one_pool(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A pool by its name, or a path."""
    return one_of(known_pools(ctx))(ctx, parameter, incomplete)


def one_run(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A run by its name in OUT/runs, or a path."""
    places = (ctx.params.get("out") or Path("out")).glob("runs/*/")
    return one_of(sorted(path.name for path in places))(ctx, parameter, incomplete)
