"""The grader in a training: its settings `rollouts.code_rule` and `rollouts.cpu_limit`, and its tier."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.files import read_json
from replay_pools.grading import tiers
from replay_pools.pool import PoolWriter, open_pool
from replay_pools.rollout import Rollout


def test_train_and_eval_grade_as_the_settings_say(out: Path, preset, tmp_path: Path, capsys) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("first", ["B", "A"])
def test_a_stopped_training_goes_on_in_the_other_tier(
    first: str, out: Path, preset: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second step on a machine with bubblewrap, resumed on one without, or the other way round."""
    available = tiers.available_tiers()
    if lacking := {tier: lacks for tier, lacks in available.items() if lacks}:
        pytest.skip(f"needs both tiers, and this machine lacks {lacking}")
    (tmp_path / "cache").symlink_to(out / "cache")
    settings = {"steps": 2, "evaluation.num_problems": 1}
    command = ["train", "--name", "moved", "--out", str(tmp_path), "--preset", preset(settings)]
    write = PoolWriter.write_step

    def cut(writer: PoolWriter, step: int, rollouts: Sequence[Rollout]) -> None:
        if step == 2:
            raise KeyboardInterrupt
        write(writer, step, rollouts)

    for tier, code in ((first, 130), ("A" if first == "B" else "B", 0)):
        with monkeypatch.context() as patch:
            if tier == "B":
                patch.setattr(tiers, "available_tiers", lambda: available | {"A": ["bubblewrap"]})
            if code:
                patch.setattr(PoolWriter, "write_step", cut)
            assert run(cli, command) == code
    pool = open_pool(tmp_path / "runs" / "moved" / "rollouts")
    assert [group[0].grade.isolation for group in pool.steps] == [first] * 2 + [tier] * 2
    assert pool.manifest["grader"]["isolation"] == "A+B"
