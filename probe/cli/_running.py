"""Output about a run: trackers, previews, results and warnings."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from probe.analysis.formatting import rate_text, shown
from probe.cli._frame import Table, Text, one_of, say
from probe.records.idle import idle_settings
from probe.records.run import Run
from probe.records.timings import describe_timings
from probe.records.tracking import TRACKERS
from probe.settings.words import ALL
from replay_pools.base.errors import InputError, refuse

# `track: tuple[str, ...]`, empty by default
track_option = one_of("--track", TRACKERS, "Show the records in a tracker (out/tracking/); repeatable.", multiple=True)


def check_names(pools: Sequence[str], pairs: str, out: Path) -> None:
    """Refuse pools and built-in pairs that do not exist before torch is imported, which takes seconds."""
    from extraction.pairs import is_builtin, load_pairs
    from replay_pools.pool import resolve_pool

    checks = [partial(resolve_pool, name, out) for name in pools]
    errors: list[InputError] = []
    for check in [*checks, partial(load_pairs, pairs)] if is_builtin(pairs) else checks:
        try:
            check()
        except InputError as error:
            errors.append(error)
    refuse(errors)


def ended(run: Run) -> Iterator[str]:
    """Yield why a run stopped early, its warnings and idle settings; say its times and peak memory."""
    if reason := run.manifest["stopped"]:
        yield f"STOPPED after {len({step.step for step in run.steps})} steps: {reason}"
    for warning in run.manifest["warnings"]:
        yield f"WARNING: {warning}"
    for sentence in idle_settings(run):
        yield f"caution: {sentence}"
    say(describe_timings(run.path))


def previewed(preview: Mapping[str, Any]) -> Text:
    """Yield a preview as text; return it."""
    yield f"{preview['path']}: {preview['state']}"
    yield ", ".join(f"{count:,} {what}" for what, count in preview["work"].items())
    peak = "-" if preview["peak_gib"] is None else f"{preview['peak_gib']:.3g} GiB"
    yield f"hours: {shown(preview['hours'], '.3g')}, peak memory: {peak}; {preview['measured']}"
    yield f"model {preview['model']}: {preview['adapted'].caution or preview['adapted']}"
    yield "nothing was written"
    return preview


def evaluation_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row for every evaluation and setting; `all` only with several settings."""
    from probe.analysis.training_runs import RATES

    rows = []
    for evaluation in evaluations:
        for setting, rates in evaluation["rates"].items():
            if setting == ALL and len(evaluation["rates"]) == 2:
                continue
            cells = [rate_text(rates[name]) for name in RATES]
            rows.append([evaluation["step"], evaluation["weights"], setting, rates["num_rollouts"], *cells])
    return Table(("after steps", "weights", "setting", "rollouts", *RATES), rows)
