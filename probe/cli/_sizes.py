"""What a run would do and need, as tables: for `probe plan`, and for `--dry-run`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from probe.cli._frame import echo_json, echo_table

if TYPE_CHECKING:
    from probe.runs.footprint import Footprint
    from probe.runs.preview import Preview

GIB = 2**30


def echo_preview(found: "Preview", as_json: bool) -> None:
    """A preview, as text or JSON."""
    if as_json:
        echo_json(found.to_json())
        return
    echo_work(found.path, found.state, found.work)
    echo_footprint(found.footprint)
    click.echo("\nnothing was written")


def echo_work(path: str, state: str, work: Mapping[str, int]) -> None:
    """Where something would be written, how far it is, and how much it is."""
    click.echo(f"{path}: {state}")
    click.echo(", ".join(f"{count:,} {what}" for what, count in work.items()))


def echo_footprint(found: "Footprint") -> None:
    """The adapted modules of a model; sizes and their sum. Nothing where no model is known."""
    if found.model is None:
        return
    count, share = sum(row.modules for row in found.modules), sum(row.share for row in found.modules)
    click.echo(f"\nAdapted in {found.model}: {count} modules, {share:.0%} of the weights")
    cells = [
        (row.projection, row.modules, f"{row.shape[0]} x {row.shape[1]}", f"{row.share:.1%}") for row in found.modules
    ]
    echo_table(("projection", "modules", "d_out x d_in", "of the weights"), cells)
    click.echo("\nMemory beside activations, which depend on the lengths of the rollouts")
    sizes = [(row.what, _size(row.num_bytes)) for row in found.memory]
    echo_table(("", "size"), [*sizes, ("sum", _size(found.num_bytes))])


def _size(num_bytes: int) -> str:
    """MiB below one GiB."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes * 1024 / GIB:.2f} MiB"
