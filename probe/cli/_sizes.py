"""What a run would do and need, as tables: for `probe plan`, and for `--dry-run`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from probe.cli._frame import echo_json, echo_table

if TYPE_CHECKING:
    from probe.coverage import Coverage
    from probe.memory import Memory
    from probe.preview import Preview

GIB = 2**30


def echo_preview(found: "Preview", as_json: bool) -> None:
    """A preview, as text or JSON."""
    if as_json:
        echo_json(found.to_json())
        return
    click.echo(f"{found.path}: {found.state}")
    click.echo(", ".join(f"{count:,} {what}" for what, count in found.work.items()))
    echo_coverage(found.model, found.modules)
    echo_memory(found.memory)
    click.echo("\nnothing was written")


def echo_coverage(model: str, rows: Sequence["Coverage"]) -> None:
    """The adapted modules of a model."""
    count, share = sum(row.modules for row in rows), sum(row.share for row in rows)
    click.echo(f"\nAdapted in {model}: {count} modules, {share:.0%} of the weights")
    cells = [(row.projection, row.modules, f"{row.shape[0]} x {row.shape[1]}", f"{row.share:.1%}") for row in rows]
    echo_table(("projection", "modules", "d_out x d_in", "of the weights"), cells)


def echo_memory(rows: Sequence["Memory"]) -> None:
    """Sizes, and their sum."""
    click.echo("\nMemory beside activations, which depend on the lengths of the rollouts")
    cells = [(row.what, _size(row.num_bytes)) for row in rows]
    echo_table(("", "size"), [*cells, ("sum", _size(sum(row.num_bytes for row in rows)))])


def _size(num_bytes: int) -> str:
    """MiB below one GiB."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes * 1024 / GIB:.2f} MiB"
