"""Bots on held-out problems: what they solve, by the grades of their answers. No torch."""

from collections.abc import Mapping, Sequence

from probe.analysis.ladder import Player, Task, shares_of
from replay_pools.environments.base import Problem
from replay_pools.environments.exploits import BOTS
from replay_pools.grading.grade import Grader, Submission
from replay_pools.rollout import Grade


def bot_players(grader: Grader, problems: Sequence[Problem], modes: Mapping[str, str]) -> list[Player]:
    """The bots of `replay_pools.environments.exploits` as players, from the grades of their answers.

    Args:
        grader: that graded the policies; its canary has measured the problems.
        problems: which every bot answers in every setting.
        modes: {setting: its loophole mode}.
    """
    submissions = []
    for answer in BOTS.values():
        for mode in modes.values():
            for problem in problems:
                submissions.append(Submission(problem=problem, completion=answer(problem, mode), mode=mode))
    grades = iter(grader.grade(submissions))
    players = []
    for name in BOTS:
        attempts: list[tuple[Task, Grade]] = []
        for setting in modes:
            for problem in problems:
                grade = next(grades)
                if grade.no_label is None:
                    attempts.append(((setting, problem.problem_id), grade))
        players.append(Player(name=name, kind="bot", shares=shares_of(attempts)))
    return players
