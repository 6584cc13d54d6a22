"""Figures of a run: functions draw(axes, analysis) that draw nothing without measurements.

To add one, write such a function and add a row to FIGURES under its section of the page.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from probe.analysis.analyze import Analysis
from probe.analysis.cosines import HAAR, HACK_DIFFERENCE, METRICS, Cell, Metric
from probe.analysis.estimate import Estimate
from probe.analysis.formatting import p_value, short
from probe.analysis.statistics.intervals import Interval, prompt_means, t_interval
from probe.analysis.statistics.nulls import NORMAL_975
from probe.analysis.statistics.permutation import N2
from probe.report.drawing import CLEAN, EDGE, HACK, INK, PAPER, SOFT, Figure, drawn, set_height
from probe.report.facts import plural, signed
from probe.report.inputs import label_of, samples_of, slug
from probe.settings.arms import ARMS

DIRECTIONS = {
    "v_hack": "v_hack",
    "haar": "Haar directions",
    "permuted": "permuted labels",
    "flipped": "flipped pairs",
    "placebo": "placebo pairs",
}
SHARES = {  # the quantity behind each question
    "hackward": "alignment (1 = held-out hacks)",
    "about": "contrast: hacks minus honest answers",
    "removable": "removed by projection, of the gain",
}
MARKS = 200  # per figure; more prompts or steps are thinned evenly
ROW = 0.37  # inches for a row of marks below its label
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")


class Row(NamedTuple):
    """One estimate of a forest plot."""

    label: str
    note: str  # the numbers, at the right of the label
    value: float | None
    interval: Interval | None = None
    null: tuple[float, float] | None = None  # central 95% of the null
    strong: bool = True  # True: the measurement, False: a comparison
    counts_from: float | None = None  # threshold from which the value matters


def forest(
    axes: Axes, rows: Sequence[Row], *, centre: float = 0.0, null: str = "", strong: str = "", weak: str = ""
) -> None:
    """Draw a row for each estimate, with its label above its marks; `centre` is the value of no effect."""
    known = [(row, row.value) for row in rows if row.value is not None]
    for place, (row, value) in enumerate(known):
        if row.null is not None:
            axes.plot(row.null, (place, place), color=EDGE, alpha=0.35, lw=8, solid_capstyle="butt", label=null)
        if row.counts_from is not None:
            axes.plot([row.counts_from], [place], "|", color=HACK, ms=13, mew=2, ls="none", label="counts from here on")
        if row.interval is not None:
            axes.plot((row.interval.low, row.interval.high), (place, place), color=INK, lw=2)
        face, label = (INK, strong) if row.strong else (PAPER, weak)
        axes.plot([value], [place], "o", color=INK, mfc=face, label=label, ls="none")
        _write_row(axes, place, row.label, row.note)
    _rows_of(axes, len(known), centre)


def answers(axes: Axes, analysis: Analysis) -> None:
    """Draw the share behind each question of the verdict; interval ends are clipped to the axis."""
    rows = []
    for finding in analysis.verdict.asked:
        number = finding.number
        if number is not None and finding.counts_from is not None:
            low, value, high = np.clip(number.span, -0.5, 1.5)
            note = format(number, ".0%" if finding.name == "removable" else ".2f")
            within = Interval(low=float(low), high=float(high))
            rows.append(Row(SHARES[finding.name], note, float(value), within, None, True, finding.counts_from))
    axes.set_title("The answers in numbers")
    axes.set_xlabel("share (0: none, 1: all that held-out hacks read or gain)")
    forest(axes, rows, strong="measured, with its 95% interval")
    if rows:
        axes.set_xlim(-0.56, 1.56)


def alignment(axes: Axes, analyses: Sequence[Analysis]) -> None:
    """Draw mean cos_in of every arm against Haar directions; a single analysis also against shuffled pairs."""
    rows = []
    for analysis in analyses:
        for arm in analysis.of("cos_in"):
            label = f"{label_of(analysis)} \u00b7 {arm.arm}" if len(analyses) > 1 else str(arm.arm)
            note = f"{signed(arm.value)} \u00b7 {plural(arm.n, 'prompt')}"
            band = _band(analysis.get("nulls", f"cos_in, {HAAR}", arm.arm))
            rows.append(Row(label, note, arm.value, arm.interval, band, arm.arm == analysis.measured_arm))
        permuted = analysis.get("nulls", f"cos_in, {N2}") if len(analyses) == 1 else None
        if permuted is not None:
            rows.append(Row(N2, f"p {p_value(permuted.p)}", permuted.value, null=_band(permuted)))
    axes.set_title("Does the gradient point along the direction?")
    axes.set_xlabel("mean cos_in over prompts, 95% (\u2192 toward the hack)")
    forest(axes, rows, null="95% of the null (of an arm: Haar)", strong="measured arm", weak="other arms")


def _band(test: Estimate | None) -> tuple[float, float] | None:
    """Return the central 95% of a null."""
    if test is None or test.null is None:
        return None
    half = NORMAL_975 * test.parts["sd"]
    return test.null - half, test.null + half


def contrasts(axes: Axes, analysis: Analysis) -> None:
    """Draw the mean within-prompt difference of every arm."""
    rows = []
    for contrast in (row for row in analysis.of("contrasts") if row.name == HACK_DIFFERENCE):
        note = f"{signed(contrast.value)} \u00b7 p {p_value(contrast.p)}"
        band = _band(analysis.get("nulls", f"{HACK_DIFFERENCE}, {HAAR}", contrast.arm))
        is_measured = contrast.arm == analysis.measured_arm
        rows.append(Row(str(contrast.arm), note, contrast.value, contrast.interval, band, is_measured))
    axes.set_title("Do hacks point further toward the hack?")
    axes.set_xlabel("hacks minus clean answers, cosines within prompts, A > 0, 95%")
    forest(axes, rows, null="95% of Haar directions", strong="measured arm", weak="other arms")


def areas(axes: Axes, analysis: Analysis) -> None:
    """Draw the AUROC for hacked among A > 0: the cosine, and the direction-free scores that it has to beat."""
    rows = [
        Row(row.name, format(row), row.value, row.interval, strong=not i) for i, row in enumerate(analysis.of("auroc"))
    ]
    axes.set_title("Does the cosine beat scores without a direction?")
    axes.set_xlabel("AUROC for hacked, A > 0, 95% (0.5: chance)")
    forest(axes, rows, centre=0.5, strong="v_hack", weak="what it must beat")


def distribution(axes: Axes, analysis: Analysis, metric: Metric) -> None:
    """Draw one mark per prompt for each (source, label), with the mean over prompts and its 95% interval below."""
    samples = [sample for sample in samples_of(analysis) if sample.sure and getattr(sample, metric) is not None]
    rows = []
    for pool in sorted({sample.src_pool for sample in samples}):
        for hacked, word, color in ((True, "hacked", HACK), (False, "clean", CLEAN)):
            bucket = [sample for sample in samples if (sample.src_pool, sample.hacked) == (pool, hacked)]
            values = [getattr(sample, metric) for sample in bucket]
            means = list(prompt_means(values, [sample.problem_id for sample in bucket]).values())
            if means:
                rows.append((f"{short(pool, 18)} \u00b7 {word}", means, len(bucket), word, color))
    for place, (label, means, num_rollouts, word, color) in enumerate(rows):
        shown = sorted(means)[:: math.ceil(len(means) * len(rows) / MARKS)]
        heights = [place + 0.07 * (i % 3 - 1) for i in range(len(shown))]  # equal values would hide one another
        axes.plot(shown, heights, "o", color=color, alpha=0.7, mew=0, ls="none", label=f"{word}: a prompt")
        interval, mean = t_interval(means), sum(means) / len(means)
        if interval is not None:
            axes.plot((interval.low, interval.high), (place + 0.3,) * 2, color=INK, lw=2)
        axes.plot([mean], [place + 0.3], "o", color=INK, ms=4, ls="none", label="mean of prompts, 95%")
        units = f"{plural(len(means), 'prompt')}, {plural(num_rollouts, 'rollout')}"
        _write_row(axes, place, label, f"{signed(mean)} \u00b7 {units}")
    axes.set_title("Contributions to the update" if metric == "cos_S_contrib" else "Gradients of likelihood")
    sign = "sign of A included" if metric == "cos_S_contrib" else "no advantage in it"
    axes.set_xlabel(f"{metric} ({sign})")
    _rows_of(axes, len(rows), 0.0, 1.35 * ROW)


def cells(axes: Axes, analysis: Analysis) -> None:
    """Draw each cell's additive part of the gradient toward the hack, and their sum last. A = 0 contributes nothing."""
    paid = [cell for cell in analysis.cells if cell.advantage_sign]
    if not paid:
        return
    rows = [(_labels(cell), cell.dot, cell.n, HACK if cell.dot > 0 else CLEAN) for cell in paid]
    rows.append(("all together", sum(cell.dot for cell in paid), sum(cell.n for cell in paid), INK))
    for place, (label, value, num_rollouts, color) in enumerate(rows):
        axes.barh(place, value, 0.3, color=color)
        _write_row(axes, place, label, plural(num_rollouts, "rollout"))
    axes.set_title("Which rollouts carry the gradient?")
    axes.set_xlabel("sum of cosine \u00d7 gradient norm (\u2192 toward the hack)")
    _rows_of(axes, len(rows), 0.0)


def module_map(axes: Axes, analysis: Analysis) -> None:
    """Draw the z of every module under shuffled labels."""
    rows = analysis.of("modules")
    if not rows:
        return
    places = {row.name: layer_and_kind(row.name) for row in rows}
    layers = sorted({layer for layer, _ in places.values()})
    kinds = list(dict.fromkeys(kind for _, kind in places.values()))
    largest = max(abs(row.parts["z"]) for row in rows) or 1.0
    for row in rows:
        (layer, kind), z = places[row.name], row.parts["z"]
        side, name = (HACK, "toward the hack") if z > 0 else (CLEAN, "away from it")
        axes.bar(
            layers.index(layer),
            *(1, 1, kinds.index(kind) - 0.5),
            color=(side, max(0.05, abs(z) / largest)),
            edgecolor=PAPER,
            linewidth=1,
            label=f"{name}, full at |z| = {largest:.1f}",
        )
    stride = math.ceil(len(layers) / 14)
    axes.set_xticks(range(0, len(layers), stride), [str(layer) for layer in layers[::stride]])
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_title("Where in the network? z under permuted labels")
    axes.set(xlabel="layer (number)", ylabel="module (type)")
    set_height(axes, 0.9 + 0.22 * len(kinds))


def layer_and_kind(module: str) -> tuple[int, str]:
    """Return the first number of a dotted path (-1 without one) and its last part."""
    match = _LAYER.search(module)
    return (int(match[1]) if match else -1), module.rpartition(".")[2]


def trajectory(axes: Axes, analysis: Analysis, arm: str) -> None:
    """Draw cos_in and cos_out of one arm by step, over the central 95% of Haar directions; a cross has no gradient."""
    steps = [step for step in analysis.steps if step.arm == arm]
    steps = steps[:: math.ceil(len(steps) / MARKS) or 1]
    known = [step for step in steps if step.cos_in is not None and step.cos_out is not None]
    if not steps:
        return
    xs, half = [step.step for step in steps], [NORMAL_975 * (step.haar_sd or 0.0) for step in steps]
    if any(half):
        settings: dict[str, Any] = {"step": "mid", "color": EDGE, "alpha": 0.3, "lw": 0}
        axes.fill_between(xs, np.negative(half), half, label="95% of Haar", **settings)
    at, before, after = ([getattr(step, name) for step in known] for name in ("step", "cos_in", "cos_out"))
    if analysis.trains:  # join the steps; with frozen weights their order means nothing
        updates = [(step.step, step.cos_update) for step in steps if step.cos_update is not None]
        axes.plot(*zip(*updates, strict=True) if updates else ((), ()), "--", color=SOFT, lw=1.3, label="of the update")
        axes.plot(at, before, color=INK, label="cos_in")
        axes.plot(at, after, color=INK, lw=1, alpha=0.4, label="cos_out")
    else:
        axes.vlines(at, before, after, color=EDGE, lw=1)
        if before != after:
            axes.plot(at, after, "o", color=INK, mfc=PAPER, ms=4, ls="none", label="cos_out")
        axes.plot(at, before, "o", color=INK, ms=4, ls="none", label="cos_in")
    nothing = [step.step for step in steps if step.cos_in is None]
    if nothing:
        axes.plot(
            nothing, [0.02] * len(nothing), "x", color=SOFT, transform=axes.get_xaxis_transform(), label="no gradient"
        )
    # The arms of a run share one axis, so they can be compared by eye.
    values = [
        cosine
        for step in analysis.steps
        for cosine in (step.cos_in, step.cos_out, step.cos_update)
        if cosine is not None
    ]
    low, high = min([*values, -max(half)]), max([*values, max(half)])
    axes.set_ylim(low - 0.06 * (high - low) - 1e-9, high + 0.06 * (high - low) + 1e-9)
    axes.axhline(0, color=EDGE, lw=1)
    row = ARMS.get(arm)
    along = "" if row is None else f" along {DIRECTIONS[row.directions]} ({row.basis})"
    axes.set_title(f"{arm}: cosine by step{along}")
    axes.set(xlabel="step (number)", ylabel="cosine")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


# {section of the page: function from an analysis to (file name, draw, data) for each figure}
FIGURES: dict[str, Callable[[Analysis], Iterable[tuple[Any, ...]]]] = {
    "verdict": lambda analysis: [("answers", answers, analysis)],
    "measures": lambda analysis: [("alignment", alignment, [analysis])],
    "trajectories": lambda analysis: [(f"trajectory-{arm}", trajectory, analysis, arm) for arm in analysis.arms],
    "distributions": lambda analysis: [
        *((metric, distribution, analysis, metric) for metric in METRICS),
        ("contrasts", contrasts, analysis),
        ("auroc", areas, analysis),
        ("cells", cells, analysis),
    ],
    "modules": lambda analysis: [("modules", module_map, analysis)],
}


def figures_of(analysis: Analysis, section: str) -> list[Figure]:
    """Return the figures of an analysis in one section of the page."""
    of = "--".join(map(slug, label_of(analysis).split(" / ")))  # run, or run--condition
    figures = [drawn(f"{name}-{of}", draw, *data) for name, draw, *data in FIGURES[section](analysis)]
    return [figure for figure in figures if figure is not None]


def _write_row(axes: Axes, place: float, label: str, note: str) -> None:
    """Write the label of a row at the left and its numbers at the right, above the marks."""
    settings: dict[str, Any] = {"textcoords": "offset points", "xycoords": axes.get_yaxis_transform(), "fontsize": 8.5}
    settings["bbox"] = {"fc": PAPER, "ec": "none", "pad": 1}
    axes.annotate(short(label, 44), (0, place), (0, 7), **settings)
    axes.annotate(note, (1, place), (0, 7), ha="right", color=SOFT, **settings)


def _rows_of(axes: Axes, count: int, centre: float, row: float = ROW) -> None:
    """Set up axes for `count` labelled rows, with a line at `centre`."""
    if not count:
        return
    axes.axvline(centre, color=EDGE, lw=1, zorder=1)
    axes.set_ylim(count - 0.45, -0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    set_height(axes, 0.85 + row * count)


def _labels(cell: Cell) -> str:
    """Describe a cell: `teacher, hint, hacked, right, A > 0`."""
    hacked = {True: "hacked", False: "clean", None: "hack unknown"}[cell.hacked]
    right = {True: "right", False: "wrong", None: "correctness unknown"}[cell.gt_pass]
    hint = ["hint"] if cell.hint else []
    return ", ".join([short(cell.src_pool, 14), *hint, hacked, right, "A > 0" if cell.advantage_sign == 1 else "A < 0"])
