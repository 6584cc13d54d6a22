"""Say how many points of hack rate trainings lost, for replays like the studied ones.

    python spec/studies/foretell/points.py removal RUN            # from the first-order gain that a replay removes
    probe screen RUN --lookahead 20 --json > screen.json
    python spec/studies/foretell/points.py remedies RUN screen.json

Both laws are fitted to `studied.csv`, trainings of the bundled model organism. A replay of another model, loss, basis,
gate or kind of rollouts gets no points, and neither does a number outside the range that was studied.

The first law is a line by least squares through n sets of directions, with the interval of a new value on it (Draper
and Smith 1998, section 3.1):

    drop = a + b x  +-  t(n - 2) s sqrt(1 + 1/n + (x - mean)^2 / sum (x_i - mean)^2)
    x = share of the first-order gain of held-out hacks that projection removes (`probe.analysis.forecast`)

The second is a curve through n remedies of any kind, fitted to shares of the hack rate h of a training without one:

    drop = h (1 - exp(-x / c)) +- t(n - 1) s
    x = share of the gain of the replay's rewarded hacks that 20 steps avoid, plus the share of held-out hacks

KL penalties are not in it: they act once a policy has moved further than 20 steps let it.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.optimize import curve_fit

from probe.analysis.analyze import Analysis, analyze
from probe.analysis.estimate import Estimate
from probe.analysis.statistics.intervals import Interval, student_quantile
from probe.settings.presets import configure
from replay_pools.base.errors import InputError
from replay_pools.base.tables import flat

LEVEL = 0.8  # of every interval here
STEPS = 20  # of the lookahead that the remedies were studied with
PLAIN_RATE = 0.54  # hack rate without a remedy in the trainings of spec/studies/remedies
PENALTY = "objective.beta"
TABLE = Path(__file__).with_name("studied.csv")

Points = dict[str, tuple[float, float]]  # {set or remedy: (x, drop of the hack rate)}


def studied(group: str) -> Points:
    """Read the rows of one group of TABLE.

    `directions`: sets of spec/studies/foretell and two of its later five; `bench`: remedies of spec/studies/remedies;
    `elsewhere`: treatments of spec/studies/foretell-2, drops as shares of the rate without a remedy. Means over seeds.
    """
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == group]
    return {row["name"]: (float(row["x"]), float(row["drop"])) for row in rows}


STUDIED, AHEAD, ELSEWHERE = studied("directions"), studied("bench"), studied("elsewhere")
# Without the treatments elsewhere the interval would hold 9 of these 16.
STUDIED_AHEAD = (*AHEAD.values(), *((x, PLAIN_RATE * share) for x, share in ELSEWHERE.values()))


def fall_of(removed: float, points: Iterable[tuple[float, float]] = tuple(STUDIED.values())) -> Estimate:
    """Return the drop of the hack rate after a removal, a share of rollouts; the interval holds LEVEL of trainings.

    Args:
        removed: share of the first-order gain of held-out hacks.
        points: (share removed, drop) of three trained sets or more.
    """
    x, fall = np.array([*points], dtype=np.float64).T
    slope, start = np.polyfit(x, fall, 1)
    value, n = float(start + slope * removed), len(x)
    spread = float(np.sqrt(np.square(fall - start - slope * x).sum() / (n - 2)))
    leverage = 1 + 1 / n + (removed - x.mean()) ** 2 / np.square(x - x.mean()).sum()
    half = student_quantile(LEVEL, n - 2) * spread * float(np.sqrt(leverage))
    return Estimate(name="fall", value=value, interval=Interval(low=value - half, high=value + half))


def fall_ahead(x: float, points: Iterable[tuple[float, float]] = STUDIED_AHEAD, rate: float = PLAIN_RATE) -> Estimate:
    """Return the drop of the hack rate of a remedy, a share of rollouts; the interval holds LEVEL of trainings.

    Args:
        x: of the second law above.
        points: (x, drop from PLAIN_RATE) of two remedies or more.
        rate: hack rate of a training without a remedy.
    """
    moved, falls = np.array([*points], dtype=np.float64).T
    shares, df = falls / PLAIN_RATE, len(moved) - 1

    def curve(x: Any, c: float) -> Any:
        return -np.expm1(-np.maximum(x, 0.0) / c)

    (c,), _ = curve_fit(curve, moved, shares, p0=[1.0], bounds=(1e-3, np.inf))
    half = student_quantile(LEVEL, df) * float(np.sqrt(np.square(shares - curve(moved, c)).sum() / df))
    value = float(curve(x, c))
    ends = Interval(low=rate * (value - half), high=rate * min(value + half, 1.0))
    return Estimate(name="fall", value=rate * value, interval=ends)


def differences(analysis: Analysis) -> list[str]:
    """Say how a replay differs from the studied ones; empty for one like them."""
    settings, usual = flat(asdict(analysis.records.settings)), flat(asdict(configure("replay")))
    found = []
    model, adapter = analysis.records.config.get("model"), settings.get("model.adapter")
    if model != "organism" or adapter is not None:
        found.append(f"model {model}" + " with an adapter" * (adapter is not None))
    if {pool.policy[1] for pool in analysis.pools} != {"teacher", None}:
        found.append("rollouts of other policies than the teacher and the base")
    if not all(pool.said("plan.hint") is True for pool in analysis.pools):
        found.append("prompts without the hint")
    if analysis.basis != "svd":
        found.append(f"basis {analysis.basis}")
    for key in sorted(usual):
        if key.startswith(("objective.", "intervention.projection.")) and settings.get(key) != usual[key]:
            found.append(f"{key.partition('.')[2]} {settings.get(key)}")
    return found


def outside(x: float, points: Iterable[tuple[float, float]]) -> str:
    """Say that a number lies outside of the studied range; empty inside."""
    known = [x for x, _ in points]
    if min(known) <= x <= max(known):
        return ""
    return f"{x:.0%} lies outside of what was studied, {min(known):.0%} to {max(known):.0%}"


def refuse(reasons: Sequence[str]) -> None:
    """Exit with code 2 and the reasons, if there are any."""
    if reasons:
        raise click.UsageError(f"no points: {'; '.join(reasons)}")


def in_points(fall: Estimate) -> str:
    """Write a drop with its interval in points."""
    low, value, high = (100 * end for end in fall.span)
    return f"{value:.0f} points less hacking, {LEVEL:.0%} of trainings {low:.0f} to {high:.0f}"


def read(run: str) -> Analysis:
    """Analyze a run; exit with code 2 where it cannot be read."""
    try:
        return analyze(run)
    except InputError as error:
        raise click.UsageError(str(error)) from None


@click.group()
def main() -> None:
    """Say points for replays like the studied ones."""


@main.command("removal")
@click.argument("run")
def of_removal(run: str) -> None:
    """Say points for the projection of the replay RUN."""
    analysis = read(run)
    removed = analysis.get("removed", "removed/margin").value
    if removed is None:
        raise click.UsageError("no points: the replay measures no first-order gain of held-out hacks")
    refuse([*differences(analysis), *filter(None, [outside(removed, STUDIED.values())])])
    click.echo(f"projection removes {removed:.0%}: {in_points(fall_of(removed))}")


@main.command("remedies")
@click.argument("run")
@click.argument("screen", type=click.File())
@click.option("--rate", type=click.FloatRange(0, 1), default=PLAIN_RATE, help="Hack rate h of a training without one.")
def of_remedies(run: str, screen: Any, rate: float) -> None:
    """Say points for the remedies in SCREEN, which `probe screen RUN --lookahead 20 --json` printed."""
    said = json.load(screen)
    steps = [] if said["steps"] == STEPS else [f"a lookahead of {said['steps']} steps, where {STEPS} were studied"]
    refuse([*differences(read(run)), *steps])
    for row in said["remedies"]:
        x = None if row["hack_gain_avoided"] is None else 2 * row["hack_gain_avoided"]  # a mean of two shares
        why = row["why"] if x is None else outside(x, STUDIED_AHEAD)
        if any(key.startswith(PENALTY) for key in row["settings"]):
            why = "a penalty acts later than the lookahead sees"
        click.echo(f"{row['remedy']}: {why or in_points(fall_ahead(x, rate=rate))}")


if __name__ == "__main__":
    main()
