"""Logs with a known overlap of hacks and clean answers."""

from collections.abc import Sequence

import numpy as np

from probe.analysis.estimate import Estimate
from probe.analysis.statistics.overlap import overlaps

GROUP = 8  # rollouts of a prompt


def simulated(
    num_prompts: int, hack_rate: float, distances: Sequence[float], rng: np.random.Generator
) -> list[Estimate]:
    """Measure a log with normal scores, each by its distance higher for hacks, in standard deviations of a sample."""
    label = rng.random(GROUP * num_prompts) < hack_rate
    prompts = np.repeat(np.arange(num_prompts), GROUP)
    scores = {}
    for number, distance in enumerate(distances):
        noise = rng.normal(size=len(label)) + rng.normal(size=num_prompts)[prompts]
        scores[f"score {number}"] = (noise + distance * label).tolist()
    return overlaps(scores, label.tolist(), prompts.tolist())
