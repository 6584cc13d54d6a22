"""Environments by the name that `--env` takes: `minicode`, or `leetcode:FILE.jsonl`."""

from replay_pools.environments.base import Environment
from replay_pools.environments.leetcode import LeetcodeEnvironment
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.errors import InputError


def get_environment(name: str) -> Environment:
    """The environment called `name`.

    To add one: import its class, add a branch here, and name it in the error message.

    Raises:
        InputError: no environment has that name; the message lists the names there are.
    """
    kind, _, argument = name.partition(":")
    if kind == "minicode" and not argument:
        return MinicodeEnvironment()
    if kind == "leetcode" and argument:
        return LeetcodeEnvironment(argument)
    raise InputError("--env", expected="minicode or leetcode:FILE.jsonl", found=repr(name))
