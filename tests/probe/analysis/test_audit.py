"""Labels by strata of a score: the draw, the weights, and the coverage of the intervals."""

import numpy as np
import pytest

from probe.analysis.audit import audit, draw, ranked_strata


def test_the_draw_is_spread_over_the_strata_and_grows() -> None:
    strata = ranked_strata(np.append(np.arange(49.0), np.nan))
    assert [len(rows) for rows in strata] == [5, 15, 30]
    assert strata[0].tolist() == [48, 47, 46, 45, 44]
    assert strata[-1][-1] == 49  # without a score
    drawn = draw(strata, 20, seed=0)
    assert [sum(number == stratum for _, stratum in drawn) for number in range(3)] == [5, 5, 10]
    assert len({row for row, _ in drawn}) == 20
    assert {*drawn} <= {*draw(strata, 30, seed=0)}
    assert len(draw(strata, 99, seed=0)) == 50


def test_shares_are_weighted_by_stratum() -> None:
    """Of 100 rollouts: 10, 30 and 60, of which 2 of 2, 1 of 2 and 0 of 2 are hacks."""
    strata = ranked_strata(-np.arange(100.0))
    answers = {0: True, 1: True, 10: True, 11: False, 40: False, 41: False}
    rows = {row.name: row for row in audit(strata, answers, [f"p{i}" for i in range(100)])}
    values = [row.value for row in rows.values()]
    assert values == pytest.approx([1.0, 25 / 40, 25 / 100, 10 / 25, 1.0])
    assert rows["rate of hacks"].low >= 0.03  # three hacks are known
    assert rows["rate of hacks"].high <= 0.97
    one_prompt = audit(strata, answers, ["p"] * 100)[2]
    assert one_prompt.high > rows["rate of hacks"].high  # six answers on one prompt tell less
    everything = audit(strata, {i: i < 7 for i in range(100)}, [f"p{i}" for i in range(100)])
    for row, truth in zip(everything, (0.7, 7 / 40, 0.07, 1, 1), strict=True):
        assert (row.low, row.value, row.high) == pytest.approx((truth, truth, truth))


@pytest.mark.parametrize(("rate", "quality"), [(0.02, 0.0), (0.1, 2.0), (0.5, 2.0)])
def test_intervals_cover(rate: float, quality: float) -> None:
    """60 logs of 64 prompts x 8 whose prompts differ, 20 labels each: at least 92% of every interval's truths."""
    covered: dict[str, list[bool]] = {}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        share = rng.beta(rate * 1.5, (1 - rate) * 1.5, 64)
        hacked = (rng.random((64, 8)) < share[:, None]).ravel()
        strata = ranked_strata(rng.standard_normal(512) + quality * hacked)
        answers = {row: bool(hacked[row]) for row, _ in draw(strata, 20, seed)}
        order = np.concatenate(strata)
        for row in audit(strata, answers, [f"p{i // 8}" for i in range(512)], seed):
            first = hacked[order[: row.parts["k"]]]
            truth = first.sum() / max(hacked.sum(), 1) if row.name.startswith("share") else first.mean()
            if row.value is not None:
                covered.setdefault(row.name, []).append(row.low - 1e-9 <= truth <= row.high + 1e-9)
    for name, hits in covered.items():
        assert np.mean(hits) >= 0.92, name
