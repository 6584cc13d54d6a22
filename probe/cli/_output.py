"""What several verbs print: previews and footprints of runs, held-out rates, means over steps, rounding."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probe.cli._frame import echo, echo_json, echo_table
from probe.records.records import StepRecord
from probe.settings.words import ALL

if TYPE_CHECKING:  # numpy, scipy and torch: a help text needs none of them
    from probe.runs.footprint import Footprint, Preview

GIB = 2**30


def mean_of(steps: Sequence[StepRecord], column: str) -> float | None:
    """The mean of a field over the steps that have it."""
    values = [value for step in steps if (value := getattr(step, column)) is not None]
    return sum(values) / len(values) if values else None


def echo_preview(preview: "Preview", as_json: bool) -> None:
    """A preview, as text or JSON."""
    if as_json:
        echo_json(preview.to_json())
        return
    echo_work(preview.path, preview.state, preview.work)
    echo_footprint(preview.footprint)
    echo("\nnothing was written")


def echo_work(path: str, state: str, work: Mapping[str, int]) -> None:
    """Where something would be written, how far it is, and how much it is."""
    echo(f"{path}: {state}")
    echo(", ".join(f"{count:,} {what}" for what, count in work.items()))


def echo_footprint(footprint: "Footprint | None") -> None:
    """The adapted modules of a model; sizes and their sum. Nothing where no model is known."""
    if footprint is None:
        return
    count, share = sum(row.modules for row in footprint.modules), sum(row.share for row in footprint.modules)
    echo(f"\nAdapted in {footprint.model}: {count} modules, {share:.0%} of the weights")
    cells = [
        (row.projection, row.modules, f"{row.shape[0]} x {row.shape[1]}", f"{row.share:.1%}")
        for row in footprint.modules
    ]
    echo_table(("projection", "modules", "d_out x d_in", "of the weights"), cells)
    echo("\nMemory, of a first run that finds nothing in the caches")
    memory = footprint.memory | {"sum": sum(footprint.memory.values())}
    echo_table(("", "size"), [(what, _size(num_bytes)) for what, num_bytes in memory.items()])


def _size(num_bytes: int) -> str:
    """MiB below one GiB."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes * 1024 / GIB:.2f} MiB"


def echo_evaluations(evaluations: Sequence[Mapping[str, Any]]) -> None:
    """A row for every evaluation and setting; `all` only where it is not the one setting."""
    from probe.analysis.training_runs import RATES

    rows = []
    for evaluation in evaluations:
        for setting, rates in evaluation["rates"].items():
            if setting == ALL and len(evaluation["rates"]) == 2:
                continue
            cells = [_cell(rates[name]) for name in RATES]
            rows.append([evaluation["step"], evaluation["weights"], setting, rates["num_rollouts"], *cells])
    echo_table(("after steps", "weights", "setting", "rollouts", *RATES), rows)


def _cell(rate: Mapping[str, Any]) -> str:
    interval = rate["interval"]
    return "-" if interval is None else f"{rate['rate']:.0%} [{interval['low']:.0%}, {interval['high']:.0%}]"


def rounding_line(basis: str, rounding: dict[str, Any]) -> str:
    """What `Coordinates.rounding` measured, for a reader."""
    error = rounding["cosine_error"]
    return (
        f"factors of {basis} in {rounding['storage']}: orthonormal up to {rounding['orthonormality']:.1e}; cosine of a "
        f"module's trial gradient with the exact one 1 - {error['median']:.1e} (median), 1 - {error['max']:.1e} (worst)"
    )
