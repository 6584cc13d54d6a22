"""Rate the checkpoints of trainings against fixed references, by Elo.

python spec/tools/ladder.py vanilla-0 projected-0 --reference teacher
"""

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.cli._frame import echo, echo_json, echo_table, json_option, out_option, run
from probe.cli._running import say
from probe.records.run import read_run
from replay_pools.base.errors import InputError, unknown_name
from replay_pools.base.files import by_name

if TYPE_CHECKING:  # numpy, scipy and torch: a help text needs none of them
    from probe.analysis.ladder import Ladder, Player, Sitting
    from probe.analysis.statistics.intervals import Interval

TITLES = {"solve": "Solving", "honest": "Staying honest"}  # of ladders


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--reference",
    "references",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Rate against this evaluation in OUT/evals; repeatable.",
)
@click.option("--bots/--no-bots", default=True, show_default=True, help="Grade the bots, too.")
@click.option("--draws", type=click.IntRange(99), default=999, show_default=True, help="Number of bootstrap draws.")
@click.option("--seed", default=0, show_default=True, help="Seed the bootstrap.")
@out_option
@json_option
def ladder(
    runs: tuple[Path, ...],
    references: tuple[Path, ...],
    bots: bool,
    draws: int,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Elo of every evaluated checkpoint of each training RUN (a directory, or a name in OUT/runs): one ladder for
    solving held-out problems, one for staying honest.

    The policy before step 0, which is the zero, the bots and the policies of --reference (a directory of policy eval,
    or a name in OUT/evals) are fixed references: no other checkpoint moves a rating. Players answer the same problems
    under the same setting. Examples:

      python spec/tools/ladder.py out/runs/vanilla-0 out/runs/projected-0

      python spec/tools/ladder.py vanilla-0 --reference teacher --json
    """
    from probe.analysis.ladder import (
        BASE,
        LADDERS,
        Player,
        base_of,
        check_same_base,
        check_same_exam,
        checkpoints_of,
        make_ladder,
        read_sitting,
        read_training,
        shares_of,
    )
    from replay_pools.environments.loopholes import BOTS

    trainings = [read_training(read_run(path, out)) for path in runs]
    check_same_base(trainings)
    place, evaluated = out / "evals", {}
    for name in references:
        directory = by_name(name, place / name.name)
        if not directory.is_dir() or name.name in (BASE, *BOTS):
            names = [path.name for path in place.glob("*/")]
            expected = f"an evaluation in {place}, not called as a fixed player"
            fix = f"to make one: probe policy eval --model MODEL --name {shlex.quote(name.name)}"
            raise unknown_name(f"--reference {name}", name.name, names, expected=expected, fix=fix)
        evaluated[name.name] = read_sitting(directory)
    sittings = [sitting for training in trainings for sitting in (training.start, *training.checkpoints.values())]
    check_same_exam([*sittings, *evaluated.values()])
    players = [base_of(trainings)]
    for name, sitting in evaluated.items():
        players.append(Player(name=name, kind="reference", shares=shares_of(sitting.attempts)))
    if bots:
        players += _grade_bots(sittings[0])
    for training in trainings:
        players += checkpoints_of(training)
    ladders = [make_ladder(name, players, num_draws=draws, seed=seed) for name in LADDERS]
    if as_json:
        echo_json({ladder.name: ladder.to_json() for ladder in ladders})
        return
    for rated in ladders:
        _echo_ladder(rated)
    echo("Intervals are of a bootstrap over problems: they say nothing of other seeds of a training. No bound: `..`")


def _grade_bots(sitting: "Sitting") -> "list[Player]":
    """Return the bots on the problems of a sitting, graded by its grader."""
    from probe.runs.heldout import bot_players
    from replay_pools.environments.registry import all_problems, get_environment
    from replay_pools.grading.grade import Grader, canary

    known = all_problems(get_environment(sitting.env))
    asked = list(dict.fromkeys(problem for _, problem in sitting.prompts))
    if missing := [problem for problem in asked if problem not in known]:
        raise InputError(
            f"problems of {sitting.where}",
            expected=f"problem {missing[0]} in {sitting.env}",
            found=f"{len(missing)} of {len(asked)} problems missing",
            fix="rate without bots: --no-bots",
        )
    problems = [known[problem] for problem in asked]
    modes = {setting: asked["mode"] for setting, asked in sitting.asked.items()}
    grader_settings = next(iter(sitting.asked.values()))["grader"]
    say(f"grading bots on {len(problems)} problems")
    with Grader(code_rule=grader_settings["code_rule"], cpu_s=grader_settings["cpu_s"]) as grader:
        canary(grader, problems)
        return bot_players(grader, problems, modes)


def _echo_ladder(ladder: "Ladder") -> None:
    """A row a player, the strongest first; then the best checkpoints, and what the ratings do not tell."""
    raters = ", ".join(ladder.raters)
    echo(f"{TITLES[ladder.name]}: Elo above the base on {ladder.num_problems} problems; rated by {raters}")
    rows = []
    for rating in sorted(ladder.ratings, key=lambda rating: -rating.elo):
        is_base = rating.interval is None
        counts = ("-", "-") if is_base else (f"{rating.wins:g}", f"{rating.losses:g}")
        against_base = "higher" if rating.elo > 0 else "lower"
        against_base = "zero" if is_base else against_base if rating.told_apart else "not told apart"
        rows.append((rating.player.name, f"{rating.elo:+.0f}", _bounds(rating.interval), *counts, against_base))
    echo_table(("player", "Elo", "95%", "won", "lost", "against the base"), rows)
    best, count = ladder.best(), len(ladder.checkpoints())
    if best is None:
        echo("no checkpoint was evaluated after step 0")
    else:
        chosen = f", as the best of {count} too high on average" if count > 1 else ""
        doubt = "" if best.told_apart else "; not told apart from the base"
        echo(f"best checkpoint: {best.player.name} at {best.elo:+.0f}{chosen}{doubt}")
    for name in ladder.runs:
        best, latest = ladder.best(name), ladder.checkpoints(name)[-1]
        assert best is not None
        line = f"{name}: gap {best.elo:+.0f} at step {best.player.step}"
        if best is latest:
            echo(f"{line}, the latest")
            continue
        duel = ladder.duel(best, latest)
        doubt = "" if duel.told_apart else ": not told apart"
        against = f"against step {latest.player.step}, the latest, it won {duel.wins:g} and lost {duel.losses:g}"
        echo(f"{line}; {against}, {duel.elo:+.0f} {_bounds(duel.interval)}{doubt}")
    echo()


def _bounds(interval: "Interval | None") -> str:
    """`[+12, +140]`; an end that nothing bounds is `..`."""
    if interval is None:
        return "-"
    low, high = (f"{bound:+.0f}" if math.isfinite(bound) else ".." for bound in (interval.low, interval.high))
    return f"[{low}, {high}]"


if __name__ == "__main__":
    sys.exit(run(ladder))
