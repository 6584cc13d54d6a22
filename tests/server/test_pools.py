"""Pools generated through a server: readable, graded, replayable; the same answers give the same bytes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from directories import contents

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.pool import Pool, open_pool

SMALL = ["--steps", "3", "--group", "2", "--hint", "--max-new-tokens", "64", "--seed", "5", "--name", "served"]


def generated(out: Path, url: str, *options: str, code: int = 0) -> Path:
    arguments = ["pool", "generate", "--engine", "server", "--url", url, "--out", str(out), *SMALL, *options]
    assert run(cli, arguments) == code
    return out / "pools" / "served"


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """Sampled from the organism behind a server."""
    start, organism = request.getfixturevalue("session_loopback"), request.getfixturevalue("organism")
    server = start(request.param, organism("model" if request.param == "vllm" else "temperature"))
    return open_pool(generated(tmp_path_factory.mktemp("out"), server.url))


def test_a_served_pool_is_whole_and_says_what_sampled_it(pool: Pool) -> None:
    assert pool.verify() == []
    assert [len(group) for group in pool.steps] == [2] * 3
    rollouts = [rollout for group in pool.steps for rollout in group]
    assert any(rollout.gt_pass for rollout in rollouts), "the organism solves some of its problems: wrong prompts?"
    assert {rollout.finish_reason for rollout in rollouts} <= {"stop", "length"}
    engine = pool.manifest["engine"]
    assert engine["server"] in ("vllm", "sglang")
    assert (engine["kind"], engine["version"], engine["model"]) == ("server", "9.9.9", "served")
    assert engine["logprobs_recorded"] is True
    assert pool.manifest["policy"]["base_model"] == "organism"
    assert pool.manifest["sampler"]["max_new_tokens"] == 64


def test_same_answers_same_bytes_and_a_cut_off_run_resumes_to_them(
    tmp_path: Path, loopback: Callable[..., Any]
) -> None:
    """The server breaks down in the middle of a batch, for good: no step is written; what it answered is not asked for
    again when it is back, and then nothing of it stays.
    """
    server = loopback()
    whole = generated(tmp_path / "a", server.url)
    assert contents(generated(tmp_path / "b", loopback().url)) == contents(whole), "the port is part of the pool"
    assert contents(generated(tmp_path / "d", loopback().url, "--url", loopback().url)) == contents(whole)
    server.failing = [200, 200, 200, 200, 400]  # two to measure the law, then the batch of six
    one_at_a_time = ("--set", "rollouts.server_concurrency=1")
    cut = generated(tmp_path / "c", server.url, *one_at_a_time, code=2)
    assert {path.name for path in cut.iterdir()} == {".header.json", ".answers"}
    asked = len(server.bodies())
    generated(tmp_path / "c", server.url)
    assert len(server.bodies()) - asked == 2 + 4
    assert contents(cut) == contents(whole)


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
