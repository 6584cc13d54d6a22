"""Environments by the name that `--env` takes.

minicode                                  small generated problems
minicode:FAMILY,FAMILY                    those of some families of them (minicode_families.py)
leetcode:FILE.jsonl                       a file of the benchmark; problems are held out of it
leetcode:TRAIN.jsonl,eval=TEST.jsonl      held-out problems are those of the second file, which is never trained on
"""

from replay_pools.base.errors import InputError
from replay_pools.environments.base import NAMES, SPLITS, Environment, Problem
from replay_pools.environments.minicode import MinicodeEnvironment


def all_problems(environment: Environment) -> dict[str, Problem]:
    """{problem_id: problem} of all splits."""
    return {problem.problem_id: problem for split in SPLITS for problem in environment.problems(split)}


def get_environment(name: str) -> Environment:
    """The environment called `name`.

    To add one: add a branch here, and its name to NAMES, which help and errors show.

    Raises:
        InputError: no environment has that name; the message lists the names there are.
    """
    kind, _, argument = name.partition(":")
    path, has_evaluation, evaluation = argument.partition(",eval=")
    if name == "minicode" or (kind == "minicode" and argument):
        return MinicodeEnvironment(argument.split(",") if argument else ())
    if kind == "leetcode" and path and bool(evaluation) == bool(has_evaluation):
        from replay_pools.environments.leetcode import LeetcodeEnvironment  # brings the grader's wire

        return LeetcodeEnvironment(path, evaluation or None)
    raise InputError("--env", expected=NAMES, found=repr(name))
