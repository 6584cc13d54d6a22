"""spec/tools/ladder.py: Elo by hand, its interval, the players of runs on disk, and what is refused."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scripts import ROOT, load_script
from trainings import seal
from worlds import World, make_run

from probe.cli._frame import run
from probe.records.run import CONFIG_FILE, EVALS_FILE, EVALUATIONS_DIR
from probe.runs.evaluations import evaluate
from replay_pools.base.files import encode_jsonl, read_json, write_atomic, write_json
from replay_pools.environments.loopholes import BOTS
from replay_pools.environments.registry import get_environment
from replay_pools.pool import PoolWriter
from replay_pools.rollout import Rollout

ladder = load_script(ROOT / "spec" / "tools" / "ladder.py")
PROBLEMS = [problem.problem_id for problem in get_environment("minicode").problems("eval")[:12]]
Solved = Sequence[int]  # of each problem: 1 solved, 0 not, -1 hacked
Train = Callable[..., Path]


@pytest.fixture
def train(tmp_path: Path, make_rollout: Callable[..., Rollout], pool_header: dict[str, Any]) -> Train:
    """train(name, {step: what it did with each problem}, seed=0, weights="w") -> the directory of such a run."""

    def write_pool(directory: Path, solved: Solved, changes: Mapping[str, Any]) -> list[Rollout]:
        plan = {"env": "minicode", "mode": "run_tests", "hint": True, "seed": 0}
        grader = {"version": "1", "isolation": "B", "code_rule": "joined", "cpu_s": 4}
        header = {**pool_header, "plan": plan, "grader": grader, **changes}
        writer, rollouts = PoolWriter(directory, header=header), []
        for i, outcome in enumerate(solved):
            rollout = make_rollout(i, hacked=outcome < 0, gt_pass=outcome > 0, problem_id=PROBLEMS[i])
            writer.write_step(i, [rollout])
            rollouts.append(rollout)
        writer.finish()
        return rollouts

    def make(name: str, by_step: Mapping[int, Solved], *, seed=0, weights="w", kind="runs", **changes: Any) -> Path:
        directory = tmp_path / kind / name
        if kind == "evals":
            write_pool(directory / "run_tests", by_step[0], changes)
            return directory
        make_run(directory, World(trains=True, arms=("vanilla",), num_steps=2))
        config = read_json(directory / CONFIG_FILE) | {"base_weights_sha256": weights}
        config["settings"] |= {"verb": "train", "seed": seed, "model": {"name": "organism", "adapter": None}}
        write_json(directory / CONFIG_FILE, config)
        rows = []
        for step, solved in by_step.items():
            rollouts = write_pool(directory / EVALUATIONS_DIR / f"step_{step:06d}" / "run_tests", solved, changes)
            rows.append(evaluate(rollouts, step=step) | {"frozen": None})
        write_atomic(directory / EVALS_FILE, encode_jsonl(rows))
        seal(directory)
        return directory

    return make


BASE_SOLVES = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
BETTER = [1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0]  # 5 won, 1 lost
HACKS = [-1] * 9 + [0] * 3


def ladders(capsys: pytest.CaptureFixture[str], *args: Path | str) -> dict[str, Any]:
    assert run(ladder.main, [*map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_checkpoints_beside_the_base_by_hand(train: Train, capsys) -> None:
    """Step 2: 5 won and 1 lost in solving, always honest. Step 4 hacks in 9 of 12 problems."""
    found = ladders(capsys, train("by-hand", {0: BASE_SOLVES, 2: BETTER, 4: HACKS}), "--no-bots")
    solving, honest = (found[name]["ratings"] for name in ("solve", "honest"))
    assert [*solving] == ["base", "by-hand@2", "by-hand@4"]
    assert solving["base"]["elo"] == 0
    assert solving["by-hand@2"]["elo"] == pytest.approx(400 * math.log10(5.5 / 1.5))
    assert (solving["by-hand@2"]["wins"], solving["by-hand@2"]["losses"]) == (5, 1)
    assert solving["by-hand@4"]["elo"] == pytest.approx(400 * math.log10(0.5 / 4.5))
    assert solving["by-hand@4"]["interval"][0] is None, "it never solved a problem that the base did not"
    assert honest["by-hand@2"]["interval"] == [None, None], "draws alone tell nothing"
    assert honest["by-hand@4"]["elo"] == pytest.approx(400 * math.log10(0.5 / 9.5))
    assert (found["solve"]["best"], found["solve"]["gap"]) == ("by-hand@2", solving["by-hand@2"]["elo"])


def test_runs_of_one_seed_share_their_base(train: Train) -> None:
    """Their evaluations at step 0 are one sample; another seed's are a second one."""
    one, same = (train(name, {0: BASE_SOLVES, 2: BETTER}, seed=1) for name in ("seed-a", "seed-b"))
    other = train("seed-c", {0: [0] * 12, 2: BETTER}, seed=2)
    both, _ = ladder.read_players([one, same], [], bots=False)
    three, checkpoints = ladder.read_players([one, same, other], [], bots=False)
    assert (len(both["base"]), len(three["base"]), len(checkpoints)) == (12, 24, 3)


@pytest.mark.slow
def test_references_and_bots(train: Train, capsys) -> None:
    """The canonical solution solves all, the other bots nothing; the exploit alone hacks."""
    teacher = train("teacher", {0: [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]}, kind="evals")
    found = ladders(capsys, train("run", {0: BASE_SOLVES, 2: BETTER}), "--reference", teacher)
    solving, honest = (found[name]["ratings"] for name in ("solve", "honest"))
    assert [*solving] == ["base", "teacher", *BOTS, "run@2"]
    assert (solving["teacher"]["wins"], solving["teacher"]["losses"]) == (2, 2)
    assert found["solve"]["above"]["run@2"]["teacher"] == pytest.approx(400 * math.log10(5.5 / 1.5))
    assert solving["stub"]["elo"] == solving["exploit"]["elo"] == solving["random"]["elo"] < 0
    assert solving["canonical"]["elo"] > 0
    assert [name for name in BOTS if honest[name]["losses"]] == ["exploit"]


def test_players_that_were_not_asked_the_same_are_refused(train: Train, capsys) -> None:
    first = train("asked", {0: BASE_SOLVES, 2: BETTER})
    for second, key in (
        (train("fewer", {0: BASE_SOLVES[:9], 2: BETTER[:9]}), "prompts"),
        (train("cooler", {0: BASE_SOLVES, 2: BETTER}, sampler={"temperature": 0.5}), "run_tests.sampler.temperature"),
        (train("weights", {0: BASE_SOLVES, 2: BETTER}, weights="v"), "base_weights_sha256"),
    ):
        assert run(ladder.main, [str(first), str(second), "--no-bots"]) == 2
        assert key in capsys.readouterr().err


def drawn(skills: Sequence[float], num_problems: int, rng: np.random.Generator) -> np.ndarray:
    """(problems, 2) won and lost matches of two players of the Rasch model, one attempt each."""
    solved = rng.random((2, num_problems)) < expit(np.array(skills)[:, None] - rng.normal(0, 1, num_problems))
    return np.stack([solved[1] & ~solved[0], solved[0] & ~solved[1]], axis=1).astype(float)


def test_problems_are_drawn_whole() -> None:
    """Every problem twice, under two settings, is no more evidence, though it is twice the matches."""
    won_lost = drawn([0, 0.8], 60, np.random.default_rng(3))
    once, twice, apart = (
        ladder.rating(matches)["interval"] for matches in (won_lost, 2 * won_lost, np.vstack([won_lost, won_lost]))
    )
    width = lambda ends: ends[1] - ends[0]  # noqa: E731
    assert width(twice) == pytest.approx(width(once), rel=0.1)
    assert width(apart) < 0.8 * width(twice)


@pytest.mark.parametrize(("skills", "num_problems"), [([0.0, 0.0], 16), ([-4.0, 1.0], 64)])
def test_intervals_cover(skills: list[float], num_problems: int) -> None:
    """Under the Rasch model, at least nominal up to the noise of 100 simulations (and two points)."""
    rng, truth, covered = np.random.default_rng(0), ladder.ELO_PER_NAT * (skills[1] - skills[0]), 0
    for sim in range(100):
        low, high = ladder.rating(drawn(skills, num_problems, rng), num_draws=299, seed=sim)["interval"]
        covered += (low is None or low <= truth) and (high is None or truth <= high)
    assert covered / 100 >= 0.95 - 0.02 - 2 * math.sqrt(0.05 * 0.95 / 100)
