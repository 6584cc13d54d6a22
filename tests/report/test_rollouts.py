"""Pushes of tokens and lines: they add up, and a string is found where it is."""

from pathlib import Path

import pytest

from probe.analysis.verdict.pools import read_pools
from probe.records.run import Run
from probe.report.evidence import line_shares, load_rollouts, pushes, to_read_first
from replay_pools.pool import BUILTIN, open_pool


@pytest.fixture(scope="module")
def shown(maker, report_of):
    return load_rollouts(report_of(maker(name="strings")).analyses[0])[1]


def test_pushes_add_up_to_the_mean_contribution(shown) -> None:
    """Their sum is the mean of sign(A) times the shares of all lines but blank ones; one prompt leaves no line out."""
    one_prompt = [one for one in shown if one.sample.step == 0]
    found = sum(row["number"] for row in pushes(one_prompt))
    expected = 0.0
    for one in one_prompt:
        shares = [share for line, share in line_shares(one.rollout, one.tokens) if line.strip()]
        expected += (1 if one.sample.advantage > 0 else -1) * sum(shares) / len(one_prompt)
    assert found == pytest.approx(expected)
    whole = sum(one.sample.cos_S_contrib for one in one_prompt) / len(one_prompt)
    assert abs(found - whole) < 0.2 * abs(whole)


def test_every_prompt_counts_the_same(shown) -> None:
    """Twice the rollouts of one prompt change nothing: the mean is over prompts, of means over their rollouts."""
    twice = shown + [one for one in shown if one.sample.step == 0]
    before, after = ({row["text"]: row["number"] for row in pushes(rows)} for rows in (shown, twice))
    assert after == pytest.approx(before)


def test_lines_hold_the_shares_of_their_tokens(shown) -> None:
    """A line's share is that of the tokens that begin in it; together they are the cosine."""
    for one in shown:
        rows = line_shares(one.rollout, one.tokens)
        assert [line for line, _ in rows] == one.rollout.completion.split("\n")
        assert sum(share for _, share in rows) == pytest.approx(one.sample.cos_S_nll)
        first = len(rows[0][0])
        assert rows[0][1] == pytest.approx(sum(one.tokens.completion[: first + 1]))  # with its line break


def test_counts_are_of_occurrences_and_prompts(shown) -> None:
    rows = {row["text"]: row for row in pushes(shown)}
    line = rows["def run_tests():"]
    assert (line["times"], line["num_prompts"]) == (12, 6)
    assert line["number"] > 0
    assert all(row["num_prompts"] >= 2 for row in rows.values()), "a string of one prompt says more about the prompt"


def test_the_most_telling_come_first_and_buckets_take_turns(shown) -> None:
    order = to_read_first(shown)
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
    run = Run(path=tmp_path, config={"settings": {}, "pools": [entry]}, manifest={}, steps=[], samples=[])
    stored, missing = read_pools(run)
    assert len(stored) == (sum(map(len, pool.steps)) if sha == "its own" else 0)
    assert len(missing) == (sha == "another")
