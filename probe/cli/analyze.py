"""probe analyze: print the verdict on runs, or the verdict of a spec on the runs of its sweep."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from extraction.settings import BASES, Basis
from probe.cli._frame import Checked, Text, one_of
from probe.cli._settings import verb
from probe.records.run import Run, read_run
from replay_pools.base.errors import InputError

if TYPE_CHECKING:
    from probe.analysis.analyze import Analysis


runs_argument = click.argument("runs", nargs=-1, required=True, metavar="RUN...|SPEC", type=click.Path(path_type=Path))


def spec_among(runs: Sequence[Path]) -> Path | None:
    """Return the spec if the only argument is one; None for runs."""
    return runs[0] if len(runs) == 1 and runs[0].suffix == ".toml" else None


@verb()
@runs_argument
@one_of("--basis", BASES, "Judge the arms of RUN in this basis. Default: vanilla's, if it ran.")
@click.option("--full", is_flag=True, help="Print all caveats, and the measures, nulls and tables behind the verdict.")
@click.option(
    "--check", is_flag=True, help="Exit with 1 on BROKEN, SKIP, CONFOUNDED or GENERIC (SPEC: when the primary is FAIL)."
)
@click.option("--write", is_flag=True, help="Write the Results into the .md file of SPEC.")
def analyze(runs: tuple[Path, ...], basis: Basis | None, full: bool, check: bool, write: bool, out: Path) -> Text:
    """Verdict, reasons and next command of each RUN (a directory, or a name in OUT/runs), or every criterion and the
    decision of SPEC (spec/NAME.toml) on the runs of its sweep. Training runs of several arms or settings are compared
    with the first vanilla among them. Reads what the runs stored; no model, no torch.

    Examples:

      probe analyze out/runs/demo --full

      probe analyze both-bases --basis lora

      probe analyze spec/experiments/phase2.toml --write
    """
    spec_file = spec_among(runs)
    if spec_file is not None:
        value, failed = yield from _spec(spec_file, out, write)
    elif write:
        fix = "for the text of runs: probe analyze RUN --full > FILE"
        raise InputError("--write", expected="a SPEC, whose .md file has Results", found="runs", fix=fix)
    else:
        value, failed = yield from _runs(runs, out, full, basis)
    return Checked(value, check and failed)


def analyses_of(runs: Sequence[Run], basis: Basis | None = None) -> "list[Analysis]":
    """Analyse each run under each of its conditions; `basis` as for `analyze`."""
    from probe.analysis.analyze import analyze as analyze_run
    from probe.analysis.analyze import conditions

    wanted = [(run, condition) for run in runs for condition in conditions(run) or [None]]
    return [analyze_run(run, condition, others=runs, basis=basis) for run, condition in wanted]


def _runs(paths: Sequence[Path], out: Path, full: bool, basis: Basis | None) -> Text:
    """Yield the analysis of every run under every condition; fail if a verdict contradicts a GO."""
    from probe.analysis.formatting import wrap
    from probe.analysis.text_report import format_analysis, format_verdict
    from probe.analysis.verdict.verdict import Verdict, arm_lines

    analyses = analyses_of(runs := [read_run(path, out) for path in paths], basis)
    arms: list[Verdict] = []
    cautions: list[str] = []
    if len(runs) > 1:
        from probe.analysis.horizon import cautions_of
        from probe.analysis.verdict.outcome import judge_arms
        from probe.analysis.verdict.trained_arms import grouped

        if (trained := grouped(analyses)) is not None:
            arms = judge_arms(trained)
            cautions = cautions_of((trained.baseline, *trained.treated), trained.baseline)
    if arms:
        noted = [line for caution in cautions for line in wrap(f"- {caution}", indent="  ")]
        yield "\n".join([*arm_lines(arms), *noted]) + "\n"
    for analysis in analyses:
        # In a comparison, a single training says little: print it with --full, or if its verdict is not TRAINED.
        if full or not arms or analysis.verdict.word != "TRAINED":
            yield format_analysis(analysis) if full else format_verdict(analysis)

    def found() -> Any:
        """One analysis is an object, several are a list, compared trainings an object with their verdicts."""
        objects = [analysis.to_json() for analysis in analyses]
        together = {"arms": [asdict(arm) for arm in arms], "cautions": cautions, "runs": objects}
        return together if arms else objects[0] if len(objects) == 1 else objects

    return Checked(found, any(analysis.failed for analysis in analyses))


def _spec(spec_file: Path, out: Path, write: bool) -> Text:
    """Yield the verdict of a spec, and write it with `write`; fail if its primary criterion did."""
    from probe.experiments.judge import evaluate_spec
    from probe.experiments.outcomes import write_outcomes
    from probe.experiments.register import write_results
    from probe.experiments.spec_file import load_spec

    spec = load_spec(spec_file)
    verdict = evaluate_spec(spec, out)
    yield str(verdict)
    if write:
        yield f"written: {write_results(verdict)}"
        if spec.trains:
            yield f"written: {write_outcomes(spec, out)}"
    return Checked(verdict.to_json, verdict.verdict.finding(spec.primary.name).says == "FAIL")
