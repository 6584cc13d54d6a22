"""Environments by the name that `--env` takes (`base.NAMES`)."""

from replay_pools.base.errors import InputError
from replay_pools.environments.base import NAMES, Environment
from replay_pools.environments.minicode import minicode


def get_environment(name: str) -> Environment:
    """Return the environment called `name`.

    To add one: add a branch here, and its name to NAMES, which help and errors show.

    Raises:
        InputError: the name is unknown; the message lists the known ones.
    """
    kind, _, argument = name.partition(":")
    path, has_evaluation, evaluation = argument.partition(",eval=")
    if name == "minicode" or (kind == "minicode" and argument):
        return minicode(argument.split(",") if argument else ())
    if kind == "leetcode" and path and bool(evaluation) == bool(has_evaluation):
        from replay_pools.environments.leetcode import leetcode  # brings the grader's wire

        return leetcode(path, evaluation or None)
    raise InputError("--env", expected=NAMES, found=repr(name))
