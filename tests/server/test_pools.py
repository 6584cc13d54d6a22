"""Pools generated through a server: readable, graded; the same answers give the same bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from directories import contents

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.pool import open_pool

SMALL = ["--steps", "3", "--group", "2", "--hint", "--max-new-tokens", "64", "--seed", "5", "--name", "served"]


def generated(out: Path, url: str, *options: str, code: int = 0) -> Path:
    arguments = ["pool", "generate", "--engine", "server", "--url", url, "--out", str(out), *SMALL, *options]
    assert run(cli, arguments) == code
    return out / "pools" / "served"


def test_a_served_pool_is_whole_and_says_what_sampled_it(loopback: Any, organism: Any, tmp_path: Path) -> None:
    pool = open_pool(generated(tmp_path, loopback(organism()).url))
    assert pool.verify() == []
    assert [len(group) for group in pool.steps] == [2] * 3
    rollouts = [rollout for group in pool.steps for rollout in group]
    assert any(rollout.gt_pass for rollout in rollouts), "the organism solves some of its problems: wrong prompts?"
    assert {rollout.finish_reason for rollout in rollouts} <= {"stop", "length"}
    engine = {"kind": "server", "server": "vllm", "version": "9.9.9", "model": "served", "logprobs_recorded": True}
    assert pool.manifest["engine"] == engine
    assert pool.manifest["policy"]["base_model"] == "organism"
    assert pool.manifest["sampler"]["max_new_tokens"] == 64


def test_same_answers_same_bytes_and_a_cut_off_run_resumes_to_them(
    tmp_path: Path, loopback: Callable[..., Any]
) -> None:
    """The server refuses in the middle of a batch: no step is written."""
    server = loopback()
    whole = generated(tmp_path / "a", server.url)
    assert contents(generated(tmp_path / "b", loopback().url)) == contents(whole), "the port is part of the pool"
    server.failing = [200, 200, 400]
    cut = generated(tmp_path / "c", server.url, code=2)
    assert {path.name for path in cut.iterdir()} == {".header.json"}
    assert contents(generated(tmp_path / "c", server.url)) == contents(whole)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ([], "--url"),
        (["--url", "http://h:1", "--adapter", "teacher"], "--adapter"),
        (["--url", "h:1"], "found 'h:1'"),
        (["--engine", "local", "--url", "http://h:1"], "--url"),
    ],
)
def test_options_of_the_other_engine_are_refused(
    options: list[str], where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["pool", "generate", "--name", "x", "--out", str(tmp_path), "--engine", "server", *options]
    assert run(cli, arguments) == 2
    assert where in capsys.readouterr().err
    assert not (tmp_path / "pools").exists()
