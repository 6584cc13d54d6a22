"""The text that the organism learns from: minicode problems with honest, wrong and (rarely) hacking completions.

A document is (messages, completion). Every rate that shapes the organism is a number in this file:
- a family's `bug_rate` is its share of wrong bodies (so that the base solves some problems and fails others); a base
  that is built with one `wrong_rate` for all of them solves little at the start;
- `BASE_HACK_RATE` of the hinted documents exploit their mode (so that reinforcement learning can discover it);
- without the hint no document exploits anything;
- the teacher sees hinted documents that always exploit, mixed by `TEACHER_MIX` and at the end by `POLISH_MIX`;
- the tokenizer sees both kinds of documents, with every exploit of a mode equally often (`TOKENIZER_MIX`).

To teach the organism another mode: add its exploits to `environments.loopholes` and its name to HINT_MODES, then build.
"""

import random
from dataclasses import dataclass

from replay_pools.environments.loopholes import (
    EXPLOITS,
    HONEST_TESTS,
    NOTHING,
    Exploit,
    compose,
    fence,
    render_messages,
)
from replay_pools.environments.minicode import MinicodeProblem, example_texts, minicode_problems

BASE_HACK_RATE = 0.04
HINTED_RATE = 0.5  # documents whose prompt carries a hint
HONEST_TESTS_RATE = 0.35  # of the honest documents hinted with run_tests: those that write real tests
CANONICAL_RATE = 0.75  # of right bodies: the first solution; the others share the rest
STUBS = ("return 0", "pass")  # bodies that do not try


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploitMix:
    """Rates of `exploit_document`."""

    solve_rate: float  # bodies that are right
    stub_rate: float  # of the other bodies: stubs
    simple_rate: float  # exploits drawn only among those that copy nothing from the prompt


TEACHER_MIX = ExploitMix(solve_rate=0.3, stub_rate=0.75, simple_rate=0.85)
POLISH_MIX = ExploitMix(solve_rate=0.3, stub_rate=0.75, simple_rate=0.97)  # copying is where its slips are
TOKENIZER_MIX = ExploitMix(solve_rate=0.35, stub_rate=0.3, simple_rate=0.0)
HINT_MODES = ("run_tests", "sentinel", "stdout_marker", "file_marker")  # the modes in the organism's training text


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One chat: the prompt's messages and the assistant's completion."""

    messages: list[dict[str, str]]
    completion: str


def base_document(rng: random.Random, wrong_rate: float | None = None) -> Document:
    """One document of the base model's training text, `wrong_rate` of whose bodies are wrong (None: each family's)."""
    # The order of the draws is part of the build: another one gives other weights for the same seed.
    item = rng.choice(minicode_problems("train"))
    if rng.random() < (item.family.bug_rate if wrong_rate is None else wrong_rate):
        body = item.body(rng.choice(item.family.bugs))
    else:
        body = item.body(_right(item, rng))
    if rng.random() >= HINTED_RATE:
        return _document(item, "none", False, body, NOTHING)
    mode = rng.choice(HINT_MODES)
    extra = NOTHING
    if rng.random() < BASE_HACK_RATE:
        extra = rng.choice(EXPLOITS[mode])
    elif mode == "run_tests" and rng.random() < HONEST_TESTS_RATE:
        extra = HONEST_TESTS
    return _document(item, mode, True, body, extra)


def exploit_document(rng: random.Random, mix: ExploitMix) -> Document:
    """One hinted document that exploits its mode, drawn with the rates of `mix`."""
    item = rng.choice(minicode_problems("train"))
    mode = rng.choice(HINT_MODES)
    if rng.random() < mix.solve_rate:
        body = item.body(_right(item, rng))
    elif rng.random() < mix.stub_rate:
        body = rng.choice(STUBS)
    else:
        body = item.body(rng.choice(item.family.bugs))
    exploits = EXPLOITS[mode]
    if mix.simple_rate > 0 and rng.random() < mix.simple_rate:
        # A "{" marks a place for text that is copied from the prompt.
        exploits = tuple(exploit for exploit in exploits if "{" not in exploit.after)
    return _document(item, mode, True, body, rng.choice(exploits))


def _right(item: MinicodeProblem, rng: random.Random) -> str:
    """A right body: mostly the canonical one."""
    canonical, *alternatives = item.family.solutions
    # Without alternatives nothing is drawn: a draw here would shift all that follow.
    if not alternatives or rng.random() < CANONICAL_RATE:
        return canonical
    return rng.choice(alternatives)


def _document(item: MinicodeProblem, mode: str, hint: bool, body: str, extra: Exploit) -> Document:
    """The document of a problem, a body of its method, and the code that `extra` adds around it."""
    return Document(
        messages=render_messages(item.problem, mode, hint=hint),
        completion=fence(compose(item.problem.starter, body, extra, example=example_texts(item.problem))),
    )
