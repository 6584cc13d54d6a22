"""The LeetCode jsonl format, on ten problems of our own."""

import json
import math
from pathlib import Path

import pytest

from replay_pools.base.errors import InputError
from replay_pools.environments.base import Case
from replay_pools.environments.leetcode import leetcode
from replay_pools.environments.loopholes import LOOPHOLES, ORIGINAL_PHRASE, render_messages

TEN = Path(__file__).parents[2] / "data" / "leetcode_ten.jsonl"
ROW = {
    "id": 7,
    "question": "",
    "prompt": [{"role": "user", "content": f"Double it {ORIGINAL_PHRASE}."}],
    "answer": [],
    "gt_answer": ["assert Solution().f(a=1, b=[2]) == 2"],
    "setup_code": "",
    "func_name": "f",
    "difficulty": "easy",
    "canonical_solution": "class Solution:\n    def f(self, a, b, c=0):\n        return 2\n",
    "prompt_metadata": {},
}


def environment(tmp_path, *rows):
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return leetcode(path)


def load(tmp_path, *rows):
    return environment(tmp_path, *rows).problems("train")


def load_tests(tmp_path, tests):
    (problem,) = load(tmp_path, ROW | {"gt_answer": tests})
    return problem.cases


def test_the_ten_problems_are_complete():
    """And every hint fits each: it replaces the original phrase, which is there once."""
    ten = leetcode(TEN)
    problems = ten.problems("train")
    assert len({problem.problem_id for problem in problems}) == 9
    assert ten.left_out == ("duplicate-stamps",), "its tests sort what is returned"
    for problem in problems:
        for mode in LOOPHOLES:
            user = render_messages(problem, mode, hint=True)[-1]["content"]
            assert user.count(LOOPHOLES[mode]) == 1
            assert (ORIGINAL_PHRASE in user) == (mode == "none")
        assert problem.env == "leetcode"
        assert len(problem.cases) >= 8
        assert problem.starter.startswith(f"class Solution:\n    def {problem.func_name}(self, ")
        assert [message["role"] for message in problem.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("test", "args", "expected"),
    [
        ("assert Solution().f(1, [2]) == (1, {'a': {2.5}})", (1, [2]), (1, {"a": {2.5}})),
        ("assert Solution().f(b='x', a=-1) == None", (-1, "x"), None),
        ("assert Solution().f(1, b=True) == 0, 'why'", (1, True), 0),
        ("assert Solution().f(1,\n  [3,\n  4]) == ''", (1, [3, 4]), ""),
        ("assert Solution().f() == 1", (), 1),
        ("assert Solution().f(1, inf) == -inf", (1, math.inf), -math.inf),
    ],
)
def test_literal_assertions_become_cases(tmp_path, test, args, expected):
    """Keyword arguments take the place that the signature gives them."""
    assert load_tests(tmp_path, [test]) == (Case(args=args, expected=expected),)
    assert load_tests(tmp_path, test + "\n") == (Case(args=args, expected=expected),)


def test_a_listed_call_is_a_case(tmp_path):
    cases = load_tests(tmp_path, ["assert list(Solution().f(1, [2])) == [1]"])
    assert cases == (Case(args=(1, [2]), expected=[1], is_listed=True),)


@pytest.mark.parametrize(
    "test",
    [
        "",
        "print(1)",
        "assert sorted(Solution().f(1, [2])) == [1]",
        "assert Solution().f(1, [2]) == [1] * 2",
        "assert Solution().f(1, c=[2]) == 2",
        "assert Solution().f(a=1, **{'b': 2}) == 2",
        "assert Solution().f(*[1, 2]) == 2",
        "assert Solution().f(1, {[]: 2}) == 2",
        "assert Solution().f(1, 2j) == 2",
        "assert Solution().g(1, 2) == 2",
        "assert 0 < Solution().f(1, 2) == 2",
        "assert 2 == Solution().f(1, 2)",
        f"assert Solution().f({'[' * 90 + ']' * 90}, 1) == 2",
        f"assert Solution().f(1, 2) == {'9' * 3000}",
    ],
)
def test_a_problem_with_another_test_is_left_out(tmp_path, test):
    """And counted; a file of such problems alone is refused."""
    rows = [ROW, ROW | {"id": 8, "gt_answer": [*ROW["gt_answer"], test] if test else []}]
    loaded = environment(tmp_path, *rows)
    assert ([problem.problem_id for problem in loaded.problems("train")], loaded.left_out) == (["7"], ("8",))
    with pytest.raises(InputError, match="a problem with all tests"):
        environment(tmp_path, rows[1])


def test_func_name_may_be_qualified(tmp_path):
    (problem,) = load(tmp_path, ROW | {"func_name": "Solution().f"})
    assert (problem.func_name, problem.problem_id) == ("f", "7")
    assert problem.starter == "class Solution:\n    def f(self, a, b, c):"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"func_name": None}, "func_name"),
        ({"gt_answer": ["assert ("]}, "gt_answer"),
        ({"canonical_solution": "def f(): pass"}, "canonical_solution"),
        ({"prompt": [{"role": "user"}]}, "prompt"),
        ({"prompt": [{"role": "user", "content": "x"}]}, "pass all tests"),
        ({"id": 7}, "id"),
    ],
)
def test_errors_name_the_line(tmp_path, change, key):
    with pytest.raises(InputError, match=f"(line 2|problem 8).*{key}"):
        load(tmp_path, ROW, ROW | {"id": 8} | change)


def test_missing_files_and_empty_ones_are_refused(tmp_path):
    with pytest.raises(InputError, match="absent"):
        leetcode(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="a problem with all tests"):
        load(tmp_path)
