"""Rollouts without label (the machine was too busy to grade them), through the real commands: they count nowhere."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small import ORGANISM

from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import read_run
from replay_pools.grading.execution import Outcome, StarvedError
from replay_pools.grading.executor import Worker
from replay_pools.pool import open_pool

STEPS = 2


@pytest.fixture(scope="module")
def starved() -> Iterator[Callable[..., Outcome]]:
    """Starve the graders of this module: by the text of the submission, about every fifth one, whenever it is tried.

    Yields the execution that starves nothing.
    """
    execute = Worker.execute

    def execute_or_starve(worker, code, run, cpu_s):
        if len(code.source) % 5 == 0 and "return 0\n" not in code.source[-12:]:
            raise StarvedError("the machine is too busy: test")
        return execute(worker, code, run, cpu_s)

    with pytest.MonkeyPatch.context() as patch:
        # Not the checks of the problems, whose canonical solutions may have that length.
        for module in ("replay_pools.generate", "probe.runs.train"):
            patch.setattr(f"{module}.canary", lambda grader, problems: None)
        patch.setattr("replay_pools.grading.grade.Grader._self_test", lambda grader: None)
        patch.setattr(Worker, "execute", execute_or_starve)
        yield execute


@pytest.fixture(scope="module")
def pool(starved: Callable[..., Outcome], out: Path) -> Path:
    """A pool of the base policy of which some rollouts have no label."""
    options = ["--name", "busy", "--hint", "--steps", str(STEPS), "--group", "8", "--out", str(out)]
    assert run(cli, ["pool", "generate", *options]) == 0
    return out / "pools" / "busy"


def unlabelled(rollouts):
    return [rollout for rollout in rollouts if not rollout.labelled]


def test_a_pool_keeps_them_and_its_rates_do_not(pool: Path, out: Path, capsys) -> None:
    rollouts = [rollout for group in open_pool(pool).steps for rollout in group]
    missing = unlabelled(rollouts)
    assert 0 < len(missing) < len(rollouts)
    assert not any(rollout.reward or rollout.hacked or rollout.gt_pass or rollout.fmt_ok for rollout in missing)
    assert run(cli, ["pool", "verify", "busy", "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(cli, ["pool", "show", "busy", "--json", "--out", str(out)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["without_label"] == len(missing)
    assert shown["modes"]["run_tests"]["rollouts"] == len(rollouts) - len(missing)
    assert sum(cell["rollouts"] for cell in shown["advantage_cells"]) == len(rollouts) - len(missing)


def test_a_replay_never_draws_them(pool: Path, out: Path, few_pairs: list[str], capsys) -> None:
    """Also not where they would fill a group: that is refused, and says what to do."""
    most = min(sum(rollout.labelled for rollout in group) for group in open_pool(pool).steps)
    options = ["replay", "--replay-dirs", "busy", "--arm", "vanilla", "--out", str(out), *few_pairs]
    assert run(cli, [*options, "--name", "busy", "--per-pool", str(most)]) == 0
    assert "have no label and are never drawn" in capsys.readouterr().err
    assert all(sample.no_label is None for sample in read_run(out / "runs" / "busy").samples)
    assert run(cli, [*options, "--name", "busy-all", "--per-pool", "8"]) == 2
    assert "at least 8 rollouts with a label" in capsys.readouterr().err


def test_a_regrade_on_a_quiet_machine_labels_them(
    pool: Path, out: Path, starved: Callable[..., Outcome], capsys
) -> None:
    """What the old pool has no label of is not compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "execute", starved)
        assert run(cli, ["pool", "regrade", "busy", "--name", "busy-again", "--json", "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["without_label"] == 0
    missing = len(unlabelled(rollout for group in open_pool(pool).steps for rollout in group))
    assert {row["n"] for row in report["agreement"]} == {8 * STEPS - missing}
    assert {row["rate"] for row in report["agreement"]} == {1.0}


def test_training_gives_them_no_advantage_and_no_baseline(
    starved: Callable[..., Outcome], out: Path, preset: Callable[..., str], capsys
) -> None:
    """Their advantage is exactly 0, the others' is that of a group without them; a contrast has none of them."""
    settings = ORGANISM | {"objective.scale_rewards": "none", "evaluation.every": 3, "evaluation.num_problems": 1}
    options = ["--preset", preset(settings), "--name", "busy-train", "--out", str(out)]
    assert run(cli, ["train", *options]) == 0
    trained = read_run(out / "runs" / "busy-train")
    groups: dict[tuple[int, int], list] = {}
    for sample in trained.samples:
        groups.setdefault((sample.step, sample.src_step), []).append(sample)
    num_missing = 0
    for group in groups.values():
        rewards = [sample.reward for sample in group if sample.no_label is None]
        for sample in group:
            if sample.no_label is not None:
                num_missing += 1
                assert (sample.advantage, sample.cos_S_contrib) == (0, None)
            else:
                assert sample.advantage == pytest.approx(sample.reward - sum(rewards) / len(rewards), abs=1e-9)
    assert num_missing, "no rollout was starved: the test shows nothing"
    capsys.readouterr()
    assert run(cli, ["analyze", "busy-train", "--out", str(out)]) == 0
    assert f"Excluded: {num_missing} samples without label" in " ".join(capsys.readouterr().out.split())
