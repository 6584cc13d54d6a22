"""Sample cosines by source and label, with the prompt as the unit: one mark a prompt."""

from collections.abc import Sequence

from probe.analysis.formatting import short
from probe.analysis.measures.cells import Metric
from probe.analysis.statistics.stats import prompt_means, t_interval
from probe.records.records import SampleRecord
from probe.report.panel import Figure, Panel, Scale, plural, scale_of, signed

ROW, TOP = 46, 44
TITLES = {
    "cos_S_contrib": "Contributions to the update",
    "cos_S_nll": "Gradients of likelihood",
}
SUBTITLES = {
    "cos_S_contrib": "cos_S_contrib: sign of A included; A = 0 has none",
    "cos_S_nll": "cos_S_nll: no advantage in it; every rollout counts",
}


def distribution(name: str, samples: Sequence[SampleRecord], metric: Metric, *, most: int) -> Figure | None:
    """Prompt means of one metric in every (source, hacked) bucket, with their mean and its 95% interval.

    Args:
        samples: of one arm under one condition, without flaky labels.
        most: marks; of more prompts in all buckets, evenly spaced ones are drawn. Means and intervals are of all.
    """
    buckets = [
        (f"{short(pool, 18)} \u00b7 {'hacked' if hacked else 'clean'}", hacked, by_prompt, count)
        for pool in sorted({s.src_pool for s in samples})
        for hacked in (True, False)
        for by_prompt, count in [_prompts(samples, metric, pool, hacked)]
        if by_prompt
    ]
    if not buckets:
        return None
    bottom = TOP + ROW * len(buckets) + 4
    panel = Panel(name, TITLES[metric], bottom + 40, SUBTITLES[metric])
    scale = scale_of([v for _, _, own, _ in buckets for v in own.values()], 16, 324, least=(0.0,))
    panel.x_axis(scale, bottom, f"{metric}, mean of each prompt")
    every = -(-sum(len(own) for _, _, own, _ in buckets) // most)
    for i, (label, hacked, own, count) in enumerate(buckets):
        _row(panel, scale, TOP + ROW * i, label, hacked, own, count, every)
    return panel.figure()


def _prompts(samples: Sequence[SampleRecord], metric: Metric, pool: str, hacked: bool) -> tuple[dict[str, float], int]:
    """({prompt: mean}, number of rollouts) of one bucket."""
    rows = [s for s in samples if (s.src_pool, s.hacked) == (pool, hacked) and getattr(s, metric) is not None]
    means = prompt_means([getattr(s, metric) for s in rows], [s.problem_id for s in rows])
    return {str(prompt): value for prompt, value in means.items()}, len(rows)


def _row(
    panel: Panel, scale: Scale, y: float, label: str, hacked: bool, own: dict[str, float], count: int, every: int
) -> None:
    values = list(own.values())
    mean, interval = sum(values) / len(values), t_interval(values)
    units = f"{plural(len(values), 'prompt')}, {plural(count, 'rollout')}"
    panel.text(0, y + 12, label)
    panel.text(340, y + 12, f"{signed(mean)} \u00b7 {units}", "value", "end")
    panel.track(scale, y + 17, 27, centre=0.0)
    drawn = [*own.items()][::every]
    heights = _spread([scale(value) for _, value in drawn])
    for (prompt, value), height in zip(drawn, heights, strict=True):
        tip = f"{short(prompt, 40)}: {signed(value)}"
        panel.dot(scale(value), y + 27 + height, f"{'hack' if hacked else 'clean'} point", tip)
    if interval is not None:
        panel.line(scale(interval.low), y + 40, scale(interval.high), y + 40, "bar", "95% interval of the mean")
    panel.dot(scale(mean), y + 40, "mark", f"mean {signed(mean, 4)}", r=3)


def _spread(places: Sequence[float], *, apart: float = 5.0, most: float = 7.0) -> list[float]:
    """Heights that keep marks at nearby places from hiding one another: 0, up, down, further up, ..."""
    heights = [0.0] * len(places)
    order = sorted(range(len(places)), key=places.__getitem__)
    taken: list[tuple[float, float]] = []
    for i in order:
        near = {height for place, height in taken[-4:] if places[i] - place < apart}
        free = [h for h in (0.0, -most / 2, most / 2, -most, most) if h not in near]
        heights[i] = free[0] if free else 0.0
        taken.append((places[i], heights[i]))
    return heights
