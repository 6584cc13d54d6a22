"""Coverage, false positives and power of what the analysis prints, by simulation: the tables of spec/guide/numbers.md.

    python tests/bench/calibration_table.py                  # minutes; prints Markdown, the same every time
    python tests/bench/calibration_table.py overlap_rule     # one table

Each table is one function that yields its rows. The simulated truth is always known, and the functions under test are
those of the program.
"""

import inspect
import math
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

from probe.analysis.statistics.intervals import auroc_interval, t_interval, within_prompt_differences
from probe.analysis.statistics.overlap import is_lacking
from probe.analysis.statistics.significance import mde, sign_flip_test

sys.path.append(str(Path(__file__).parents[1] / "support"))
from overlapping import simulated  # noqa: E402

SIMS = 1000
GROUP = 8  # samples of a prompt
SHAPES = {  # {name: (draw, its mean)}
    "normal": (lambda rng, n: rng.normal(size=n), 0.0),
    "exponential": (lambda rng, n: rng.exponential(size=n), 1.0),
    "lognormal": (lambda rng, n: rng.lognormal(size=n), math.exp(0.5)),
}


def covers(interval, truth: float) -> bool:
    return interval is not None and interval.low <= truth <= interval.high


def share(flags) -> str:
    flags = list(flags)
    return f"{np.mean(flags):.3f}".removeprefix("0") if flags else "-"


def means() -> Iterator[tuple]:
    """Means: a 5% test of mean zero; a 95% interval."""
    yield "values", "n", "rejects", "covers"
    for (shape, (draw, mean)), n in product(SHAPES.items(), (8, 17, 40)):
        rng = np.random.default_rng(n)
        x = [draw(rng, n) - mean for _ in range(SIMS)]
        rejects = share(sign_flip_test(v, num_draws=999) < 0.05 for v in x)
        yield shape, n, rejects, share(covers(t_interval(v), 0.0) for v in x)


def contrasts() -> Iterator[tuple]:
    """Contrasts: no effect of a label that is correlated within prompts, as the values are, and a 5% test."""
    yield "correlation", "prompts", "within prompts rejects", "Welch by sample rejects"
    for correlation, n in product((0.0, 0.3, 0.7), (8, 17, 40)):
        rng, prompts = np.random.default_rng(n), np.repeat(np.arange(n), GROUP)
        ours, naive = [], []
        for _ in range(SIMS):
            labels = rng.random(n * GROUP) < rng.beta(0.5, 0.5, n)[prompts]
            values = correlated(rng, prompts, correlation)
            d = within_prompt_differences(values.tolist(), labels.tolist(), prompts.tolist())
            p = sign_flip_test([*d.values()], num_draws=999)
            ours.append(p is not None and p < 0.05)
            a, b = values[labels], values[~labels]
            # Welch needs two values a side.
            naive.append(min(len(a), len(b)) > 1 and stats.ttest_ind(a, b, equal_var=False).pvalue < 0.05)
        yield correlation, n, share(ours), share(naive)


def correlated(rng, prompts, correlation: float):
    """Standard normal values with this correlation within prompts."""
    of_prompt = rng.normal(size=prompts[-1] + 1)[prompts]
    return math.sqrt(correlation) * of_prompt + math.sqrt(1 - correlation) * rng.normal(size=len(prompts))


def areas() -> Iterator[tuple]:
    """AUROC: its 95% interval where one half of each prompt hacks, and where that share is Beta(1/2, 1/2)."""
    yield "truth", "correlation", "prompts", "covers, halves", "covers, unequal"
    for truth, correlation, n in product((0.5, 0.8, 0.96), (0.0, 0.3, 0.7), (4, 8, 17, 40)):
        prompts, cells = np.repeat(np.arange(n), GROUP), []
        for halves in (True, False):
            rng, now = np.random.default_rng(n), []
            for _ in range(SIMS // 2):
                of_prompt = np.full(n, 0.5) if halves else rng.beta(0.5, 0.5, n)
                drawn = rng.random(n * GROUP) < of_prompt[prompts]
                labels = np.tile(np.arange(GROUP) < GROUP // 2, n) if halves else drawn
                scores = correlated(rng, prompts, correlation) + math.sqrt(2) * stats.norm.ppf(truth) * labels
                interval = auroc_interval(scores, labels, prompts.tolist())
                now += [] if interval is None else [covers(interval, truth)]
            cells.append(share(now))
        yield truth, correlation, n, *cells


def overlap_rule() -> Iterator[tuple]:
    """Overlap: logs of 8 rollouts a prompt read CONFOUNDED, by the distance of hacks from honest answers in sd.

    Three scores; the distance is in one of them, or shared by all.
    """
    yield "prompts", "hack rate", "no distance", "1.75 sd", "3 sd", "3 sd together"
    for n, rate in product((8, 12, 20, 64), (0.3, 0.45, 0.6)):
        cells = []
        for distances in ((0, 0, 0), (1.75, 0, 0), (3, 0, 0), (3 / math.sqrt(3),) * 3):
            rng = np.random.default_rng(n)
            logs = [simulated(n, rate, distances, rng) for _ in range(SIMS)]
            cells.append(share(any(is_lacking(row) for row in log) for log in logs))
        yield n, rate, *cells


def powers() -> Iterator[tuple]:
    """Power: Welch's test at the effect that `probe spec plan` calls detectable with 80% power, sd .15."""
    yield "seeds an arm", "detectable", "Welch finds"
    for n in (2, 3, 4, 5, 8, 17):
        a, b = np.random.default_rng(n).normal(0, 0.15, (2, 20_000, n))
        p = stats.ttest_ind(a + mde(0.15, n), b, axis=1, equal_var=False).pvalue
        yield n, f"{mde(0.15, n):.3f}", f"{np.mean(p < 0.05):.3f}"


def main() -> None:
    tables = (means, contrasts, areas, overlap_rule, powers)
    for table in tables:
        if table.__name__ in (sys.argv[1:] or [table.__name__]):
            print(f"\n{inspect.cleandoc(table.__doc__ or '')}\n")
            for number, row in enumerate(table()):
                print(f"| {' | '.join(map(str, row))} |" + f"\n|{'---|' * len(row)}" * (not number), flush=True)


if __name__ == "__main__":
    main()
