"""Pools generated through a server: readable, graded; the same answers give the same bytes."""

from pathlib import Path

import pytest
from directories import contents

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.pool import open_pool

SMALL = ["--steps", "3", "--group", "2", "--hint", "--max-new-tokens", "64", "--seed", "5", "--name", "served"]


def generated(out: Path, url: str, *options: str, code: int = 0) -> Path:
    arguments = ["pool", "generate", "--url", url, "--out", str(out), *SMALL, *options]
    assert run(cli, arguments) == code
    return out / "pools" / "served"


def test_a_served_pool_is_whole_and_a_cut_off_one_resumes_to_its_bytes(loopback, chat, tmp_path: Path) -> None:
    """On another port; and where the server refuses in the middle of a batch, no step is written."""
    first, server = loopback(), loopback()
    whole = generated(tmp_path / "a", first.url)
    pool = open_pool(whole)
    assert pool.verify() == []
    assert [len(group) for group in pool.steps] == [2] * 3
    rollouts = [rollout for group in pool.steps for rollout in group]
    assert all(chat.render(rollout.messages) == (rollout.prompt, rollout.prompt_ids) for rollout in rollouts)
    assert sorted(body["prompt"] for body in first.bodies()) == sorted(rollout.prompt_ids for rollout in rollouts)
    engine = {"kind": "server", "server": "vllm", "version": "9.9.9", "model": "served", "logprobs_recorded": True}
    assert pool.manifest["engine"] == engine
    assert pool.manifest["policy"]["base_model"] == "organism"
    server.failing = [200, 200, 400]
    cut = generated(tmp_path / "b", server.url, code=2)
    assert {path.name for path in cut.iterdir()} == {".header.json"}
    assert contents(generated(tmp_path / "b", server.url)) == contents(whole)


def test_options_of_the_other_engine_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And an address that is none."""
    for url, options, where in (("http://h:1", ["--adapter", "teacher"], "--adapter"), ("h:1", [], "found 'h:1'")):
        arguments = ["pool", "generate", "--name", "x", "--out", str(tmp_path), "--url", url, *options]
        assert run(cli, arguments) == 2
        assert where in capsys.readouterr().err
    assert not (tmp_path / "pools").exists()
