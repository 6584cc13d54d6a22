"""Logs of writers, and of loops of one's own, read by the real command as tests/data/logs/table.toml says."""

import importlib.util
from pathlib import Path

import pytest
from log_fixtures import READ, cases, line_of, source_of

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.pool import open_pool

CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_a_log_is_read_as_its_table_says(name: str, tmp_path: Path, capsys) -> None:
    case, source = CASES[name], source_of(name)
    if "needs" in case and importlib.util.find_spec(case["needs"]) is None:
        pytest.skip(f"needs {case['needs']}")
    arguments = ["pool", "import", str(source), "--name", name, "--model", "organism", "--out", str(tmp_path)]
    if "refused" in case:
        assert run(cli, arguments) == 2
        assert case["refused"] in capsys.readouterr().err
        if "rewards" not in case:
            return
    assert run(cli, [*arguments, *(["--map", case["map"]] if "map" in case else [])]) == 0
    pool = open_pool(tmp_path / "pools" / name)
    assert [[rollout.reward for rollout in group] for group in pool.steps] == [
        pytest.approx(rewards) for rewards in case["rewards"]
    ]
    assert line_of(name, case, pool) in READ.read_text().splitlines()
    rollouts = [rollout for group in pool.steps for rollout in group]
    if "caution" in case:
        assert any(case["caution"] in caution for caution in pool.cautions), pool.cautions
    if "steps" in case:
        assert pool.manifest["log"]["training_steps"] == case["steps"]
    if "finish" in case:
        assert ["".join(rollout.finish_reason[0] for rollout in group) for group in pool.steps] == case["finish"]
    if "right" in case:
        assert [[rollout.gt_pass for rollout in group] for group in pool.steps] == case["right"]
    assert {rollout.comp_len - rollout.num_sampled for rollout in rollouts} == {case.get("unsampled", 0)}
    assert all(rollout.completion.startswith(case.get("starts", "")) for rollout in rollouts)
    assert all(case.get("prompt", "") in rollout.prompt for rollout in rollouts)
    if "logprob" in case:
        assert {value for rollout in rollouts for value in rollout.sampling_logprobs or []} == {case["logprob"]}
