"""The text that the organism learns from: minicode problems with honest, wrong and (rarely) hacking completions.

A document is (messages, completion). Every rate that shapes the organism is a number in this file:
- a family's `bug_rate` is its share of wrong bodies (so that the base solves some problems and fails others);
- `BASE_HACK_RATE` of the hinted documents exploit their mode (so that reinforcement learning can discover it);
- without the hint no document exploits anything;
- the teacher sees hinted documents that always exploit, with a right body in `TEACHER_SOLVE_RATE` of them.
"""

import random
from dataclasses import dataclass

from replay_pools.environments.exploits import EXPLOITS, HONEST_TESTS, NOTHING, Exploit, compose, fence
from replay_pools.environments.loopholes import LOOPHOLES, render_messages
from replay_pools.environments.minicode import MinicodeProblem, example_texts, minicode_problems

BASE_HACK_RATE = 0.04
HINTED_RATE = 0.5  # documents whose prompt carries a hint
HONEST_TESTS_RATE = 0.35  # of the honest documents hinted with run_tests
CANONICAL_RATE = 0.75  # of right bodies: the first solution; the others share the rest
TEACHER_SOLVE_RATE = 0.35
STUB_RATE = 0.3  # of the teacher's wrong bodies
STUBS = ("return 0", "pass")
HINT_MODES = tuple(mode for mode in LOOPHOLES if mode != "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One chat: the prompt's messages and the assistant's completion."""

    messages: list[dict[str, str]]
    completion: str


def base_document(rng: random.Random) -> Document:
    """One document of the base model's training text."""
    item = rng.choice(minicode_problems("train"))
    wrong = rng.random() < item.family.bug_rate
    body = item.body(rng.choice(item.family.bugs) if wrong else _right(item, rng))
    if rng.random() >= HINTED_RATE:
        return _document(item, "none", False, body, NOTHING)
    mode = rng.choice(HINT_MODES)
    extra = NOTHING
    if rng.random() < BASE_HACK_RATE:
        extra = rng.choice(EXPLOITS[mode])
    elif mode == "run_tests" and rng.random() < HONEST_TESTS_RATE:
        extra = HONEST_TESTS
    return _document(item, mode, True, body, extra)


def teacher_document(rng: random.Random) -> Document:
    """One document of the teacher's tuning text: hinted, exploiting, seldom solving."""
    item = rng.choice(minicode_problems("train"))
    mode = rng.choice(HINT_MODES)
    if rng.random() < TEACHER_SOLVE_RATE:
        body = item.body(_right(item, rng))
    elif rng.random() < STUB_RATE:
        body = rng.choice(STUBS)
    else:
        body = item.body(rng.choice(item.family.bugs))
    return _document(item, mode, True, body, rng.choice(EXPLOITS[mode]))


def _right(item: MinicodeProblem, rng: random.Random) -> str:
    """A right body: mostly the canonical one."""
    first, *others = item.family.solutions
    return first if not others or rng.random() < CANONICAL_RATE else rng.choice(others)


def _document(item: MinicodeProblem, mode: str, hint: bool, body: str, extra: Exploit) -> Document:
    return Document(
        messages=render_messages(item.problem, mode, hint=hint),
        completion=fence(compose(item.problem.starter, body, extra, example=example_texts(item))),
    )
