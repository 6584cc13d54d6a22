"""The settings of the grader, `rollouts.code_rule` and `rollouts.cpu_limit`, through train and eval."""

from collections.abc import Callable
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.files import read_json


def test_train_and_eval_grade_as_the_settings_say(
    out: Path, preset: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule and limit reach every pool of both verbs, and neither may change in a run or an evaluation that goes on."""
    (tmp_path / "cache").symlink_to(out / "cache")
    settings = {"rollouts.code_rule": "joined", "rollouts.cpu_limit": 6, "steps": 1, "evaluation.num_problems": 1}
    train = ["train", "--name", "ruled", "--out", str(tmp_path), "--preset"]
    evaluate = ["policy", "eval", "--name", "ruled", "--out", str(tmp_path), "--problems", "1", "--rollouts", "1"]
    limit = ["--set", "rollouts.cpu_limit=6"]
    assert run(cli, [*train, preset(settings)]) == 0
    assert run(cli, [*evaluate, *limit, "--set", "rollouts.code_rule=joined"]) == 0
    for folder in ("runs", "evals"):
        manifests = [read_json(path) for path in (tmp_path / folder / "ruled").rglob("manifest.json")]
        graders = [manifest["grader"] for manifest in manifests if "grader" in manifest]
        assert graders
        assert {(grader["code_rule"], grader["cpu_s"]) for grader in graders} == {("joined", 6)}
    (tmp_path / "runs" / "ruled" / "manifest.json").unlink()
    for changed in ({"rollouts.code_rule": "solution"}, {"rollouts.cpu_limit": 7}):
        capsys.readouterr()
        assert run(cli, [*train, preset(settings | changed)]) == 2
        assert next(iter(changed)) in capsys.readouterr().err
    assert run(cli, [*evaluate, *limit, "--set", "rollouts.code_rule=solution"]) == 2
    assert "grader.code_rule: expected 'solution', found 'joined'" in capsys.readouterr().err
