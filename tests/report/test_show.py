"""`probe show`: one rollout of a run or a pool in the terminal, and which there are."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from probe.report.evidence import load_rollouts
from replay_pools.base.terminal import is_invisible, visible
from replay_pools.pool import open_pool

Show = Callable[..., str]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], maker: Any) -> Show:
    """show("shown", "3", "1") -> what it prints; it must succeed."""

    def call(*arguments: str) -> str:
        assert run(cli, ["show", *arguments, "--out", str(maker.out)]) == 0
        return capsys.readouterr().out

    return call


def test_a_rollout_of_a_run(show: Show, maker: Any, report_of: Any) -> None:
    """Prompt, completion and labels; every arm's cosines; each line's share, and nothing that a terminal obeys."""
    directory = maker(name="shown")
    (one,) = [r for r in load_rollouts(report_of(directory).analyses[0])[1] if r.anchor == "r-shown-3-1"]
    printed = show("shown", "3", "1")
    assert one.rollout.messages[-1]["content"] in printed
    assert "step 3, sample 1 (from teacher step 3 sample 1): hacked, right, hint" in printed
    for line in visible(one.rollout.completion).split("\n"):
        assert line in printed
    for record in read_run(directory).samples:
        if (record.step, record.sample_id) == (3, 1):
            assert f"{record.cos_S_contrib:+.4f}" in next(x for x in printed.split("\n") if x.startswith(record.arm))
    assert not any(is_invisible(character) for character in printed if character != "\n" and character != "\t")
    assert one.sample.cos_S_nll is not None
    count = len(one.rollout.completion.split("\n"))
    lines = printed.split("with the share of each line in the likelihood cosine\n")[1].split("\n")[:count]
    assert sum(float(line.split()[0]) for line in lines) == pytest.approx(one.sample.cos_S_nll, abs=1e-4 * count)
    value = json.loads(show("shown", "3", "1", "--json"))
    assert [row["arm"] for row in value["records"]] == ["vanilla", "projected", "random"]
    assert value["records"][0]["cos_S_nll"] == pytest.approx(value["tokens"]["cos"])
    assert value["rollout"].keys() >= {"completion", "grade", "messages", "completion_ids"}


def test_without_a_sample_the_rollouts_are_listed(show: Show, maker: Any) -> None:
    """Of a step in order; of a run those with the largest cosines first; and the way to one of them."""
    directory = maker(name="shown")
    rows = json.loads(show("shown", "2", "--json"))["rollouts"]
    assert [(row["step"], row["sample"]) for row in rows] == [(2, i) for i in range(4)]
    rows = json.loads(show("shown", "--json"))["rollouts"]
    cosines = [abs(row["cos_S_contrib"]) for row in rows]
    assert cosines == sorted(cosines, reverse=True)
    assert len(rows) == sum(record.arm == "vanilla" for record in read_run(directory).samples)
    printed = show("shown")
    assert f"one of them: probe show shown {rows[0]['step']} {rows[0]['sample']}" in printed
    assert "4 more" in printed


def test_a_rollout_of_a_pool(show: Show, maker: Any) -> None:
    """A built-in pool by its name, any pool by its path; the list of a step."""
    maker(name="shown")
    path = maker.out / "pools-shown" / "base"
    rollout = open_pool(path).steps[1][1]
    assert visible(rollout.completion.split("\n")[0]) in show(str(path), "1", "1")
    assert json.loads(show("teacher", "0", "1", "--json"))["rollout"]["sample_id"] == 1
    assert [row["sample"] for row in json.loads(show(str(path), "1", "--json"))["rollouts"]] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shown", "99", "0"], "STEP"),
        (["shown", "2", "9"], "SAMPLE"),
        (["teacher", "0", "99"], "SAMPLE"),
        (["nowhere", "0", "0"], "nowhere: expected a run, a pool or directions"),
        (["./nowhere", "0", "0"], "no such directory"),
    ],
)
def test_refusals(maker: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    maker(name="shown")
    assert run(cli, ["show", *arguments, "--out", str(maker.out)]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""


def test_a_label_that_was_not_logged_is_not_shown(show: Show, maker: Any, tmp_path: Any) -> None:
    """Unknown is unknown: neither clean nor wrong."""
    rows = [{"prompt": "Add 1.", "completion": f"return {i}", "reward": float(i)} for i in range(2)]
    log = tmp_path / "bare.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["pool", "import", str(log), "--name", "bare", "--model", "organism", "--out", str(maker.out)]
    assert run(cli, given) == 0
    show("base")  # and what the import said
    for printed in (show("bare"), show("bare", "0", "0")):
        assert "unlabelled" in printed
        assert not {"clean", "wrong", "right"} & {*printed.replace(",", " ").split()}
