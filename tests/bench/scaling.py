"""How the engine's cost grows: slopes of log CPU time against log size, on few layers.

Where neither rollouts nor tokens are varied the vocabulary is small, so that the blocks are seen and not the head.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from timing import interleaved
from ways import engine, evaluate, frames_of, limit
from workload import TRUNCATED, Shape, adapted, rollouts

Ways = dict[int, Callable[[], object]]
VOCABULARY = 4096
REPEATS = 2


def exponents(shape: Shape) -> dict[str, float]:
    """By what is varied; the limit's own slope stands beside where rollouts get longer: attention is quadratic."""
    small = replace(shape, vocabulary=min(VOCABULARY, shape.vocabulary))
    svd, batch = adapted("svd", small), small.rollouts()
    unit = engine(svd, batch)

    def grid(arms: int, k: int) -> Callable[[], object]:
        vectors = frames_of(svd.sizes, k)
        return lambda: (engine(svd, batch), evaluate(unit, vectors, arms))

    ranks = (TRUNCATED // 4, TRUNCATED // 2, TRUNCATED)
    varied: dict[str, Ways] = {
        **in_tokens(shape),
        "modules": {n: partial(engine, adapted("svd", replace(small, layers=n)), batch) for n in (1, 2, 4, 8)},
        "rank": {rank: partial(engine, adapted("svd", small, rank), batch) for rank in ranks},
        "arms": {n: grid(n, 4) for n in (1, 4, 16)},
        "directions": {k: grid(1, k) for k in (1, 4, 16)},
    }
    return {f"exponent in {what}": slope(ways) for what, ways in varied.items()}


def in_tokens(shape: Shape) -> dict[str, Ways]:
    """More rollouts, and longer ones."""
    svd = adapted("svd", shape)
    prompt, completion = shape.prompts[0], shape.completions[0]
    make = partial(rollouts, vocabulary=shape.vocabulary)
    more = {n: make([prompt] * n, [completion] * n) for n in (2, 4, 8, 16)}
    longer = {n: make([n * prompt // 4] * 4, [n * completion // 4] * 4) for n in (1, 2, 4, 8)}
    return {
        "rollouts": {n: partial(engine, svd, batch) for n, batch in more.items()},
        "tokens": {n: partial(engine, svd, batch) for n, batch in longer.items()},
        "tokens, limit": {n: partial(limit, svd, batch) for n, batch in longer.items()},
    }


def slope(ways: Ways) -> float:
    """Of log CPU seconds against log size."""
    taken = interleaved({str(size): way for size, way in ways.items()}, REPEATS, warm_up=False)
    points = [(math.log(int(size)), math.log(own.cpu)) for size, own in taken.items()]
    return statistics.linear_regression(*zip(*points, strict=True)).slope
