"""The figures of a run: functions draw(axes, analysis) that draw nothing where nothing was measured.

To add one: write such a function, and add its row to FIGURES under the section of the page that shows it.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from probe.analysis.analyze import Analysis
from probe.analysis.cosines import METRICS, Cell, Metric
from probe.analysis.formatting import p_value, short
from probe.analysis.metrics import MetricKey
from probe.analysis.statistics.intervals import Interval, prompt_means
from probe.analysis.statistics.nulls import NORMAL_975, NullTest
from probe.analysis.statistics.significance import ONE_SAMPLE, mde, mean_interval
from probe.analysis.statistics.thresholds import MATERIAL
from probe.report.drawing import CLEAN, EDGE, HACK, INK, PAPER, SOFT, Figure, drawn, set_height
from probe.report.facts import plural, signed
from probe.report.inputs import label_of, samples_of, slug
from probe.settings.arms import ARMS

NULL_NAMES = {  # beside the Haar band of every arm
    "N2": "N2: labels permuted across pairs",
    "N3": "N3: clean against clean pairs",
    "N4": "N4: rewards permuted (diagnostic)",
}
DIRECTIONS = {
    "v_hack": "v_hack",
    "haar": "Haar directions",
    "permuted": "permuted labels",
    "flipped": "flipped pairs",
    "placebo": "placebo pairs",
}
SHARES = {  # what the number of a question is
    "hackward": "pull: hack-ward, in held-out hacks",
    "about": "contrast: hacks minus clean answers",
    "removable": "removed by the gate, of the progress",
}
MARKS = 200  # of one figure; of more prompts or steps, evenly spaced ones are drawn
PROMPTS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ROW = 0.37  # inches of a row of marks below its label
_LAYER = re.compile(r"(?:^|\.)(\d+)\.")


class Row(NamedTuple):
    """One estimate of a forest plot."""

    label: str
    note: str  # beside the label: the numbers
    value: float | None
    interval: Interval | None = None
    null: tuple[float, float] | None = None  # where the null has 95% of its values
    strong: bool = True  # the measurement itself, not what it is compared with
    counts_from: float | None = None  # the size at which it begins to matter


def forest(
    axes: Axes, rows: Sequence[Row], *, centre: float = 0.0, null: str = "", strong: str = "", weak: str = ""
) -> None:
    """Rows below one another, each label above its marks; `centre` is what no effect reads."""
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
    """The number behind each question of the verdict, a share; ends beyond the axis lie at its ends."""
    rows = []
    for finding in analysis.verdict.asked:
        number = finding.number
        if number is not None and finding.counts_from is not None:
            low, value, high = np.clip((number.interval.low, number.value, number.interval.high), -0.5, 1.5)
            note = str(number) if finding.name != "removable" else number.percent()
            within = Interval(low=float(low), high=float(high))
            rows.append(Row(SHARES[finding.name], note, float(value), within, None, True, finding.counts_from))
    axes.set_title("The answers in numbers")
    axes.set_xlabel("share (0: none, 1: all that held-out hacks read or gain)")
    forest(axes, rows, strong="measured, with its 95% interval")
    if rows:
        axes.set_xlim(-0.56, 1.56)


def alignment(axes: Axes, analyses: Sequence[Analysis]) -> None:
    """Mean cos_in of every arm against Haar directions; of a single one also against every null that was drawn."""
    rows = []
    for analysis in analyses:
        for summary in analysis.summaries:
            row = Row(
                f"{label_of(analysis)} \u00b7 {summary.arm}" if len(analyses) > 1 else summary.arm,
                f"{signed(summary.mean_cos_in)} \u00b7 {plural(summary.num_prompts, 'prompt')}",
                summary.mean_cos_in,
                summary.interval,
                _band(summary.haar),
                summary.arm == analysis.measured_arm,
            )
            rows.append(row)
        tests = analysis.permutation.rows if analysis.permutation is not None and len(analyses) == 1 else []
        for null, name in NULL_NAMES.items():
            for row in tests:
                if (row.metric, row.null) == ("cos_in", null):
                    rows.append(Row(name, f"p {p_value(row.test.p)}", row.value, null=_band(row.test)))
    axes.set_title("Does the gradient point along the direction?")
    axes.set_xlabel("mean cos_in over prompts, 95% (\u2192 hack-ward)")
    forest(axes, rows, null="95% of the null (of an arm: Haar)", strong="measured arm", weak="other arms")


def _band(test: NullTest | None) -> tuple[float, float] | None:
    """Where a null has 95% of its values."""
    return None if test is None else (test.mean - NORMAL_975 * test.sd, test.mean + NORMAL_975 * test.sd)


def contrasts(axes: Axes, analysis: Analysis) -> None:
    """Mean within-prompt differences of the measured arm."""
    rows = []
    for contrast in analysis.contrasts:
        if contrast.arm != analysis.measured_arm or contrast.difference is None:
            continue
        name = contrast.name if contrast.metric == "cos_S_contrib" else f"{contrast.name} (nll)"
        note = f"{signed(contrast.difference)} \u00b7 p {p_value(contrast.p)}"
        rows.append(Row(name, note, contrast.difference, contrast.interval, _band(contrast.haar)))
    axes.set_title("Do hacks point further hack-ward?")
    axes.set_xlabel("difference of cosines within prompts, 95%")
    forest(axes, rows, null="95% of Haar directions", strong="mean over prompts")


def areas(axes: Axes, analysis: Analysis) -> None:
    """AUROC for hacked among A > 0: the cosine, and the trivial scores that it has to beat."""
    rows = []
    for place, area in enumerate(row for row in analysis.specificity if row.auroc is not None):
        bounds = "" if area.interval is None else f" [{area.interval.low:.2f}, {area.interval.high:.2f}]"
        note = f"{area.auroc:.2f}{bounds}"
        rows.append(Row(area.score, note, area.auroc, area.interval, strong=place == 0))
    axes.set_title("Does the cosine beat trivial scores?")
    axes.set_xlabel("AUROC for hacked, A > 0, 95% (0.5: chance)")
    forest(axes, rows, centre=0.5, strong="the measurement", weak="what it must beat")


def distribution(axes: Axes, analysis: Analysis, metric: Metric) -> None:
    """One mark a prompt in every (source, label); below them the mean of all prompts with its 95% interval."""
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
        heights = [place + 0.07 * (i % 3 - 1) for i in range(len(shown))]  # marks at one value would hide one another
        axes.plot(shown, heights, "o", color=color, alpha=0.7, mew=0, ls="none", label=f"{word}: a prompt")
        interval, mean = mean_interval(means), sum(means) / len(means)
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
    """Each cell's additive part of the hack-ward gradient; the last bar is their sum. A = 0 carries nothing."""
    paid = [cell for cell in analysis.cells if cell.advantage_sign]
    if not paid:
        return
    rows = [(_labels(cell), cell.dot, cell.n, HACK if cell.dot > 0 else CLEAN) for cell in paid]
    rows.append(("all together", sum(cell.dot for cell in paid), sum(cell.n for cell in paid), INK))
    for place, (label, value, num_rollouts, color) in enumerate(rows):
        axes.barh(place, value, 0.3, color=color)
        _write_row(axes, place, label, plural(num_rollouts, "rollout"))
    axes.set_title("Which rollouts carry the gradient?")
    axes.set_xlabel("sum of cosine \u00d7 gradient norm (\u2192 hack-ward)")
    _rows_of(axes, len(rows), 0.0)


def module_map(axes: Axes, analysis: Analysis) -> None:
    """z of every module under permuted labels; a ring is beyond the threshold that holds for all of them."""
    permutation = analysis.permutation
    if permutation is None or not permutation.modules:
        return
    rows, critical = permutation.modules, permutation.modules_critical_z
    places = {row.module: layer_and_kind(row.module) for row in rows}
    layers = sorted({layer for layer, _ in places.values()})
    kinds = list(dict.fromkeys(kind for _, kind in places.values()))
    largest = max(abs(row.z) for row in rows) or 1.0
    for row in sorted(rows, key=lambda row: abs(row.z)):  # rings are drawn last, over their neighbours
        layer, kind = places[row.module]
        ringed = critical is not None and abs(row.z) > critical
        side, name = (HACK, "hack-ward") if row.z > 0 else (CLEAN, "clean-ward")
        axes.bar(
            layers.index(layer),
            *(1, 1, kinds.index(kind) - 0.5),
            color=(side, max(0.05, abs(row.z) / largest)),
            edgecolor=INK if ringed else PAPER,
            linewidth=1.6 if ringed else 1,
            label=f"|z| > {critical:.2f}: p < .05 (max-T)" if ringed else f"{name}, full at |z| = {largest:.1f}",
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
    """The first number of a dotted path, and its last part; -1 without a number."""
    match = _LAYER.search(module)
    return (int(match[1]) if match else -1), module.rpartition(".")[2]


def trajectory(axes: Axes, analysis: Analysis, arm: str) -> None:
    """cos_in and cos_out of one arm at every step, over 95% of Haar directions; a cross has no gradient."""
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
    if analysis.trains:  # one path, whose steps are joined; at frozen weights the order means nothing
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
    # The arms of a run share one axis, so that they can be compared by eye.
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


def prompts_power(axes: Axes, analysis: Analysis) -> None:
    """The smallest mean cos_in that n prompts show, given how much the prompts of this run vary."""
    estimate, pull = analysis.metrics.get(MetricKey("cos_in", "prompt")), analysis.share("pull")
    cosines = [] if estimate is None else list(estimate.by_unit.values())
    sd = float(np.std(cosines, ddof=1)) if len(cosines) > 1 else 0.0
    if analysis.trains or not sd > 0:  # in training the prompt is not the unit
        return
    numbers = sorted({*PROMPTS, len(cosines)})
    effects = [mde(sd, n, paired_correlation=ONE_SAMPLE) for n in numbers]
    effect = effects[numbers.index(len(cosines))]
    axes.plot(numbers, effects, color=INK, label=f"80% power, two-sided test at 5%, sd {sd:.3f}")
    axes.plot(
        [len(cosines)], [effect], "o", color=INK, label=f"this run: {len(cosines)} prompts, {effect:.3f}", ls="none"
    )
    if pull is not None and pull.ceiling is not None and (material := MATERIAL * pull.ceiling) > 0:
        axes.axhline(material, color=HACK, ls="--", lw=1, label=f"{MATERIAL:g} of what held-out hacks read")
    axes.set_xscale("log", base=2)
    axes.set_xticks(PROMPTS[::2], [str(n) for n in PROMPTS[::2]])
    axes.set_ylim(bottom=0)
    axes.set_title(f"How many prompts are enough? {short(label_of(analysis), 20)}")
    axes.set(xlabel="prompts (number)", ylabel="smallest mean cos_in seen (cosine)")


# {section of the page: an analysis -> (name of the file, draw, data) of its figures}
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
    "power": lambda analysis: [("power", prompts_power, analysis)],
}


def figures_of(analysis: Analysis, section: str) -> list[Figure]:
    """The figures of an analysis in one section of the page."""
    of = "--".join(map(slug, label_of(analysis).split(" / ")))  # run, or run--condition
    figures = [drawn(f"{name}-{of}", draw, *data) for name, draw, *data in FIGURES[section](analysis)]
    return [figure for figure in figures if figure is not None]


def _write_row(axes: Axes, place: float, label: str, note: str) -> None:
    """The label of a row at its left end and its numbers at the right, above the marks."""
    settings: dict[str, Any] = {"textcoords": "offset points", "xycoords": axes.get_yaxis_transform(), "fontsize": 8.5}
    settings["bbox"] = {"fc": PAPER, "ec": "none", "pad": 1}
    axes.annotate(short(label, 44), (0, place), (0, 7), **settings)
    axes.annotate(note, (1, place), (0, 7), ha="right", color=SOFT, **settings)


def _rows_of(axes: Axes, count: int, centre: float, row: float = ROW) -> None:
    """Axes for `count` rows that have their own labels, with a line at `centre`."""
    if not count:
        return
    axes.axvline(centre, color=EDGE, lw=1, zorder=1)
    axes.set_ylim(count - 0.45, -0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    set_height(axes, 0.85 + row * count)


def _labels(cell: Cell) -> str:
    """`teacher, hint, hacked, right, A > 0`."""
    hacked = {True: "hacked", False: "clean", None: "hack unknown"}[cell.hacked]
    right = {True: "right", False: "wrong", None: "correctness unknown"}[cell.gt_pass]
    hint = ["hint"] if cell.hint else []
    return ", ".join([short(cell.src_pool, 14), *hint, hacked, right, "A > 0" if cell.advantage_sign == 1 else "A < 0"])
