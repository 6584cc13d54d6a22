"""The picture of README: what a lookahead forecasts for a remedy, beside what its trainings became.

python spec/studies/foretell/forecasts.py    # writes forecasts.svg from the study's table and those of pages
"""

import re
import sys
from pathlib import Path

import numpy as np

from probe.report.drawing import ARMS, CLEAN, EDGE, HACK, INK, RULE, Axes, drawn, set_height

sys.path.insert(0, str(Path(__file__).parent))
from points import AHEAD, ELSEWHERE, PLAIN_RATE, fall_ahead

HERE = Path(__file__).parent
PAGES = HERE.parent
Points = list[tuple[float, float]]  # (x, fall as a share of the hack rate without a remedy)


def of_page(page: str, heading: str, rate: float) -> tuple[Points, Points]:
    """(without a penalty, with one) of the table below a heading: name, x, forecast, interval, points that it fell."""
    text = (PAGES / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)`[^|]*\| (-?[\d.]+) \|[^|]*\|[^|]*\| (-?\d+) \|", text, flags=re.MULTILINE)
    points = [("kl" in name, (float(x), float(fell) / rate)) for name, x, fell in rows]
    return [point for has_penalty, point in points if not has_penalty], [point for has, point in points if has]


def draw(axes: Axes, groups: dict[str, tuple[str, str, Points]]) -> None:
    """Forecast against fall; on the diagonal a forecast is right, in the band it is inside its 80% interval."""
    said = fall_ahead(0.5, rate=1.0)
    half = said.value - said.interval.low
    ends = np.array([-0.2, 1.2])
    axes.fill_between(ends, ends - half, ends + half, color=RULE, alpha=0.6, lw=0, label="80% interval")
    axes.plot(ends, ends, color=EDGE, lw=1)
    for name, (marker, color, points) in groups.items():
        forecast = [fall_ahead(x, rate=1.0).value for x, _ in points]
        axes.plot(forecast, [fell for _, fell in points], marker, color=color, mfc="none", ms=5, ls="none", label=name)
    axes.set(xlim=(-0.06, 1.06), ylim=(-0.34, 1.1))
    axes.set(xlabel="forecast fall of the hack rate, share of vanilla's", ylabel="fall in training, share of vanilla's")
    axes.set_title("Where the forecast holds")
    set_height(axes, 4.0)


def main() -> None:
    """Write the picture."""
    bench = [(x, fall / PLAIN_RATE) for x, fall in AHEAD.values()]
    hard, more = of_page("untrained/untrained.md", "Results: the known rows of the hard base", 77)
    second, most = of_page("untrained/untrained.md", "Results: the known rows of the second organism", 66)
    new, others = of_page("untrained/untrained.md", "Results: the twelve", 41)
    alone, _ = of_page("alone/alone.md", "Results", 76)
    _, of_bench = of_page("remedies/remedies.md", "One replay that foretells every row", 100 * PLAIN_RATE)
    groups = {
        "the bench, which it was fitted to": ("o", INK, bench),
        "other problems and pairs (foretell-2), fitted too": ("s", CLEAN, [*ELSEWHERE.values()]),
        "remedies that nobody had trained": ("D", ARMS[1], new),
        "two other models (hard-base, second-organism)": ("^", INK, hard + second),
        "a hack that emerges by itself (alone)": ("v", ARMS[2], alone),
        "KL penalties, not seen by it": ("x", HACK, of_bench + more + most + others),
    }
    if (figure := drawn("forecasts", draw, groups)) is not None:
        figure.save(HERE, "svg")


if __name__ == "__main__":
    main()
