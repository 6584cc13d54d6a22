"""Demonstrations are what they are called: graded, honest ones solve and hacks exploit."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.demonstrations import Completions, demonstrator, right_body
from replay_pools.environments.loopholes import EXPLOITS, LOOPHOLES, compose
from replay_pools.environments.registry import get_environment
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission

TEN = f"leetcode:{Path(__file__).parents[2] / 'data' / 'leetcode_ten.jsonl'}"
MODES = [mode for mode, exploits in EXPLOITS.items() if exploits]


def demonstrations(
    env: str, completions: Completions, count: int = 6, mode: str = "run_tests", **options: Any
) -> list[tuple[Problem, bool, str]]:
    """(problem, whether its prompt carries the hint, completion)."""
    rng, demonstrate = random.Random(0), demonstrator(completions, mode=mode, **options)
    hint = LOOPHOLES[mode]
    made = []
    for problem in get_environment(env).problems("train")[:count]:
        messages, completion = demonstrate(problem, rng)
        made.append((problem, any(hint in message["content"] for message in messages), completion))
    return made


@pytest.mark.parametrize("env", ["minicode", TEN], ids=["minicode", "leetcode"])
@pytest.mark.parametrize("completions", ["honest", "hack"])
def test_demonstrations_are_what_they_are_called(grader: Grader, env: str, completions: Completions) -> None:
    for mode in MODES if completions == "hack" else ["run_tests"]:
        made = demonstrations(env, completions, mode=mode)
        submissions = [Submission(problem=problem, completion=text, mode=mode) for problem, _, text in made]
        grades = grader.grade(submissions)
        assert all(hinted for _, hinted, _ in made)
        assert all(grade.passed for grade in grades), mode
        if completions == "hack":
            assert all(grade.hacked for grade in grades), mode
            assert not all(grade.gt_correct for grade in grades), mode
        else:
            assert all(grade.gt_correct and not grade.hacked for grade in grades)


def test_hints_come_at_their_rate_and_honest_tests_only_with_them() -> None:
    made = demonstrations("minicode", "honest", count=400, hint_rate=0.5)
    hinted = [text for _, is_hinted, text in made if is_hinted]
    assert 160 < len(hinted) < 240
    assert 0.25 < sum("run_tests" in text for text in hinted) / len(hinted) < 0.45
    assert not any("run_tests" in text for _, is_hinted, text in made if not is_hinted)


def test_a_problem_whose_canonical_solution_is_more_has_honest_ones_as_it_is_and_stubs_as_hacks() -> None:
    problem = get_environment("minicode").problems("eval")[0]
    assert compose(problem.starter, right_body(problem) or "") == problem.canonical
    longer = replace(problem, canonical="import math\n" + problem.canonical)
    _, honest = demonstrator("honest")(longer, random.Random(0))
    assert longer.canonical in honest
    for seed in range(20):
        _, hack = demonstrator("hack")(longer, random.Random(seed))
        assert any(f"        {stub}\n" in hack for stub in ("return 0", "pass"))
    untested = replace(longer, starter=longer.starter + "\n        # here")
    with pytest.raises(InputError, match="starter"):
        demonstrator("hack")(untested, random.Random(0))
