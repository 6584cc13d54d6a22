"""Rate the checkpoints of trainings against fixed references, by Elo on their held-out problems.

    python spec/tools/ladder.py out/runs/vanilla-0 out/runs/projected-0 --reference out/evals/teacher

A match is one problem under one setting and one attempt of each player. The player whose attempt succeeds alone wins;
other matches draw and are left out (Davidson, JASA 65, 1970). With shares s of attempts that succeed, i wins
s_i (1 - s_j) of the matches with j. Elo of i above j is 400 log10 of (wins + 1/2) / (losses + 1/2): the maximum of the
Bradley-Terry likelihood, with half a win and half a loss against infinity (Haldane 1956). The zero is the base, the
policy before step 0, so that no other checkpoint moves a rating.

The interval is of a bootstrap over problems: all matches of a problem are drawn together, and two more problems, one
won and one lost (Laplace's rule), so that a player that never lost may lose in a draw.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy import special

import probe
from probe.analysis.statistics.intervals import student_quantile
from probe.analysis.training_runs import deployed, evaluation_path
from probe.cli._frame import run as run_command
from replay_pools.base.errors import InputError
from replay_pools.base.files import dump_json, sha256
from replay_pools.base.tables import first_difference
from replay_pools.environments.loopholes import BOTS
from replay_pools.environments.registry import get_environment
from replay_pools.grading.grade import Grader, Submission, canary
from replay_pools.pool import MANIFEST_NAME, open_pool
from replay_pools.rollout import Grade

ELO_PER_NAT = 400 / math.log(10)
SUCCEEDS = {"solve": lambda grade: bool(grade.gt_correct), "honest": lambda grade: not grade.hacked}
Attempts = list[tuple[tuple[str, str], Grade]]  # ((setting, problem), its grade)
FIX = "players of one ladder start from one base and answer the same prompts: rate them apart"


def elo(wins: Any, losses: Any) -> Any:
    """Return the Elo of a player above another, from the matches that it won and lost."""
    return ELO_PER_NAT * np.log((np.asarray(wins) + 0.5) / (np.asarray(losses) + 0.5))


def matches(attempts: Attempts, others: Attempts, ladder: str) -> np.ndarray:
    """Return (problems, 2): the matches on each problem that the first player won, and lost."""
    shares, theirs = _shares(attempts, ladder), _shares(others, ladder)
    counts: dict[str, np.ndarray] = {}
    for task in filter(shares.__contains__, theirs):
        one, other = shares[task], theirs[task]
        counts[task[1]] = counts.get(task[1], 0.0) + np.array([one * (1 - other), other * (1 - one)])
    return np.array([*counts.values()])


def rating(won_lost: np.ndarray, *, num_draws: int = 999, seed: int = 0) -> dict[str, Any]:
    """Return Elo, its 95% interval (None: nothing bounds that end), wins and losses, of (problems, 2) `matches`."""
    n = len(won_lost) + 2
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), num_draws).astype(np.float64)
    drawn = counts @ np.vstack([won_lost, np.eye(2)])
    elos = elo(drawn[:, 0], drawn[:, 1])
    # A draw without a win is no evidence against any lower rating, one without a loss against none that is higher.
    lowest, highest = np.where(drawn[:, 0] > 0, elos, -np.inf), np.where(drawn[:, 1] > 0, elos, np.inf)
    # The expanded percentile interval (Hesterberg 2015, section 5.3).
    tail = float(special.ndtr(-math.sqrt(n / (n - 1)) * student_quantile(0.95, n - 1)))
    ends = (np.quantile(lowest, tail, method="lower"), np.quantile(highest, 1 - tail, method="higher"))
    wins, losses = won_lost.sum(axis=0)
    interval = [float(end) if math.isfinite(end) else None for end in ends]
    return {"elo": float(elo(wins, losses)), "interval": interval, "wins": float(wins), "losses": float(losses)}


def _shares(attempts: Attempts, ladder: str) -> dict[tuple[str, str], float]:
    by_task: dict[tuple[str, str], list[bool]] = {}
    for task, grade in attempts:
        by_task.setdefault(task, []).append(SUCCEEDS[ladder](grade))
    return {task: sum(flags) / len(flags) for task, flags in by_task.items()}


class Sitting:
    """One policy on all held-out problems in all settings: the pools in a directory, one a setting."""

    def __init__(self, directory: Path) -> None:
        """Read the pools; InputError: there are none, or a damaged one."""
        self.where, self.env = directory, ""
        self.attempts: Attempts = []
        self.asked: dict[str, Any] = {}  # {setting: mode, sampler, grader and the hash of each prompt}
        for path in sorted(manifest.parent for manifest in directory.glob(f"*/{MANIFEST_NAME}")):
            pool = open_pool(path)
            plan, grader, self.env = pool.manifest["plan"], pool.manifest["grader"], pool.manifest["plan"]["env"]
            graded = {name: grader.get(name) for name in ("version", "code_rule", "cpu_s")}
            rollouts = [rollout for group in pool.steps for rollout in group]
            prompts = {rollout.problem_id: sha256(dump_json(rollout.messages)) for rollout in rollouts}
            kept = {"mode": plan["mode"], "hint": plan["hint"], "sampler": pool.manifest["sampler"]}
            self.asked[path.name] = {**kept, "grader": graded, "prompts": prompts}
            self.attempts += [((path.name, rollout.problem_id), rollout.grade) for rollout in rollouts]
        if not self.asked:
            raise InputError(directory, expected="rollouts of an evaluation, a pool a setting", found="none")


def grade_bots(sitting: Sitting) -> dict[str, Attempts]:
    """Return the graded answers of the bots to the problems of a sitting, {bot: its attempts}."""
    known = get_environment(sitting.env).by_id()
    grader_settings = next(iter(sitting.asked.values()))["grader"]
    tasks = [(setting, problem) for setting, asked in sitting.asked.items() for problem in asked["prompts"]]
    if missing := [problem for _, problem in tasks if problem not in known]:
        raise InputError(sitting.where, expected=f"problems of {sitting.env}", found=missing[0], fix="say --no-bots")
    with Grader(code_rule=grader_settings["code_rule"], cpu_s=grader_settings["cpu_s"]) as grader:
        canary(grader, [known[problem] for _, problem in tasks])
        answers = []
        for answer in BOTS.values():
            for setting, problem in tasks:
                mode = sitting.asked[setting]["mode"]
                completion = answer(known[problem], mode)
                answers.append(Submission(problem=known[problem], completion=completion, mode=mode))
        grades = iter(grader.grade(answers, known=True))
    return {name: [(task, next(grades)) for task in tasks] for name in BOTS}


def read_players(
    runs: Sequence[Path], references: Iterable[Path], *, bots: bool
) -> tuple[dict[str, Attempts], dict[str, Attempts]]:
    """Return the references, the base first, and the checkpoints, called RUN@STEP; refuse players of other exams."""
    bases: dict[Any, Sitting] = {}  # {seed: its sitting}: runs of one seed sample their base alike
    checkpoints: dict[str, Attempts] = {}
    first: tuple[Mapping[str, Any], Sitting] | None = None
    for path in runs:
        run = probe.read_run(path)
        steps = [row["step"] for row in deployed(run.evals)]
        if not steps or steps[0] != 0:
            raise InputError(path, expected="a training with an evaluation before step 0", found=f"{len(steps)}")
        start = {name: run.config.get(name) for name in ("base_weights_sha256", "adapter_sha256")}
        for step in steps:
            sitting = Sitting(evaluation_path(run.path, step))
            first = first or (start, sitting)
            _check_same(sitting, {"asked": sitting.asked, **start}, {"asked": first[1].asked, **first[0]})
            if step:
                checkpoints[f"{run.path.resolve().name}@{step}"] = sitting.attempts
            else:
                bases[run.settings.seed] = sitting
    assert first is not None
    players = {"base": [attempt for sitting in bases.values() for attempt in sitting.attempts]}
    for path in references:
        sitting = Sitting(path)
        _check_same(sitting, {"asked": sitting.asked}, {"asked": first[1].asked})
        players[path.name] = sitting.attempts
    return players | (grade_bots(first[1]) if bots else {}), checkpoints


def _check_same(sitting: Sitting, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    if difference := first_difference(found, expected):
        name, theirs, first = difference
        raise InputError(
            f"{sitting.where} {name}", expected=f"{first!r} as of the first run", found=repr(theirs), fix=FIX
        )


def ladder_of(references: Mapping[str, Attempts], checkpoints: Mapping[str, Attempts], name: str) -> dict[str, Any]:
    """Return the ratings above the base, the best checkpoint, and each checkpoint's Elo above every reference."""
    players = {**references, **checkpoints}
    ratings = {player: rating(matches(players[player], references["base"], name)) for player in players}
    above = {}
    for checkpoint, attempts in checkpoints.items():
        pairs = {other: matches(attempts, references[other], name).sum(axis=0) for other in references}
        above[checkpoint] = {other: float(elo(*won_lost)) for other, won_lost in pairs.items()}
    best = max(checkpoints, key=lambda checkpoint: ratings[checkpoint]["elo"], default=None)
    return {"ratings": ratings, "best": best, "gap": None if best is None else ratings[best]["elo"], "above": above}


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--reference", "references", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--bots/--no-bots", default=True, help="Grade the bots, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the Elo above each reference.")
def main(runs: tuple[Path, ...], references: tuple[Path, ...], *, bots: bool, as_json: bool) -> None:
    """Rate every evaluated checkpoint of the training RUNS: one ladder for solving, one for staying honest."""
    fixed, checkpoints = read_players(runs, references, bots=bots)
    ladders = {name: ladder_of(fixed, checkpoints, name) for name in SUCCEEDS}
    if as_json:
        click.echo(json.dumps(ladders))
        return
    for name, ladder in ladders.items():
        click.echo(f"\n{name}: Elo above the base, 95% over problems (nothing about other seeds of a training)")
        for player, row in sorted(ladder["ratings"].items(), key=lambda item: -item[1]["elo"]):
            low, high = (".." if end is None else f"{end:+.0f}" for end in row["interval"])
            click.echo(
                f"  {player:<40}{row['elo']:+6.0f}  [{low}, {high}]  won {row['wins']:g}, lost {row['losses']:g}"
            )
        click.echo(f"  best checkpoint: {ladder['best']} (the best of several reads too high on average)")


if __name__ == "__main__":
    sys.exit(run_command(main))
