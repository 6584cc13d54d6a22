"""probe screen: the remedies of the bench by what one replay forecasts of each, at once or after a lookahead."""

import math
import shlex
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import click

from probe.cli._frame import echo, echo_json, echo_table, json_option, one_run, out_option
from probe.cli._running import say
from probe.records.run import elsewhere, read_run, resolve_run

if TYPE_CHECKING:
    from probe.analysis.statistics.intervals import Bounded


@click.command()
@click.argument("run", type=click.Path(path_type=Path), shell_complete=one_run)
@click.option(
    "--spec", "spec_file", type=click.Path(path_type=Path), help="Of the picks. Default: spec/RUN-screen.toml."
)
@click.option(
    "--lookahead", type=click.IntRange(min=1), help="Steps that every remedy takes first; 20 have a forecast in points."
)
@click.option(
    "--remedies", type=click.Path(path_type=Path), help="A spec whose conditions are screened.  [default: the bench's]"
)
@out_option
@json_option
def screen(
    run: Path, spec_file: Path | None, lookahead: int | None, remedies: Path | None, out: Path, as_json: bool
) -> None:
    """Forecast every remedy of the bench from the replay RUN (a directory, or a name in OUT/runs), and write the spec
    of a training of the best three, with vanilla and a matched control. What this forecast does not see is named, with
    the reason. Reads what the run stored; no model, no torch.

    With --lookahead every remedy takes steps on the stored rollouts from the weights of RUN: some seconds each on the
    organism, once. Then all have a forecast but penalties for leaving a reference; CPU is that of their steps, as a
    multiple of none's. On another model they are RANKED, without points. With --remedies the forecasts stand beside
    what the trainings of that spec became, so far as they are complete, at the rate to which vanilla hacks there.

    Examples:

    \b
      probe screen out/runs/demo
      probe screen out/runs/demo --lookahead 20
    """
    from probe.analysis.evidence import Evidence  # scipy: only for those who ask
    from probe.analysis.screen import NOT_SEEN, RANKED, SKIP, best, held_against
    from probe.analysis.screen import screen as screened
    from probe.experiments.screen_spec import read_candidates, trained_remedies, write_screen_spec
    from probe.settings.remedy import CANDIDATES

    directory = resolve_run(run, out)
    candidates = CANDIDATES if remedies is None else read_candidates(remedies)
    stored, ahead = read_run(directory), None
    if lookahead is not None:
        from probe.runs.screening import look_at_remedies  # torch

        ahead = look_at_remedies(stored, candidates, lookahead, out_dir=out, say=say)
    evidence = Evidence(stored)
    rows = screened(evidence, candidates, ahead)
    if remedies is not None:
        rows = held_against(rows, *trained_remedies(remedies, out))
    picks, path = best(rows), None
    if picks:
        of = "" if remedies is None else f"-{remedies.stem}"
        path = spec_file or Path("spec") / f"{directory.resolve().name}{of}-screen.toml"
        write_screen_spec(evidence, picks, path, out_dir=out)
    if as_json:
        echo_json({"remedies": [asdict(row) for row in rows], "written": None if path is None else str(path)})
        return
    cells = []
    trained = [row.trained for row in rows if row.trained is not None]
    header = ["remedy", "forecast", "hacks fewer, points [80%]"]
    header += ["removed of hacks", "of honest"] if ahead is None else ["hacks moved less", "honest gain, nats", "CPU"]
    header += ["by the law here", "fell (seeds)", "solve fell"] if trained else []
    for row in rows:
        first_order = ("-" if share is None else share.percent() for share in (row.removed, row.honest))
        moved = ("-" if one is None else f"{one:.2f}" for one in (row.moved, row.honest_gain, row.cost))
        became = ["-"] * 3 * bool(trained)
        if row.trained is not None:
            fell, solve_fell = (f"{100 * rate:.0f}" for rate in (row.trained.fell, row.trained.solve_fell))
            became = [_points(row.trained.said), f"{fell} ({row.trained.seeds})", solve_fell]
        cells.append((row.remedy, row.word, _points(row.fall), *(first_order if ahead is None else moved), *became))
    echo_table(header, cells)
    if held := [(row.said, row.fell) for row in trained if row.said is not None]:
        error = math.sqrt(fmean((said.value - fell) ** 2 for said, fell in held))
        inside = sum(said.interval.low <= fell <= said.interval.high for said, fell in held)
        echo(f"trained: {inside} of {len(held)} inside the law's 80%; root mean square error {100 * error:.0f} points")
    for word, why in dict.fromkeys((row.word, row.why) for row in rows if row.why):
        names = ", ".join(row.remedy for row in rows if (row.word, row.why) == (word, why))
        said = {RANKED: "ranked without points", SKIP: "skipped", NOT_SEEN: "not seen"}[word]
        echo(f"{said}: {names}: {why}")
    if path is None:
        echo("no remedy is forecast to be worth a training; next: probe analyze " + shlex.quote(str(directory)))
    else:
        names = ", ".join(row.remedy for row in picks)
        echo(f"next: read {path} ({names}); then: probe spec sweep {shlex.quote(str(path))}{elsewhere(out)}")


def _points(fall: "Bounded | None") -> str:
    if fall is None:
        return "-"
    low, high = (100 * end for end in (fall.interval.low, fall.interval.high))
    return f"{100 * fall.value:.0f} [{low:.0f}, {high:.0f}]"
