"""Sample cosines by source and label, with the prompt as the unit: one mark a prompt."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from probe.analysis.formatting import short
from probe.analysis.measures.contrasts import Metric
from probe.analysis.statistics.intervals import prompt_means
from probe.analysis.statistics.significance import mean_interval
from probe.records.records import SampleRecord
from probe.report.figures.panel import ROW_LEFT, ROW_RIGHT, WIDTH, Figure, Panel, Scale, plural, scale_of, signed

ROW, TOP = 46, 44
TITLES = {
    "cos_S_contrib": "Contributions to the update",
    "cos_S_nll": "Gradients of likelihood",
}
SUBTITLES = {
    "cos_S_contrib": "cos_S_contrib: sign of A included; A = 0 has none",
    "cos_S_nll": "cos_S_nll: no advantage in it; every rollout counts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    """The rollouts of one source and label that have the metric."""

    pool: str
    hacked: bool
    by_prompt: dict[str, float]  # {prompt: mean}
    num_rollouts: int


def distribution(name: str, samples: Sequence[SampleRecord], metric: Metric, *, most: int) -> Figure | None:
    """Prompt means of one metric in every (source, hacked) bucket, with their mean and its 95% interval.

    Args:
        name: of the SVG file.
        samples: of one arm under one condition, without flaky labels.
        metric: whose prompt means are drawn.
        most: marks; of more prompts in all buckets, evenly spaced ones are drawn. Means and intervals are of all.
    """
    buckets = []
    for pool in sorted({sample.src_pool for sample in samples}):
        for hacked in (True, False):
            bucket = _bucket(samples, metric, pool, hacked)
            if bucket.by_prompt:
                buckets.append(bucket)
    if not buckets:
        return None
    bottom = TOP + ROW * len(buckets) + 4
    panel = Panel(name, TITLES[metric], bottom + 40, SUBTITLES[metric])
    means = [mean for bucket in buckets for mean in bucket.by_prompt.values()]
    scale = scale_of(means, ROW_LEFT, ROW_RIGHT, least=(0.0,))
    panel.x_axis(scale, bottom, f"{metric}, mean of each prompt")
    stride = math.ceil(len(means) / most)
    for i, bucket in enumerate(buckets):
        _draw_bucket(panel, scale, TOP + ROW * i, bucket, stride)
    return panel.figure()


def _bucket(samples: Sequence[SampleRecord], metric: Metric, pool: str, hacked: bool) -> _Bucket:
    rows = []
    for sample in samples:
        if (sample.src_pool, sample.hacked) == (pool, hacked) and getattr(sample, metric) is not None:
            rows.append(sample)
    means = prompt_means([getattr(row, metric) for row in rows], [row.problem_id for row in rows])
    by_prompt = {str(prompt): mean for prompt, mean in means.items()}
    return _Bucket(pool=pool, hacked=hacked, by_prompt=by_prompt, num_rollouts=len(rows))


def _draw_bucket(panel: Panel, scale: Scale, y: float, bucket: _Bucket, stride: int) -> None:
    """A mark for every `stride`-th prompt, and below them the mean of all with its interval."""
    values = list(bucket.by_prompt.values())
    mean, interval = sum(values) / len(values), mean_interval(values)
    units = f"{plural(len(values), 'prompt')}, {plural(bucket.num_rollouts, 'rollout')}"
    panel.text(0, y + 12, f"{short(bucket.pool, 18)} \u00b7 {'hacked' if bucket.hacked else 'clean'}")
    panel.text(WIDTH, y + 12, f"{signed(mean)} \u00b7 {units}", "value", "end")
    panel.track(scale, y + 17, 27, centre=0.0)
    drawn = list(bucket.by_prompt.items())[::stride]
    heights = _spread([scale(value) for _, value in drawn])
    class_ = "hack point" if bucket.hacked else "clean point"
    for (prompt, value), height in zip(drawn, heights, strict=True):
        panel.dot(scale(value), y + 27 + height, class_, f"{short(prompt, 40)}: {signed(value)}")
    if interval is not None:
        panel.line(scale(interval.low), y + 40, scale(interval.high), y + 40, "bar", "95% interval of the mean")
    panel.dot(scale(mean), y + 40, "mark", f"mean {signed(mean, 4)}", r=3)


def _spread(places: Sequence[float], *, apart: float = 5.0, most: float = 7.0) -> list[float]:
    """Heights that keep marks at nearby places from hiding one another: 0, up, down, further up, ..."""
    heights = [0.0] * len(places)
    choices = (0.0, -most / 2, most / 2, -most, most)
    taken: list[tuple[float, float]] = []  # (place, height) from left to right
    for i in sorted(range(len(places)), key=places.__getitem__):
        # The last four are enough: with five heights, one is always free of them.
        near = {height for place, height in taken[-4:] if places[i] - place < apart}
        heights[i] = next(height for height in choices if height not in near)
        taken.append((places[i], heights[i]))
    return heights
