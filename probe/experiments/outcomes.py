"""The outcomes of a training spec as one table, small enough to commit next to the spec.

    spec, condition, arm, seed, problem, hack, solve, step

A row is one held-out problem in one evaluation of one run: its hack rate and solve rate under the deployed weights. The
table keeps the first and the last evaluation of each run. Every published rate can be recomputed from these rows
(`read_outcomes`) without the runs.
"""

import csv
import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from probe.analysis.training_runs import deployed, rates_by_problem
from probe.experiments.jobs import run_jobs
from probe.experiments.spec import Spec
from probe.records.run import read_run
from replay_pools.base.errors import InputError
from replay_pools.base.files import write_atomic

OUTCOMES_FILE = "outcomes.csv"  # in the spec's folder; all specs of the folder share it


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Outcome:
    """One row of the table."""

    spec: str
    condition: str
    arm: str
    seed: int
    problem: str
    hack: float  # rate over the problem's rollouts, 0 to 1
    solve: float
    step: int  # optimizer steps before the evaluation


COLUMNS = [field.name for field in fields(Outcome)]


def outcomes_of(spec: Spec, out_dir: Path) -> list[Outcome]:
    """Return the outcomes of the complete trainings of `spec` in `out_dir`, sorted."""
    rows = []
    for job in run_jobs(spec, out_dir):
        evaluations = deployed(read_run(job.directory).evals) if job.complete else []
        for step in {evaluation["step"] for evaluation in (*evaluations[:1], *evaluations[-1:])}:
            for problem, rates in rates_by_problem(job.directory, step).items():
                rows.append(
                    Outcome(
                        spec=spec.name,
                        condition=job.conditions[0],
                        arm=job.arms[0],
                        seed=int(job.config.seed),
                        problem=problem,
                        hack=rates["hack"][0],
                        solve=rates["solve"][0],
                        step=step,
                    )
                )
    return sorted(rows)


def write_outcomes(spec: Spec, out_dir: Path) -> Path:
    """Write the outcomes of `spec` into the table in its folder, and return the table's path.

    Rows of runs in `out_dir` are replaced. Other rows stay, because their runs may be gone.
    """
    path, outcomes = spec.path.parent / OUTCOMES_FILE, outcomes_of(spec, out_dir)
    made = {_run_of(row) for row in outcomes}
    others = [row for row in read_outcomes(path) if _run_of(row) not in made] if path.is_file() else []
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([asdict(row) for row in sorted([*others, *outcomes])])
    write_atomic(path, text.getvalue().encode())
    return path


def _run_of(row: Outcome) -> tuple[str, str, str, int]:
    return row.spec, row.condition, row.arm, row.seed


def read_outcomes(path: Path) -> list[Outcome]:
    """Read a table of outcomes.

    Raises:
        InputError: unexpected columns, or a value that is no number; the error names the line.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if (found := reader.fieldnames or []) != COLUMNS:
            raise InputError(path, expected=f"the columns {', '.join(COLUMNS)}", found=", ".join(found))
        rows = list(reader)
    try:
        return TypeAdapter(list[Outcome]).validate_python(rows)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{path} line {int(first['loc'][0]) + 2}"  # +2: the header, and counting from 1
        raise InputError(where, expected="numbers", found=repr(first["input"])) from error
