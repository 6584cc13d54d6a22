"""probe analyze: print the verdict on runs, or the verdict of a spec on the runs of its sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extraction.words import BASES, Basis
from probe.cli._frame import AnyFunction, echo, echo_json, one_run
from probe.cli._settings import verb
from probe.records.run import Run, read_run
from replay_pools.base.errors import InputError

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis

MOST_NAMES = 3  # names of runs in the name of a report


def analysis_options(function: AnyFunction) -> AnyFunction:
    """Add `--seed` and the argument `runs: tuple[Path, ...]`."""
    for option in (
        click.option("--seed", default=0, show_default=True, help="Seed draws, sampled sign flips and bootstraps."),
        click.argument(
            "runs",
            nargs=-1,
            required=True,
            metavar="RUN...|SPEC",
            type=click.Path(path_type=Path),
            shell_complete=one_run,
        ),
    ):
        function = option(function)
    return function


def spec_among(runs: Sequence[Path]) -> Path | None:
    """Return the spec if the only argument is one; None for runs."""
    return runs[0] if len(runs) == 1 and runs[0].suffix == ".toml" else None


def joined_name(runs: Sequence[Run]) -> str:
    """Return a name for output about runs: up to MOST_NAMES joined names, then the number of further runs."""
    names = [run.path.resolve().name for run in runs]
    more = [f"and-{len(names) - MOST_NAMES}-more"] if len(names) > MOST_NAMES else []
    return "-".join([*names[:MOST_NAMES], *more])


@verb()
@analysis_options
@click.option(
    "--basis", type=click.Choice(BASES), help="Judge the arms of RUN in this basis. Default: vanilla's, if it ran."
)
@click.option("--full", is_flag=True, help="Print all caveats, and the measures, nulls and tables behind the verdict.")
@click.option(
    "--check", is_flag=True, help="Exit with 1 on BROKEN, SKIP, CONFOUNDED or GENERIC (SPEC: when the primary is FAIL)."
)
@click.option("--write", is_flag=True, help="Write the Results into the .md file of SPEC.")
@click.pass_context
def analyze(
    ctx: click.Context,
    runs: tuple[Path, ...],
    seed: int,
    basis: Basis | None,
    full: bool,
    check: bool,
    write: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Verdict, reasons and next command of each RUN (a directory, or a name in OUT/runs), or every criterion and the
    decision of SPEC (spec/NAME.toml) on the runs of its sweep. Training runs of several arms or settings are compared
    with the first vanilla among them. Reads what the runs stored; no model, no torch.

    Examples:

      probe analyze out/runs/demo --full

      probe analyze both-bases --basis lora

      probe analyze spec/experiments/phase2.toml --write
    """
    settings = {"seed": seed}
    spec_file = spec_among(runs)
    if spec_file is not None:
        failed = _spec(spec_file, out, settings, write, as_json)
    else:
        if write:
            fix = "for the text of runs: probe analyze RUN --full > FILE"
            raise InputError("--write", expected="a SPEC, whose .md file has Results", found="runs", fix=fix)
        failed = _runs(runs, out, settings | {"basis": basis}, full, as_json)
    if check and failed:
        ctx.exit(1)


def analyses_of(runs: Sequence[Run], settings: Mapping[str, Any]) -> "list[Analysis]":
    """Analyse each run under each of its conditions; `settings` as for `analyze`."""
    from probe.analysis.analyze import analyze as analyze_run
    from probe.analysis.analyze import conditions

    wanted = [(run, condition) for run in runs for condition in conditions(run) or [None]]
    return [analyze_run(run, condition, others=runs, **settings) for run, condition in wanted]


def _runs(runs: tuple[Path, ...], out: Path, settings: dict[str, Any], full: bool, as_json: bool) -> bool:
    """Print the analysis of every run under every condition; return whether a verdict contradicts a GO."""
    from probe.analysis.formatting import wrap  # imports scipy, so only on demand
    from probe.analysis.horizon import cautions_of
    from probe.analysis.text_report import format_analysis, format_verdict
    from probe.analysis.verdict.trained import judge_arms
    from probe.analysis.verdict.trained_arms import grouped
    from probe.analysis.verdict.verdict import Verdict, arm_lines

    analyses = analyses_of([read_run(run, out) for run in runs], settings)
    arms: list[Verdict] = []
    cautions: list[str] = []
    if len(runs) > 1 and (trained := grouped(analyses)) is not None:
        arms = judge_arms(trained)
        cautions = cautions_of((trained.baseline, *trained.treated), trained.baseline)
    noted = [line for caution in cautions for line in wrap(f"- {caution}", indent="  ")]
    compared = "\n".join([*arm_lines(arms), *noted]) + "\n" if arms else ""
    if as_json:
        objects = [analysis.to_json() for analysis in analyses]
        # One analysis is printed as an object, several as a list, compared trainings as an object with their verdicts.
        together = {"arms": [asdict(arm) for arm in arms], "cautions": cautions, "runs": objects}
        echo_json(together if arms else objects[0] if len(objects) == 1 else objects)
    else:
        if arms:
            echo(compared)
        for analysis in analyses:
            # In a comparison, a single training says little: print it with --full, or if its verdict is not TRAINED.
            if full or not arms or analysis.verdict.word != "TRAINED":
                echo(format_analysis(analysis) if full else format_verdict(analysis))
    return any(analysis.failed for analysis in analyses)


def _spec(spec_file: Path, out: Path, settings: dict[str, Any], write: bool, as_json: bool) -> bool:
    """Print the verdict of a spec, and write it with --write; return whether its primary criterion failed."""
    from probe.experiments.load import load_spec
    from probe.experiments.outcomes import write_outcomes
    from probe.experiments.verdict import evaluate_spec
    from probe.experiments.written import format_text, write_results

    spec, written = load_spec(spec_file), []
    verdict = evaluate_spec(spec, out, **settings)
    if write:
        written = [write_results(verdict, spec_file)]
        written += [write_outcomes(spec, out)] if spec.settings["verb"] == "train" else []
    if as_json:
        echo_json(verdict.to_json())
    else:
        echo(format_text(verdict))
        for path in written:
            echo(f"written: {path}")
    return verdict.primary == "FAIL"
