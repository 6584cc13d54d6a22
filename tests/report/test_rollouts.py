"""Pushes of tokens and lines: they add up, and a string is found where it is."""

from pathlib import Path

import pytest

from probe.analysis.verdict.pools import read_pools
from probe.records.run import Run
from probe.report.rollouts import (
    largest_cosines_first,
    line_shares,
    lines_of,
    load_rollouts,
    pushes,
    tokens_of,
)
from replay_pools.pool import BUILTIN, open_pool


@pytest.fixture(scope="module")
def shown(maker, report_of):
    return load_rollouts(report_of(maker(name="strings")).analyses[0]).shown


def test_pushes_add_up_to_the_mean_contribution(shown) -> None:
    """sum over all tokens of sign(A) share = mean of cos_S_contrib; of one prompt no string is left out."""
    one_prompt = [one for one in shown if one.sample.step == 0]
    found = sum(row.push for row in pushes(one_prompt, by_line=False))
    assert found == pytest.approx(sum(one.sample.cos_S_contrib for one in one_prompt) / len(one_prompt), abs=1e-6)


def test_every_prompt_counts_the_same(shown) -> None:
    """Twice the rollouts of one prompt change nothing: the mean is over prompts, of means over their rollouts."""
    twice = shown + [one for one in shown if one.sample.step == 0]
    before, after = ({row.text: row.push for row in pushes(rows, by_line=True)} for rows in (shown, twice))
    assert after == pytest.approx(before)


def test_lines_hold_the_shares_of_their_tokens(shown) -> None:
    """A line's share is that of the tokens that begin in it; blank lines have none to show."""
    for one in shown:
        given = one.rollout, one.tokens
        lines = dict(lines_of(*given))
        assert all(text.strip() for text in lines)
        total = sum(share for _, share in tokens_of(*given))
        assert sum(share for _, share in line_shares(*given)) == pytest.approx(total)
        blank = total - sum(share for _, share in lines_of(*given))
        assert abs(blank) < abs(total) + 1e-9
        first = one.rollout.completion.split("\n")[0]
        expected = sum(share for i, (_, share) in enumerate(tokens_of(*given)) if i <= len(first))
        assert lines[first.strip()] == pytest.approx(expected)


def test_counts_are_of_occurrences_and_prompts(shown) -> None:
    rows = {row.text: row for row in pushes(shown, by_line=True)}
    assert (rows["def run_tests():"].count, rows["def run_tests():"].num_prompts) == (12, 6)
    assert rows["def run_tests():"].push > 0
    assert all(row.num_prompts >= 2 for row in rows.values()), "a string of one prompt says more about the prompt"


def test_the_most_telling_come_first_and_buckets_take_turns(shown) -> None:
    order = largest_cosines_first(shown)
    assert len(order) == len(shown)
    assert {(one.sample.src_pool, one.sample.hacked) for one in order[:2]} == {("teacher", True), ("base", False)}
    for bucket in {(one.sample.src_pool, one.sample.hacked) for one in shown}:
        own = [abs(one.cosine) for one in order if (one.sample.src_pool, one.sample.hacked) == bucket]
        assert own == sorted(own, reverse=True)


@pytest.mark.parametrize("sha", ["its own", "another"])
def test_a_built_in_pool_is_found_where_the_installation_is_now(tmp_path: Path, sha: str) -> None:
    """A run keeps the path of its pools; a built-in one has moved with the environment, and is known by its hash."""
    pool = open_pool(BUILTIN / "teacher")
    entry = {**pool.identity(), "path": str(tmp_path / "gone" / "teacher")}
    if sha == "another":
        entry["manifest_sha256"] = "0" * 64
    run = Run(path=tmp_path, config={"pools": [entry]}, manifest={}, steps=[], samples=[])
    stored, missing = read_pools(run)
    assert len(stored) == (sum(map(len, pool.steps)) if sha == "its own" else 0)
    assert len(missing) == (sha == "another")
