"""Tables of evaluations."""

from collections.abc import Sequence

from probe.analysis.training_outcome import RATES
from probe.cli._frame import echo_table
from probe.runs.heldout import ALL, Evaluation, Rate


def echo_evaluations(evaluations: Sequence[Evaluation]) -> None:
    """A row for every evaluation and setting; `all` only where it is not the one setting."""
    rows = []
    for evaluation in evaluations:
        for setting, rates in evaluation.rates.items():
            if setting == ALL and len(evaluation.rates) == 2:
                continue
            found = [_cell(getattr(rates, name)) for name in RATES]
            rows.append([evaluation.step, evaluation.weights, setting, rates.num_rollouts, *found])
    echo_table(("after steps", "weights", "setting", "rollouts", *RATES), rows)


def _cell(rate: Rate) -> str:
    if rate.rate is None or rate.interval is None:
        return "-"
    return f"{rate.rate:.0%} [{rate.interval.low:.0%}, {rate.interval.high:.0%}]"
