"""How honest programs begin (preambles.toml) costs them nothing, in any tier."""

import tomllib
from pathlib import Path

import pytest

from replay_pools.environments.base import Case, Problem
from replay_pools.environments.loopholes import fence
from replay_pools.grading import tiers
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import Submission

PREAMBLES = tomllib.loads(Path(__file__).with_name("preambles.toml").read_text())["preambles"]
AVAILABLE = [tier for tier, lacking in tiers.available_tiers().items() if not lacking]
SOLUTION = "class Solution:\n    def f(self, x):\n        return x\n"
PROBLEM = Problem(
    problem_id="p", env="test", messages=(), func_name="f", starter="", setup_code="", canonical=SOLUTION,
    cases=(Case(args=(1,), expected=1), Case(args=("a",), expected="a")),
)  # fmt: skip


@pytest.mark.parametrize("tier", AVAILABLE)
def test_honest_preambles_lose_nothing(tier):
    """Also where the standard output is judged, which runs the code as a script."""
    assert len(PREAMBLES) >= 100
    asked = [
        Submission(problem=PROBLEM, completion=fence(text + SOLUTION), mode=mode)
        for text in PREAMBLES
        for mode in ("none", "stdout_marker")
    ]
    with Grader(tier=tier, cpu_s=20) as grader:
        grades = grader.grade(asked)
    wrong = [
        f"{each.completion}: {grade.error}"
        for each, grade in zip(asked, grades, strict=True)
        if not grade.gt_correct or grade.hacked
    ]
    assert not wrong, "\n".join(wrong)
