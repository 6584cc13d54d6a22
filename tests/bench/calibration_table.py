"""Coverage, false positives and power of what the analysis prints, by simulation: the tables of spec/guide/numbers.md.

    python tests/bench/calibration_table.py                  # minutes; prints Markdown, the same every time
    python tests/bench/calibration_table.py arms_at_once     # one table

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

from probe.analysis.statistics.geometry import cosines, extract
from probe.analysis.statistics.intervals import auroc_interval, t_interval, within_prompt_differences
from probe.analysis.statistics.nulls import label_permutations, null_test, true_labels
from probe.analysis.statistics.overlap import is_lacking
from probe.analysis.statistics.significance import mde, sign_flip_test

sys.path.append(str(Path(__file__).parents[1] / "support"))
from many_arms import Bench  # noqa: E402
from overlapping import simulated  # noqa: E402
from planted import gradients_along, pair_gram  # noqa: E402

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


def arms_at_once() -> Iterator[tuple]:
    """Arms at once: 16 arms beside one vanilla, sd about 12 points between seeds.

    Shares of benches in which no statement is wrong, and of falls of 30 points that are shown.
    """
    yield "world", "seeds", "of vanilla", "all hold", "first shown", "others shown"
    none, half, full = [0.7] * 17, [0.7] + [0.4] * 8 + [0.7] * 8, [0.7] + [0.4] * 16
    even, costly, high = [0.5] * 17, [0.6] + [0.45] * 16, [2.0, 0.5] * 8 + [2.0]
    worlds = [("none falls", {"hack": none}, n) for n in (3, 4, 8, (4, 16))]
    worlds += [("all fall", {"hack": full}, n) for n in (3, 4, 6, 7, 8, (4, 8), (4, 12), (4, 16))]
    worlds += [("half fall", {}, n) for n in ((4, 8), (4, 16), 4)]
    worlds += [
        ("half fall, each loses 15 points of solving", {"solve": costly}, 4),
        ("half fall to 2%", {"hack": [0.7] + [0.02] * 8 + [0.7] * 8}, 4),
        ("half fall, but not the first", {"hack": [0.7, 0.7] + [0.4] * 8 + [0.7] * 7}, 4),
        ("half fall, 64 problems kept apart", {"problems": 64}, 4),
        ("half fall, variances differ by 4, vanilla's is high", {"factors": high}, 4),
        ("half fall, variances differ by 4, vanilla's is low", {"factors": [1 / factor for factor in high]}, 4),
        ("half fall, vanilla's variance is twice the others'", {"factors": [2.0] + [1.0] * 16}, 4),
        ("half fall, vanilla's variance is 4 times the others'", {"factors": [4.0] + [1.0] * 16}, 4),
        ("half fall, vanilla's variance is 4 times the others'", {"factors": [4.0] + [1.0] * 16}, (4, 16)),
        ("three arms, all fall", {"hack": full[:4], "solve": even[:4]}, 4),
    ]
    for name, parts, seeds in worlds:
        number, of_vanilla = seeds if isinstance(seeds, tuple) else (seeds, seeds)
        bench = Bench(**{"hack": half, "solve": even, **parts}, seeds=number, of_vanilla=of_vanilla)
        tally = bench.tally(SIMS)
        cells = (tally.get(key) for key in ("all hold", "first", "others"))
        yield name, number, of_vanilla, *("-" if cell is None else share([cell]) for cell in cells)


def live_modules() -> Iterator[tuple]:
    """Live modules: 17 prompts, v_hack from 21 pairs; gradients have a cosine of .51 with the signal where it lives."""
    yield ("live", "mean cos_in", "N2 rejects", "lower bound > .05", "inside +-.05")
    for live, modules in ((0, 84), (4, 84), (8, 252), (84, 84)):
        rng = np.random.default_rng(modules)
        rows = [one_live(rng, live, modules) for _ in range(20)]
        columns = [*zip(*rows, strict=True)]
        yield f"{live} of {modules}", f"{np.mean(columns[0]):+.3f}", *(share(column) for column in columns[1:])


def one_live(rng, live: int, modules: int, r: int = 24, n: int = 17):
    """(cos_in, N2 rejects, above .05, inside +-.05)."""
    mu = np.eye(r)[0]
    carries = np.arange(modules) < live
    hack = (np.arange(42) < 21)[:, None] * mu * 2.0
    pairs = [rng.normal(size=(42, r)) / math.sqrt(r) + hack * on for on in carries]
    steps = [rng.normal(size=(n, r)) / math.sqrt(r) + 0.6 * mu * on for on in carries]
    gram, found = pair_gram(pairs), gradients_along(pairs, steps)
    truth = extract(gram, *true_labels(gram)).axes()
    permuted = extract(gram, *label_permutations(gram, 99, rng)).axes()
    by_prompt = cosines(truth, found)[0]
    p = null_test("cos_in", by_prompt.mean(), cosines(permuted, found).mean(1)).p
    interval, narrow = t_interval(by_prompt), t_interval(by_prompt, level=0.9)
    equal = narrow.low > -0.05 and narrow.high < 0.05  # two one-sided tests
    return by_prompt.mean(), p < 0.05, interval.low > 0.05, equal


def main() -> None:
    tables = (means, contrasts, areas, overlap_rule, arms_at_once, powers, live_modules)
    for table in tables:
        if table.__name__ in (sys.argv[1:] or [table.__name__]):
            print(f"\n{inspect.cleandoc(table.__doc__ or '')}\n")
            for number, row in enumerate(table()):
                print(f"| {' | '.join(map(str, row))} |" + f"\n|{'---|' * len(row)}" * (not number), flush=True)


if __name__ == "__main__":
    main()
