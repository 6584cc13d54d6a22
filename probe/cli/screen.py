"""probe screen: the remedies of the bench by what one replay forecasts of each, at once or after a lookahead."""

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from probe.cli._frame import echo, echo_json, echo_table, json_option, one_run, out_option
from probe.cli._running import say
from probe.records.run import elsewhere, read_run, resolve_run


@click.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=one_run)
@click.option(
    "--spec", "spec_file", type=click.Path(path_type=Path), help="Of the picks. Default: spec/RUN-screen.toml."
)
@click.option(
    "--lookahead", type=click.IntRange(min=1), help="Steps that every remedy takes first; 40 have a forecast in points."
)
@out_option
@json_option
def screen(run: Path, spec_file: Path | None, lookahead: int | None, out: Path, as_json: bool) -> None:
    """Forecast every remedy of the bench from the replay RUN (a directory, or a name in OUT/runs), and write the spec
    of a training of the best three, with vanilla and a matched control. What this forecast does not see is named, with
    the reason. Reads what the run stored; no model, no torch.

    With --lookahead every remedy takes steps on the stored rollouts from the weights of RUN, and is sampled: half a
    minute each on the organism, once. Then all have a forecast but penalties for leaving a reference.

    Examples:

    \b
      probe screen out/runs/demo
      probe screen out/runs/demo --lookahead 40
    """
    from probe.analysis.evidence import Evidence  # scipy: only for those who ask
    from probe.analysis.screen import best
    from probe.analysis.screen import screen as screened
    from probe.experiments.screen_spec import write_screen_spec
    from probe.settings.remedy import CANDIDATES

    directory = resolve_run(run, out)
    stored, ahead = read_run(directory), None
    if lookahead is not None:
        from probe.runs.screening import look_at_remedies  # torch

        ahead = look_at_remedies(stored, CANDIDATES, lookahead, out_dir=out, say=say)
    evidence = Evidence(stored)
    rows = screened(evidence, CANDIDATES, ahead)
    picks, path = best(rows), None
    if picks:
        path = spec_file or Path("spec") / f"{directory.resolve().name}-screen.toml"
        write_screen_spec(evidence, picks, path, out_dir=out)
    if as_json:
        echo_json({"remedies": [asdict(row) for row in rows], "written": None if path is None else str(path)})
        return
    cells = []
    for row in rows:
        fall = "-"
        if row.fall is not None:
            ends = row.fall.interval
            fall = f"{100 * row.fall.value:.0f} [{100 * ends.low:.0f}, {100 * ends.high:.0f}]"
        shares = ("-" if share is None else share.percent() for share in (row.removed, row.honest))
        cost = [] if ahead is None else ["-" if row.cost is None else f"{row.cost:.2f}"]
        cells.append((row.remedy, row.word, fall, *shares, *cost))
    header = ("remedy", "forecast", "hacks fewer, points [80%]", "removed of hacks", "of honest")
    echo_table((*header, *["CPU of a step, times none's"][: ahead is not None]), cells)
    for why in dict.fromkeys(row.why for row in rows if row.why):
        echo(f"not seen: {', '.join(row.remedy for row in rows if row.why == why)}: {why}")
    if path is None:
        echo("no remedy is forecast to be worth a training; next: probe analyze " + shlex.quote(str(directory)))
    else:
        names = ", ".join(row.remedy for row in picks)
        echo(f"next: read {path} ({names}); then: probe spec sweep {shlex.quote(str(path))}{elsewhere(out)}")
