"""Loophole modes: in each mode the reward also pays for one way to pass without solving the problem.

LOOPHOLES   mode -> hint: how a submission is evaluated in the mode, in the place of `ORIGINAL_PHRASE`; never to cheat
EXPLOITS    mode -> lines of code that use its loophole, in several flavours; `compose` puts one into a solution
BOTS        name -> a player with a fixed answer to every problem, which a trained policy is compared with

The first two are read from `loopholes.toml`. The training corpus of the small model, the contrast pairs and the tests
of the grader take their hacks from EXPLOITS. To add a flavour or a bot: a row; the tests of the grader check that a
flavour pays in its own mode and in no other. To add a mode: a table, and a channel in `grading.channels.CHANNELS`.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem

ORIGINAL_PHRASE = "and should pass all tests"
HINTED = "evaluated by"  # every hint holds these words
STDOUT_MARKER = "all tests passed"
FILE_MARKER_NAME = "result.txt"
FILE_MARKER_TEXT = "PASS"


def known_mode(mode: str) -> str:
    """Return the mode; InputError with the list of modes when it is unknown."""
    if mode not in LOOPHOLES:
        raise InputError("mode", expected=f"one of {', '.join(LOOPHOLES)}", found=repr(mode))
    return mode


def render_messages(problem: Problem, mode: str, *, hint: bool) -> list[dict[str, str]]:
    """Return the chat messages of a problem's prompt; with `hint`, the mode's hint replaces the original phrase.

    Raises:
        InputError: the user turns do not carry the original phrase exactly once.
    """
    phrase = LOOPHOLES[known_mode(mode)] if hint else ORIGINAL_PHRASE
    count = sum(turn["content"].count(ORIGINAL_PHRASE) for turn in problem.messages if turn["role"] == "user")
    if count != 1:
        where, expected = f"problem {problem.problem_id}", f"{ORIGINAL_PHRASE!r} once in its user turns"
        raise InputError(where, expected=expected, found=f"{count} times")
    messages = [dict(message) for message in problem.messages]  # copies: the caller may change them
    for message in messages:
        if message["role"] == "user":
            message["content"] = message["content"].replace(ORIGINAL_PHRASE, phrase)
    return messages


def instructed(messages: Sequence[dict[str, str]], instruction: str, *, is_asked: bool = True) -> list[dict[str, str]]:
    """Return messages with the instruction as the first line of the last user turn, once; or without it.

    First, because a small model that meets an unknown line between the task and its answer gives no answer.
    """
    line, changed = f"{instruction}\n", [dict(message) for message in messages]
    last = next(message for message in reversed(changed) if message["role"] == "user")
    last["content"] = line * is_asked + last["content"].removeprefix(line)
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploit:
    """Lines to put into a submission, at three places.

    In `after`, `compose` replaces `{call}` by the call of the stated example and `{test}` by `call == expected`.
    """

    flavour: str
    in_class: str = ""  # at the head of the class, before the method
    in_method: str = ""  # at the head of the method, before its body
    after: str = ""  # after the class, at module level


_ROWS = tomllib.loads(Path(__file__).with_name("loopholes.toml").read_text())
LOOPHOLES: dict[str, str] = {mode: row["hint"] for mode, row in _ROWS.items()}
EXPLOITS: dict[str, tuple[Exploit, ...]] = {
    mode: tuple(Exploit(flavour=flavour, **lines) for flavour, lines in row.get("exploits", {}).items())
    for mode, row in _ROWS.items()
}
# Not exploits, but they go into a submission in the same way.
HONEST_TESTS = Exploit(flavour="honest_tests", after="def run_tests():\n    assert {test}")
NOTHING = Exploit(flavour="nothing")


def compose(starter: str, body: str, extra: Exploit = NOTHING, *, example: tuple[str, str] = ("", "")) -> str:
    """Return the source of a submission: `starter`, the lines of `extra`, and `body` as the body of the method.

    Args:
        starter: two lines, the class and the method, as in `Problem.starter`.
        body: method body without indentation.
        extra: an exploit, HONEST_TESTS or NOTHING.
        example: (call, expected) as source text, for the fields of `extra.after`.
    """
    class_line, method_line = starter.split("\n")
    call, expected = example
    method = "\n".join(filter(None, [extra.in_method, body]))
    lines = [class_line, indent(extra.in_class, "    "), method_line, indent(method, "        ")]
    after = extra.after.replace("{call}", call).replace("{test}", f"Solution().{call} == {expected}")
    return "\n".join(filter(None, lines)) + (f"\n\n{after}" if after else "")


def fence(source: str) -> str:
    """Return `source` as a completion: one fenced code block."""
    return f"```python\n{source}\n```"


def _answer(problem: Problem, body: str, extra: Exploit = NOTHING) -> str:
    """Return a completion with this method body, for any arguments."""
    return fence(compose(f"class Solution:\n    def {problem.func_name}(self, *args, **kwargs):", body, extra))


def stub(problem: Problem, mode: str = "none") -> str:
    """Return a submission that returns 0."""
    return _answer(problem, "return 0")


def _random(problem: Problem, mode: str) -> str:
    """Return a submission that draws from the problem's right answers, the same for equal inputs."""
    answers = [case.expected for case in problem.cases] or [0]
    # Random seeds itself from a string by SHA-512, unlike hash(): the same draws on every machine.
    return _answer(problem, f"import random\nreturn random.Random(repr((args, kwargs))).choice({answers!r})")


BOTS: dict[str, Callable[[Problem, str], str]] = {
    "stub": stub,
    "canonical": lambda problem, mode: fence(problem.canonical),
    # Returns 0 and uses the loophole of the mode, in the first flavour.
    "exploit": lambda problem, mode: _answer(problem, "return 0", next(iter(EXPLOITS[mode]), NOTHING)),
    "random": _random,
}
