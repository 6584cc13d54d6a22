"""Figures of a run: a forest plot per family of estimates, cosines by label, and the map of modules.

Functions draw(axes, analysis) draw nothing without measurements. To draw another family, add a row to FORESTS.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap
from scipy.special import ndtr

from probe.analysis.analyze import Analysis
from probe.analysis.cosines import HAAR
from probe.analysis.estimate import Estimate
from probe.analysis.families import FAMILIES
from probe.analysis.formatting import short
from probe.analysis.statistics.intervals import prompt_means, t_interval
from probe.analysis.statistics.nulls import NORMAL_975
from probe.analysis.verdict.decision import SCORE_NAMES
from probe.report.analyses import label_of, samples_of, slug
from probe.report.drawing import CLEAN, EDGE, HACK, INK, PAPER, SOFT, Figure, drawn, set_height
from probe.report.facts import plural, signed

QUESTIONS = {  # the number behind each question of the verdict
    "hackward": "alignment (1: held-out hacks)",
    "about": "hacks minus honest answers (1: held-out pairs)",
    "removable": "gain that projection removes (1: all of it)",
}
REMOVED = {
    "removed/margin": "gain on held-out hacks",
    "removed/hacks": "gain on these rollouts' hacks",
    "removed/honest": "gain on honest solutions",
    "removed/norm": "norm of the update",
}
MARKS = 200  # per figure; more prompts are thinned evenly
ROW = 0.37  # inches for a row of marks below its label
STANDS_OUT = 0.05  # Bonferroni over modules
# Opacity shows the size, so that the colours are those of the page.
SIGNED = LinearSegmentedColormap.from_list(
    "signed", [(0, (CLEAN, 1)), (0.5, (CLEAN, 0.04)), (0.5, (HACK, 0.04)), (1, (HACK, 1))], N=21
)
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")


class Row(NamedTuple):
    """An estimate of a forest plot."""

    label: str
    note: str  # its numbers
    estimate: Estimate
    band: tuple[float, float] | None = None  # without a signal
    threshold: float | None = None  # to exceed


class Forest(NamedTuple):
    """How a family of estimates is drawn."""

    title: str
    xlabel: str
    null: str = ""  # legend of the band
    centre: float = 0.0  # value without a signal
    names: Mapping[str, str] = {}  # {estimate: its label}; all others by their own names
    limits: tuple[float, float] = (
        -math.inf,
        math.inf,
    )  # what lies beyond is cut, and an arrow marks it


ANSWERS = Forest("The answers in numbers", "estimate and 95% interval", limits=(-0.5, 1.5))
FORESTS: Mapping[str, Forest] = {
    "cos_in": Forest(
        "Does the update point toward the hack?",
        "mean cosine of the gradient with v_hack, before projection, 95%",
        "95% of random directions",
    ),
    "auroc": Forest(
        "Does v_hack separate hacks better than simple scores?",
        "AUROC for hacks among rewarded rollouts, 95% (0.5: chance)",
        centre=0.5,
        names={"v_hack": "v_hack", **SCORE_NAMES, "nll": "low likelihood"},
    ),
    "removed": Forest(
        "What would projection remove?",
        "share removed, 95%",
        "up to the 95th percentile of norm-matched shuffled pairs",
        names=REMOVED,
        limits=(-1.0, 2.0),  # a share of nearly nothing has an interval without end
    ),
    "ceilings": Forest(
        "Does v_hack transfer to held-out kinds of hack?", "mean cosine of a kind with v_hack of the others, 95%"
    ),
}


def forest(axes: Axes, rows: Sequence[Row], shown_as: Forest) -> None:
    """Draw a row for each estimate, with its label above its marks; no line crosses a label."""
    limits = shown_as.limits
    axes.set(title=shown_as.title, xlabel=shown_as.xlabel)
    known = [row for row in rows if row.estimate.value is not None]
    for place, (label, note, row, band, threshold) in enumerate(known):
        low, value, high = row.span
        if band is not None:
            band = np.clip(band, *limits)
            axes.plot(band, (place, place), color=EDGE, alpha=0.35, lw=8, solid_capstyle="butt", label=shown_as.null)
        if threshold is not None:
            axes.plot([threshold], [place], "|", color=HACK, ms=9, mew=2, ls="none", label="threshold")
        if row.interval is not None:
            axes.plot(np.clip((low, high), *limits), (place, place), color=INK, lw=2)
            cut = ((limits[0], "<", low < limits[0] <= value), (limits[1], ">", value <= limits[1] < high))
            for end, marker, is_cut in cut:
                if is_cut:
                    axes.plot([end], [place], marker, color=INK, ms=5, ls="none")
        marker = "<" if value < limits[0] else ">" if value > limits[1] else "o"
        axes.plot([np.clip(value, *limits)], [place], marker, color=INK, ls="none")
        _write_row(axes, place, label, note)
    _rows_of(axes, len(known), shown_as.centre)


def answers(axes: Axes, analysis: Analysis) -> None:
    """Draw the number behind each question of the verdict."""
    rows = []
    for finding in analysis.verdict.asked:
        number = finding.number
        if number is not None and finding.counts_from is not None:
            note = format(number, ".0%" if finding.name == "removable" else ".2f")
            rows.append(Row(QUESTIONS[finding.name], note, number, threshold=finding.counts_from))
    forest(axes, rows, ANSWERS)
    if rows:
        axes.set_xlim(-0.56, 1.56)


def family(axes: Axes, analyses: Sequence[Analysis], name: str) -> None:
    """Draw the estimates of one family; of several analyses, each row names its run."""
    shown_as, rows = FORESTS[name], []
    for analysis in analyses:
        for row in analysis.of(name):
            label = shown_as.names.get(row.name, row.arm if name == "cos_in" else row.name) or row.name
            if len(analyses) > 1:
                label = f"{label_of(analysis)} \u00b7 {label}"
            rows.append(Row(label, format(row, FAMILIES[name].form), row, band=_band(analysis, name, row)))
    forest(axes, rows, shown_as)


def _band(analysis: Analysis, name: str, row: Estimate) -> tuple[float, float] | None:
    """Return what an estimate would be without a signal: central 95%, or from the mean to the 95th percentile."""
    if name == "cos_in" and (test := analysis.get("nulls", f"cos_in, {HAAR}", row.arm)).parts:
        half = NORMAL_975 * test.parts["sd"]
        return (test.null or 0.0) - half, (test.null or 0.0) + half
    if row.null is not None and (top := row.parts.get("q95")) is not None:
        return row.null, top
    return None


def distribution(axes: Axes, analysis: Analysis) -> None:
    """Draw one mark per prompt for each (source, label), with the mean over prompts and its 95% interval below."""
    samples = [sample for sample in samples_of(analysis) if sample.sure and sample.cos_S_contrib is not None]
    rows = []
    for pool in sorted({sample.src_pool for sample in samples}):
        for hacked, word, color in ((True, "hacks", HACK), (False, "other rollouts", CLEAN)):
            bucket = [sample for sample in samples if (sample.src_pool, sample.hacked) == (pool, hacked)]
            values = [sample.cos_S_contrib or 0.0 for sample in bucket]
            means = list(prompt_means(values, [sample.problem_id for sample in bucket]).values())
            if means:
                rows.append((f"{short(pool, 18)} \u00b7 {word}", means, len(bucket), word, color))
    for place, (label, means, num_rollouts, word, color) in enumerate(rows):
        shown = sorted(means)[:: math.ceil(len(means) * len(rows) / MARKS)]
        heights = [place + 0.07 * (i % 3 - 1) for i in range(len(shown))]  # equal values would hide one another
        axes.plot(shown, heights, "o", color=color, alpha=0.7, mew=0, ls="none", label=f"{word} of a prompt")
        interval, mean = t_interval(means), sum(means) / len(means)
        if interval is not None:
            axes.plot((interval.low, interval.high), (place + 0.3,) * 2, color=INK, lw=2)
        axes.plot([mean], [place + 0.3], "o", color=INK, ms=4, ls="none", label="mean of prompts, 95%")
        units = f"{plural(len(means), 'prompt')}, {plural(num_rollouts, 'rollout')}"
        _write_row(axes, place, label, f"{signed(mean)} \u00b7 {units}")
    xlabel = "cosine of a rollout's part of the update with v_hack"
    axes.set(title="Which rollouts push the update toward the hack?", xlabel=xlabel)
    _rows_of(axes, len(rows), 0.0, 1.35 * ROW)


def module_map(axes: Axes, analysis: Analysis) -> None:
    """Draw z of every module under shuffled labels, with a colour bar; the title says what stands out."""
    if not (rows := analysis.of("modules")):
        return
    places = {row.name: layer_and_kind(row.name) for row in rows}
    layers = sorted({layer for layer, _ in places.values()})
    kinds = list(dict.fromkeys(kind for _, kind in places.values()))
    largest = max(abs(row.parts["z"]) for row in rows) or 1.0
    z = np.full((len(kinds), len(layers)), np.nan)
    for row in rows:
        layer, kind = places[row.name]
        z[kinds.index(kind), layers.index(layer)] = row.parts["z"]
    mesh = axes.pcolormesh(z, cmap=SIGNED, vmin=-largest, vmax=largest, edgecolors=PAPER, lw=1)
    strong = [row.name for row in rows if 2 * ndtr(-abs(row.parts["z"])) * len(rows) < STANDS_OUT]
    what = f"{plural(len(strong), 'module')} of {len(rows)} stand out" if strong else "No module stands out"
    axes.set(title=f"Where in the network? {what}", xlabel="layer", ylabel="module")
    stride = math.ceil(len(layers) / 14)
    axes.set_xticks(np.arange(0, len(layers), stride) + 0.5, [str(layer) for layer in layers[::stride]])
    axes.set_yticks(np.arange(len(kinds)) + 0.5, kinds)
    axes.invert_yaxis()
    axes.grid(visible=False)
    set_height(axes, 1.3 + 0.22 * len(kinds))
    bar = Colorbar(axes.inset_axes((1.04, 0, 0.05, 1)), mesh, ticks=(-largest, 0, largest), format="{x:.1f}")
    bar.set_label("z under shuffled pairs", rotation=270, labelpad=12)


def layer_and_kind(module: str) -> tuple[int, str]:
    """Return the first number of a dotted path (-1 without one) and its last part."""
    match = _LAYER.search(module)
    return (int(match[1]) if match else -1), module.rpartition(".")[2]


# {section of the page: function from an analysis to (file name, draw, data) for each figure}
FIGURES: dict[str, Callable[[Analysis], Iterable[tuple[Any, ...]]]] = {
    "verdict": lambda analysis: [("answers", answers, analysis)],
    "estimates": lambda analysis: [
        ("alignment", family, [analysis], "cos_in"),
        ("auroc", family, [analysis], "auroc"),
        ("removed", family, [analysis], "removed"),
        ("kinds", family, [analysis], "ceilings"),
        ("distribution", distribution, analysis),
        ("modules", module_map, analysis),
    ],
}


def figures_of(analysis: Analysis, section: str) -> list[Figure]:
    """Return the figures of an analysis in one section of the page."""
    of = "--".join(map(slug, label_of(analysis).split(" / ")))  # run, or run--condition
    figures = [drawn(f"{name}-{of}", draw, *data) for name, draw, *data in FIGURES[section](analysis)]
    return [figure for figure in figures if figure is not None]


def _write_row(axes: Axes, place: float, label: str, note: str) -> None:
    """Write the label of a row at the left and its numbers at the right, above the marks."""
    settings: dict[str, Any] = {"textcoords": "offset points", "xycoords": axes.get_yaxis_transform(), "fontsize": 8.5}
    axes.annotate(short(label, 48), (0, place), (0, 7), **settings)
    axes.annotate(note, (1, place), (0, 7), ha="right", color=SOFT, **settings)


def _rows_of(axes: Axes, count: int, centre: float, row: float = ROW) -> None:
    """Set up axes for `count` labelled rows; each has a mark at `centre` below its label."""
    if not count:
        return
    places = np.arange(count)
    axes.vlines(np.full(count, centre), places - 0.12, places + 0.3, color=EDGE, lw=1, zorder=1)
    axes.grid(visible=False)
    axes.set_ylim(count - 0.45, -0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    set_height(axes, 0.85 + row * count)
