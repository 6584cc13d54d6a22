"""The grader in a training: its settings `rollouts.code_rule` and `rollouts.cpu_limit`."""

from collections.abc import Callable
from pathlib import Path

from replay_pools.base.files import read_json


def test_train_and_eval_grade_as_the_settings_say(out: Path, preset: Callable[..., str], refused, probe) -> None:
    """Rule and limit reach every pool of both verbs, and neither may change in a run or an evaluation that goes on."""
    settings = {"rollouts.code_rule": "joined", "rollouts.cpu_limit": 6, "steps": 1, "evaluation.num_problems": 1}
    evaluate = ("policy", "eval", "--name", "ruled", "--problems", "1", "--rollouts", "1")
    evaluate += ("--set", "rollouts.cpu_limit=6", "--set")
    probe("train", "--name", "ruled", "--preset", preset(settings))
    probe(*evaluate, "rollouts.code_rule=joined")
    for folder in ("runs", "evals"):
        manifests = [read_json(path) for path in (out / folder / "ruled").rglob("manifest.json")]
        graders = [manifest["grader"] for manifest in manifests if "grader" in manifest]
        assert graders
        assert {(grader["code_rule"], grader["cpu_s"]) for grader in graders} == {("joined", 6)}
    (out / "runs" / "ruled" / "manifest.json").unlink()
    for changed in ({"rollouts.code_rule": "solution"}, {"rollouts.cpu_limit": 7}):
        assert next(iter(changed)) in refused("train", "--name", "ruled", "--preset", preset(settings | changed))
    expected = "grader.code_rule: expected 'solution', found 'joined'"
    assert expected in refused(*evaluate, "rollouts.code_rule=solution")
