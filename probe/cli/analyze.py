"""probe analyze: what the records of runs say, in tables and plain words."""

from pathlib import Path

import click

from probe.cli._frame import echo_json, json_option
from probe.runs import read_run


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--seed", default=0, show_default=True, help="Of sampled sign flips and bootstraps.")
@json_option
def analyze(runs: tuple[Path, ...], seed: int, as_json: bool) -> None:
    """Tables, nulls and checks of each RUN (a directory), conclusions first, condition by condition.

    Reads records only; no model, no torch.

    Example:  probe analyze out/runs/replay
    """
    from probe.analysis.analyze import analyze as analyze_run  # scipy: only for those who ask
    from probe.analysis.analyze import conditions
    from probe.analysis.tables import format_analysis

    analyses = [analyze_run(run, own, seed=seed) for run in map(read_run, runs) for own in conditions(run)]
    if as_json:
        echo_json(analyses[0].to_json() if len(analyses) == 1 else [analysis.to_json() for analysis in analyses])
        return
    for analysis in analyses:
        click.echo(format_analysis(analysis))
