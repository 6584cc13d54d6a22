"""The outcomes of a training spec as one table, small enough to commit next to the spec.

    spec, condition, arm, seed, problem, hack, solve, step

A row is one held-out problem in one evaluation of one run: its hack rate and solve rate under the deployed weights. The
table keeps the first and the last evaluation of each run. Every published rate can be recomputed from these rows
(`read_outcomes`) without the runs.
"""

import csv
import io
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from probe.analysis.training_runs import deployed, rates_by_problem
from probe.experiments.jobs import run_jobs
from probe.experiments.spec import Spec
from probe.records.run import read_run
from replay_pools.base.errors import InputError
from replay_pools.base.files import write_atomic

OUTCOMES_FILE = "outcomes.csv"  # in the spec's folder; all specs of the folder share it


class Outcome(NamedTuple):
    """One row of the table."""

    spec: str
    condition: str
    arm: str
    seed: int
    problem: str
    hack: float  # rate over the problem's rollouts, 0 to 1
    solve: float
    step: int  # optimizer steps before the evaluation


def write_outcomes(spec: Spec, out_dir: Path) -> Path:
    """Write the outcomes of the complete trainings of `spec` into the table in its folder; return the table's path.

    Rows of runs in `out_dir` are replaced. Other rows stay, because their runs may be gone.
    """
    path, made = spec.path.parent / OUTCOMES_FILE, list[Outcome]()
    for job in (job for job in run_jobs(spec, out_dir) if job.complete):
        evaluations = deployed(read_run(job.directory).evals)
        for step in {evaluation["step"] for evaluation in (*evaluations[:1], *evaluations[-1:])}:
            for problem, rates in rates_by_problem(job.directory, step).items():
                cell = spec.name, job.conditions[0], job.arms[0], job.config.seed
                made.append(Outcome(*cell, problem, rates["hack"][0], rates["solve"][0], step))
    replaced = {row[:4] for row in made}
    others = [row for row in read_outcomes(path) if row[:4] not in replaced] if path.is_file() else []
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([Outcome._fields, *sorted([*others, *made])])
    write_atomic(path, text.getvalue().encode())
    return path


def read_outcomes(path: Path) -> list[Outcome]:
    """Read a table of outcomes.

    Raises:
        InputError: other columns, or a value that is no number; the error names the line.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    try:
        return TypeAdapter(list[Outcome]).validate_python(rows)
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{path} line {int(first['loc'][0]) + 2}"  # +2: the header, and counting from 1
        expected = f"{', '.join(Outcome._fields)}, with numbers"
        raise InputError(where, expected=expected, found=repr(first["input"])) from error
