"""Judge a training spec by its table of outcomes, without its runs.

    python spec/tools/judge_outcomes.py spec/studies/methods/methods.toml

`probe analyze SPEC` needs the runs. `outcomes.csv`, which a sweep writes next to its spec, holds enough for criteria on
rates: seeds and held-out problems, with the interval that `probe analyze` prints (`statistics.crossed`). So every
decision that rests on rates alone can be recomputed from what is shipped. A cell is an arm under a condition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.crossed import Cells, Spread, common_spread, compare, rate
from probe.analysis.statistics.thresholds import MIN_SEEDS
from probe.analysis.verdict.verdict import Finding
from probe.experiments.criteria import evaluate
from probe.experiments.outcomes import OUTCOMES_FILE, Outcome, read_outcomes
from probe.experiments.spec import Spec, SpecDecision
from probe.experiments.spec_file import load_spec
from probe.runs.sources.problems import eval_settings
from probe.settings.verbs import TrainConfig

Cell = tuple[str, str]  # (condition, arm)
RATES = {"hack_final": "hack", "solve_final": "solve"}  # estimates that the table has


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The outcomes of one spec after each run's last step: {cell: {seed: outcomes, by problem}}."""

    spec: Spec
    final: Mapping[Cell, Mapping[int, Sequence[Outcome]]]

    def cells(self, cell: Cell, name: str, *, whole: bool = False) -> Cells:
        """Return a rate (`hack`, `solve`) by seed and problem; by seed alone if `whole`."""
        runs = [[getattr(row, name) for row in rows] for rows in self.final[cell].values()]
        config = self.spec.condition(cell[0]).config
        assert isinstance(config, TrainConfig)
        asked = len(eval_settings(config)) * config.evaluation.rollouts_per_problem
        trials = sum(map(len, runs)) * asked
        return rate([[sum(run) / len(run)] for run in runs] if whole else runs, trials)

    def spread(self, name: str) -> Spread | None:
        """Return the variation of a rate between seeds, estimated from all cells."""
        return common_spread(self.cells(cell, name, whole=True) for cell in self.final)


def read_table(spec: Spec) -> Table:
    """Read the table next to the spec; problems are in one order in every run."""
    runs: dict[tuple[Cell, int], list[Outcome]] = {}
    for row in read_outcomes(spec.path.parent / OUTCOMES_FILE):
        if row.spec == spec.name:
            runs.setdefault(((row.condition, row.arm), row.seed), []).append(row)
    final: dict[Cell, dict[int, list[Outcome]]] = {}
    for (cell, seed), rows in sorted(runs.items()):
        last = max(row.step for row in rows)
        final.setdefault(cell, {})[seed] = sorted(
            (row for row in rows if row.step == last), key=lambda row: row.problem
        )
    return Table(spec=spec, final=final)


def measured(table: Table, estimate: str, sides: Sequence[Cell]) -> Estimate:
    """Return a rate of one cell, or of the first minus the second, as `probe.analysis.measures` measures it."""
    seeds = min(len(table.final.get(cell, ())) for cell in sides)
    if estimate not in RATES or seeds < MIN_SEEDS:
        why = f"{seeds} seeds; a rate needs {MIN_SEEDS}" if estimate in RATES else "not in the table"
        return Estimate(name=estimate, unit="seed", n=seeds, why=why)
    name = RATES[estimate]
    if len(sides) == 1:
        found = compare(table.cells(sides[0], name))
    else:
        left, right = (replace(table.cells(one, name), keeps_own=one == table.spec.baseline) for one in sides)
        found = compare(left, right, common=table.spread(name))
    assert found is not None
    return found.bounded(name=estimate)


def judged(table: Table) -> tuple[list[Finding], SpecDecision | None]:
    """Return the finding of each criterion, and the decision; None if it needs more than criteria on rates."""
    findings = []
    for criterion in table.spec.criteria:
        findings.append(evaluate(criterion, measured(table, criterion.estimate, criterion.sides)))
    words = {finding.name: str(finding.says) for finding in findings}
    needed = {name for decision in table.spec.decisions for name in decision.requires}
    return findings, table.spec.decide(words) if needed <= words.keys() else None


@click.command()
@click.argument("spec_file", metavar="SPEC", type=click.Path(exists=True, path_type=Path))
def main(spec_file: Path) -> None:
    """Print rates by cell, every criterion, and the decision."""
    spec = load_spec(spec_file)
    table = read_table(spec)
    for (condition, arm), runs in table.final.items():
        means = [
            [f"{100 * sum(getattr(row, name) for row in run) / len(run):.0f}" for run in runs.values()]
            for name in RATES.values()
        ]
        click.echo(f"{condition} / {arm}: hack {' '.join(means[0])}; solve {' '.join(means[1])}")
    findings, decision = judged(table)
    for finding in findings:
        click.echo(f"{finding.says}: {finding.name}: {finding.text}")
    done, planned = sum(map(len, table.final.values())), sum(len(one.arms) * len(one.seeds) for one in spec.conditions)
    if done < planned:
        click.echo(f"no decision: {done} of {planned} runs")
    else:
        click.echo(f"decision: {decision.name}" if decision else "decision: needs the runs")


if __name__ == "__main__":
    main()
