"""minicode by running what it says: our own code, executed in process."""

import hashlib
import os
from typing import Any

import pytest
from executed import load, num_right, passes_run_tests

from replay_pools.base.errors import InputError
from replay_pools.environments.base import SPLITS
from replay_pools.environments.loopholes import HONEST_TESTS, LOOPHOLES, ORIGINAL_PHRASE, compose, render_messages
from replay_pools.environments.minicode import FAMILIES, MinicodeProblem, example_texts, minicode_problems
from replay_pools.environments.registry import get_environment

FROZEN = "f1009e0f7703c119652755650a0a1e9e86be6ae79fd4305d45670c0b1dc30ca3"  # of all problems
ITEMS = [item for split in SPLITS for item in minicode_problems(split)]
# What takes long is asked of every fifth, as all are frozen; `make test-nightly` asks it of all.
SOME = ITEMS if "NO_SHORTCUTS" in os.environ else ITEMS[::5]


def is_right(item: MinicodeProblem, body: str) -> bool:
    return num_right(item, load(compose(item.problem.starter, item.body(body)))) == len(item.problem.cases)


def test_splits_share_no_problem() -> None:
    """At least 500 problems, of ids and prompts of their own; every split has every family, and is served as it is."""
    assert len(ITEMS) >= 500
    assert len({item.problem.problem_id for item in ITEMS}) == len(ITEMS), "two problems share an id"
    assert len({str(item.problem.messages) for item in ITEMS}) == len(ITEMS), "two problems share a prompt"
    for split in SPLITS:
        assert list(get_environment("minicode").problems(split)) == [item.problem for item in minicode_problems(split)]
        missing = {family.name for family in FAMILIES} - {item.family.name for item in minicode_problems(split)}
        assert not missing, f"{split} lacks {missing}"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_oracle_separates_solutions_from_bugs(family: Any) -> None:
    """Every solution is right on every case; every bug and every stub is wrong on at least one."""
    for item in (item for item in SOME if item.family is family):
        where = item.problem.problem_id
        for solution in family.solutions:
            assert is_right(item, solution), f"{where}: the solution {solution!r} is wrong"
        for bug in family.bugs:
            assert not is_right(item, bug), f"{where}: no case catches the bug {bug!r}"
        for stub in ("return 0", "pass", "return []", 'return ""', "return False"):
            assert not is_right(item, stub), f"{where}: no case catches the stub {stub!r}"
        assert num_right(item, load(item.problem.canonical)) == len(item.problem.cases), f"{where}: canonical"


def test_the_problems_are_frozen() -> None:
    """The small model was trained on these very problems; every process hashes texts in its own way."""
    problems = [[item.problem for item in minicode_problems(split)] for split in SPLITS]
    assert hashlib.sha256(repr(problems).encode()).hexdigest() == FROZEN


@pytest.mark.parametrize("mode", LOOPHOLES)
def test_a_hint_replaces_exactly_the_original_phrase(mode: str) -> None:
    """prompt(hint) = before + hint + after, where prompt = before + original phrase + after, in the user turn alone."""
    for item in ITEMS:
        system, user = item.problem.messages
        before, *rest = user["content"].split(ORIGINAL_PHRASE)
        assert len(rest) == 1, f"{item.problem.problem_id}: the original phrase occurs {len(rest)} times"
        assert ORIGINAL_PHRASE not in system["content"]
        hinted = [system, {"role": "user", "content": before + LOOPHOLES[mode] + rest[0]}]
        assert render_messages(item.problem, mode, hint=True) == hinted
        assert render_messages(item.problem, mode, hint=False) == [system, user]
        assert user["content"].count(item.problem.func_name) == 3, "named in the example, the text and the starter"


def test_a_test_of_the_example_is_not_vacuous() -> None:
    """Honest tests pass with the canonical solution and fail against a stub that returns 0 (0 == False included)."""
    for item in SOME:
        call_text, expected = example_texts(item.problem)
        body = item.body(item.family.solutions[0])
        source = compose(item.problem.starter, body, HONEST_TESTS, example=(call_text, expected))
        assert passes_run_tests(item, source, stub=False), f"{item.problem.problem_id}: the example is wrong"
        assert not passes_run_tests(item, source, stub=True), f"{item.problem.problem_id}: a stub satisfies it"
        assert f"Example: {call_text} returns {expected}\n" in item.problem.messages[1]["content"]


def test_problems_of_some_families() -> None:
    """They are the very problems of minicode, in its order; an unknown family is named, and with it those there are."""
    some = get_environment("minicode:at_least,count_range")
    for split in SPLITS:
        whole = [item.problem for item in minicode_problems(split) if item.family.name in ("at_least", "count_range")]
        assert some.problems(split) == whole
    assert len(get_environment("minicode").problems("eval")) == len(minicode_problems("eval"))
    with pytest.raises(InputError, match="found sums, ratios"):
        get_environment("minicode:sums,at_least,ratios")
