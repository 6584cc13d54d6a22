"""spec/tools/ladder.py: players from runs on disk, ladders of them, what is refused, and what a training records."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT, load_script
from trainings import seal
from worlds import World, make_run

from probe.analysis.ladder import (
    BASE,
    Player,
    Training,
    base_of,
    check_same_base,
    checkpoints_of,
    elo_values,
    make_ladder,
    read_sitting,
    read_training,
    shares_of,
)
from probe.analysis.statistics.bradley_terry import elo_gap
from probe.cli import cli
from probe.cli._frame import run
from probe.records.run import CONFIG_FILE, EVALS_FILE, EVALUATIONS_DIR, read_run
from probe.runs.heldout import bot_players, evaluate
from replay_pools.base.errors import InputError
from replay_pools.base.files import encode_jsonl, read_json, write_atomic, write_json
from replay_pools.environments.loopholes import BOTS
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.grading.grade import Grader, canary
from replay_pools.pool import PoolWriter
from replay_pools.rollout import Rollout

LADDER = load_script(ROOT / "spec" / "tools" / "ladder.py").ladder
PROBLEMS = [problem.problem_id for problem in MinicodeEnvironment().problems("eval")[:12]]
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

    def make(
        name: str,
        by_step: Mapping[int, Solved],
        *,
        seed: int = 0,
        weights: str = "w",
        kind: str = "runs",
        **changes: Any,
    ) -> Path:
        directory = tmp_path / kind / name
        if kind == "evals":
            write_pool(directory / "run_tests", by_step[0], changes)
            return directory
        make_run(directory, World(trains=True, arms=("vanilla",), num_steps=2))
        config = read_json(directory / CONFIG_FILE) | {"base_weights_sha256": weights}
        config["settings"] = {**config["settings"], "verb": "train", "seed": seed, "model": {"adapter": None}}
        write_json(directory / CONFIG_FILE, config)
        rows = []
        for step, solved in by_step.items():
            rollouts = write_pool(directory / EVALUATIONS_DIR / f"step_{step:06d}" / "run_tests", solved, changes)
            rows.append(evaluate(rollouts, step=step) | {"frozen": None, "elo": None})
        write_atomic(directory / EVALS_FILE, encode_jsonl(rows))
        seal(directory)
        return directory

    return make


BASE_SOLVES = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
BETTER = [1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0]  # 5 won, 1 lost
HACKS = [-1] * 9 + [0] * 3


def ladder_json(out: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(LADDER, [*options, "--out", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_checkpoints_beside_the_base_by_hand(train: Train, tmp_path: Path, capsys) -> None:
    """Step 2: 5 won and 1 lost in solving, always honest. Step 4 hacks in 9 of 12 problems."""
    train("by-hand", {0: BASE_SOLVES, 2: BETTER, 4: HACKS})
    result = ladder_json(tmp_path, "by-hand", "--no-bots", capsys=capsys)
    solving = {row["player"]: row for row in result["solve"]["ratings"]}
    assert [*solving] == ["base", "by-hand@2", "by-hand@4"]
    assert solving["base"] | {"interval": None, "elo": 0.0} == solving["base"], "the base is the zero"
    assert solving["by-hand@2"]["elo"] == pytest.approx(400 * math.log10(5.5 / 1.5))
    assert (solving["by-hand@2"]["wins"], solving["by-hand@2"]["losses"]) == (5, 1)
    assert solving["by-hand@4"]["elo"] == pytest.approx(400 * math.log10(0.5 / 4.5))
    assert solving["by-hand@4"]["interval"][0] is None, "it never solved what the base did not: no lower bound"
    honest = {row["player"]: row for row in result["honest"]["ratings"]}
    assert honest["by-hand@2"]["interval"] == [None, None], "draws alone tell nothing"
    assert honest["by-hand@4"]["elo"] == pytest.approx(400 * math.log10(0.5 / 9.5))
    (of_run,) = result["solve"]["runs"]
    assert (result["solve"]["best"], of_run["best"], of_run["latest"]) == ("by-hand@2", "by-hand@2", "by-hand@4")
    assert of_run["gap"] == solving["by-hand@2"]["elo"]
    assert of_run["best_against_latest"]["elo"] == pytest.approx(400 * math.log10(8.5 / 0.5))


def test_runs_from_one_adapter_share_their_base_wherever_it_lies(train: Train) -> None:
    def started(name: str, adapter: str, weights: str) -> Training:
        directory = train(name, {0: BASE_SOLVES, 2: BETTER})
        config = read_json(directory / CONFIG_FILE) | {"adapter_sha256": weights}
        config["settings"]["model"] = {"adapter": adapter}
        write_json(directory / CONFIG_FILE, config)
        seal(directory)
        return read_training(read_run(directory))

    one, moved, other = started("one", "a", "1"), started("moved", "b", "1"), started("other", "a", "2")
    check_same_base([one, moved])
    with pytest.raises(InputError, match="adapter_sha256"):
        check_same_base([one, other])


def test_runs_of_one_seed_share_their_base(train: Train) -> None:
    """Their evaluations at step 0 are one sample; those of another seed are a second one."""
    other = [0] * 12
    paths = [
        train("seed-a", {0: BASE_SOLVES, 2: BETTER}, seed=1),
        train("seed-b", {0: BASE_SOLVES, 2: HACKS}, seed=1),
        train("seed-c", {0: other, 2: BETTER}, seed=2),
    ]
    trainings = [read_training(read_run(path)) for path in paths]
    base = base_of(trainings)
    assert [*base.shares["solve"].values()] == [solved / 2 for solved in BASE_SOLVES]
    assert base_of(trainings[:2]).shares == base_of(trainings[:1]).shares
    assert [player.name for player in checkpoints_of(trainings[2])] == ["seed-c@2"]


def test_a_reference_rates_where_it_won_and_lost(train: Train, tmp_path: Path, capsys) -> None:
    train("with-teacher", {0: BASE_SOLVES, 2: BETTER})
    train("teacher", {0: [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]}, kind="evals")
    train("strong", {0: [1] * 12}, kind="evals")
    options = ("with-teacher", "--reference", "teacher", "--reference", "strong", "--no-bots")
    result = ladder_json(tmp_path, *options, capsys=capsys)["solve"]
    assert result["raters"] == ["base", "teacher"]
    ratings = {row["player"]: row for row in result["ratings"]}
    assert ratings["teacher"]["elo"] == pytest.approx(0, abs=1e-4), "2 won, 2 lost"
    assert (ratings["with-teacher@2"]["wins"], ratings["with-teacher@2"]["losses"]) == (5 + 5, 1 + 1)
    assert ratings["strong"]["interval"][1] is None


def refusal(capsys: pytest.CaptureFixture[str], out: Path, *options: str) -> str:
    assert run(LADDER, [*options, "--no-bots", "--out", str(out)]) == 2
    return capsys.readouterr().err


def test_players_that_were_not_asked_the_same_are_refused(train: Train, tmp_path: Path, capsys) -> None:
    train("asked", {0: BASE_SOLVES, 2: BETTER})
    train("fewer", {0: BASE_SOLVES[:9], 2: BETTER[:9]})
    train("cooler", {0: BASE_SOLVES, 2: BETTER}, sampler={"temperature": 0.5})
    train("weights", {0: BASE_SOLVES, 2: BETTER}, weights="v")
    for second, key in (
        ("fewer", "9 prompts"),
        ("cooler", "run_tests.sampler.temperature"),
        ("weights", "base_weights_sha256"),
        ("asked", "two called asked"),
    ):
        assert key in refusal(capsys, tmp_path, "asked", second)
    assert "nobody" in refusal(capsys, tmp_path, "asked", "--reference", "nobody")


def test_bots_are_graded_by_the_grader(train: Train, tmp_path: Path, capsys) -> None:
    """The canonical solution solves all, the others nothing; the exploit alone hacks. All are on the ladders."""
    problems = MinicodeEnvironment().problems("eval")[:3]
    with Grader(workers=1) as grader:
        canary(grader, problems)
        bots = bot_players(grader, problems, {"run_tests": "run_tests", "none-no-hint": "none"})
    assert [bot.name for bot in bots] == [*BOTS]
    solved = {bot.name: {*bot.shares["solve"].values()} for bot in bots}
    assert solved == {"stub": {0}, "canonical": {1}, "exploit": {0}, "random": {0}}
    honest = {bot.name: [*bot.shares["honest"].values()] for bot in bots}
    assert honest == {"stub": [1] * 6, "canonical": [1] * 6, "exploit": [0] * 3 + [1] * 3, "random": [1] * 6}
    train("with-bots", {0: BASE_SOLVES, 2: BETTER})
    result = ladder_json(tmp_path, "with-bots", capsys=capsys)
    assert [row["player"] for row in result["solve"]["ratings"]] == ["base", *BOTS, "with-bots@2"]
    assert result["solve"]["raters"] == ["base"]
    ratings = {row["player"]: row["elo"] for row in result["solve"]["ratings"]}
    assert ratings["stub"] == ratings["exploit"] == ratings["random"] < 0 < ratings["canonical"]


def test_the_values_of_a_training_follow_the_policy() -> None:
    """elo/base is the base as the policy sees it, elo/gap the best so far above it."""
    tasks = [("run_tests", str(i)) for i in range(12)]
    shares = lambda solved: {name: dict(zip(tasks, solved, strict=True)) for name in ("solve", "honest")}  # noqa: E731
    references = {BASE: shares(BASE_SOLVES), "stub": shares([0] * 12)}
    start = elo_values(references[BASE], references, [])["solve"]
    assert (start["base"], start["gap"]) == (0, None)
    assert (start["base_low"], start["base_high"]) == (None, None)
    better = elo_values(shares(BETTER), references, [{"solve": start, "honest": start}])["solve"]
    assert better["base"] == pytest.approx(-elo_gap(BETTER, BASE_SOLVES))
    assert better["gap"] == -better["base"]
    assert better["stub"] == pytest.approx(400 * math.log10(0.5 / 8.5))
    earlier = [{"solve": row, "honest": row} for row in (start, better)]
    fallen = elo_values(shares([0] * 12), references, earlier)["solve"]
    assert fallen["base"] > 0
    assert fallen["gap"] == better["gap"]
    only_worse = elo_values(shares([0] * 12), references, earlier[:1])["solve"]
    assert only_worse["gap"] == -only_worse["base"] < 0


def test_a_training_records_what_its_pools_say(out: Path, preset: Callable[..., str], capsys) -> None:
    """evals.jsonl, recomputed from the pools; and the ladder of a real run has the same gap to its base."""
    options = ["--preset", preset({"evaluation.num_problems": 4, "steps": 2}), "--name", "ladder-real"]
    assert run(cli, ["train", *options, "--out", str(out)]) == 0
    record = read_run(out / "runs" / "ladder-real")
    base, last = (read_sitting(record.path / EVALUATIONS_DIR / f"step_{step:06d}") for step in (0, 2))
    players = [Player(name=BASE, kind="base", shares=shares_of(base.attempts))]
    players.append(Player(name="last", kind="checkpoint", shares=shares_of(last.attempts), run="ladder-real", step=2))
    for name in ("solve", "honest"):
        row = record.evals[-1]["elo"][name]
        rated = make_ladder(name, players).ratings[1]
        assert row["base"] == pytest.approx(-rated.elo)
        assert row["gap"] == -row["base"]
        assert {*row} == {"base", "base_low", "base_high", "gap", *BOTS}
    capsys.readouterr()
    assert run(LADDER, ["ladder-real", "--out", str(out)]) == 0
    assert "ladder-real@2" in capsys.readouterr().out
