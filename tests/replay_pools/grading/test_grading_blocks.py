"""Which code of a completion is the solution, under both rules."""

import time

import pytest

from replay_pools.grading.blocks import default_rule, extract_source, misses_code
from replay_pools.rollout import CODE_RULES

CODE = "import math\nclass Solution:\n    def f(self, x):\n        return x * x"
DRAFT = "class Solution:\n    def f(self, x):\n        return x + x"
LIST = "".join(f"   {line}\n" for line in CODE.split("\n"))


def block(code, opening="```python", closing="```"):
    return f"{opening}\n{code}\n{closing}"


FOUND = {
    "alone": block(CODE),
    **{f"fence {each!r}": block(CODE, each) for each in (
        "```", "```Python", "```py", "``` python", "```python3", "```python3.11", "```python ", "```{.python}",
        "```{python}", '```python title="solution.py"', "```solution.py", "```python:solution.py", "```PYTHON {1,2}",
    )},
    "tildes": block(CODE, "~~~python", "~~~"),
    "four backticks": block(CODE, "````python", "````"),
    "trailing spaces": block(CODE, "```python  ", "```  "),
    "CRLF": block(CODE).replace("\n", "\r\n"),
    "BOM": "\ufeff" + block("\ufeff" + CODE),
    "prose": f"Sure! `f` squares.\n\n{block(CODE)}\n\nThis runs in O(1).",
    "a list": f"1. Solution:\n\n   ```python\n{LIST}   ```\n",
    "an item of a list": f"- ```python\n{LIST}  ```\n",
    "code is indented, its fence is not": block("\n".join("    " + line for line in CODE.split("\n"))),
    "text before": f"{block('Input: 2', '```text')}\nsquares\n{block(CODE)}",
    "output behind": f"{block(CODE)}\nprints\n{block('4', '```')}",
    "shell and JSON around": f"{block('pip install x', '```bash')}\n{block(CODE)}\n{block('{}', '```json')}",
    "an example of use": f"{block(CODE)}\nUse:\n{block('print(Solution().f(3))')}",
    "an example that raises": f"{block(CODE)}\nUse:\n{block('print(Solution().f(tree))')}",
    "a draft": f"{block(DRAFT)}\nNo, better:\n{block(CODE)}",
    "a draft that loops": f"<think>\n{block('while True: pass')}\n</think>\n{block(CODE)}",
    "thinking that opens a fence": f"<think>\n```python\n{DRAFT}\n</think>\n\n{block(CODE)}",
    "thinking whose head is in the prompt": f"{block(DRAFT)}\n</think>\n{block(CODE)}",
    "answer tags": f"<answer>\n{block(CODE)}\n</answer>",
    "answer tags on the lines of the fence": f"<answer>{block(CODE)}</answer>",
    "text before the fence": f"Code: {block(CODE)}",
    "thinking twice": f"<think>a</think>\n<think>\n{block(DRAFT)}\n</think>{block(CODE)}",
    "an answer that names the tag": f"{block(CODE)}\nI did not use <think></think>.",
    "code that names the tag": block(CODE + "  # after </think>"),
    "in a block of Markdown": f"```markdown\nThe answer:\n{block(CODE)}\n```",
    "another one is cut off": f"{block(CODE)}\nFaster:\n```python\nclass Solution:\n    def f(se",
    "cut off": f"```python\n{CODE}",
    "the fence before was not closed": f"```python\nimport os\n{block(CODE)}",
}  # fmt: skip


@pytest.mark.parametrize("completion", FOUND.values(), ids=FOUND)
def test_the_solution_is_found(completion):
    source = extract_source(completion, "solution")
    namespace = {}
    exec(source, namespace)
    assert namespace["Solution"]().f(3) == 9
    assert not misses_code(completion, "solution")


@pytest.mark.parametrize(
    ("completion", "solution", "joined"),
    [
        ("no code", None, None),
        (CODE, None, None),
        ("inline ```python a``` text", None, None),
        ("```json\n{}\n```", None, None),
        ("<think>\n```python\na = 1\n```", None, "a = 1"),
        ("```\n```", None, None),
        ("```python\na = 1\n```\n```python\nb = 2", "a = 1\n\nb = 2", "a = 1\n\nb = 2"),
        ("```python\nimport os\n```\n```python\nclass Solution: pass\n```\n```python\ndef run_tests(): pass\n```\n",
         "import os\n\nclass Solution: pass\n\ndef run_tests(): pass",
         "import os\n\nclass Solution: pass\n\ndef run_tests(): pass"),
        ("```python\nimport os\n```\n```python\nfrom __future__ import annotations\nclass Solution: pass\n```",
         "from __future__ import annotations\nimport os\n\nclass Solution: pass",
         "import os\n\nfrom __future__ import annotations\nclass Solution: pass"),
        ('```python\nclass Solution:\n    """\n    Doc:\n\n        ```\n        f(2)\n        ```\n    """\n```',
         'class Solution:\n    """\n    Doc:\n\n        ```\n        f(2)\n        ```\n    """',
         'class Solution:\n    """\n    Doc:\n\n"""'),
        # Oddities of the benchmark's expression, which `joined` has to share.
        ("```py\na = 1\n```\nprose", "a = 1", "prose"),
        ("```text\n1\n```\nprose\n```python\na = 1\n```", "a = 1", "prose"),
        ("```Python\r\na = 1\r\n```", "a = 1", None),
        ("````python\n'''\n```\n'''\n````", "'''\n```\n'''", "'''"),
    ],
)  # fmt: skip
def test_both_rules_by_hand(completion, solution, joined):
    assert (extract_source(completion, "solution"), extract_source(completion, "joined")) == (solution, joined)


def test_code_that_no_rule_takes_is_counted():
    assert misses_code(CODE, "solution")
    assert misses_code(f"{block(CODE, '```py')}\nprose", "joined")
    assert not misses_code("def is a word.", "solution")
    assert not misses_code(block(CODE), "joined")


def test_the_benchmark_has_its_own_rule():
    assert [default_rule(env) for env in ("leetcode:x.jsonl", "leetcode", "minicode", None)] == [
        "joined", "joined", "solution", "solution",
    ]  # fmt: skip


@pytest.mark.parametrize("rule", CODE_RULES)
@pytest.mark.parametrize(
    "filler", [" ", "`", "a ", "```\n", "```python", "\n```a\n", "~", "1. ", "class A:\n", "def a"]
)
@pytest.mark.parametrize("end", ["`", "` x `"])
def test_a_hostile_fence_takes_linear_time(filler, end, rule):
    """100 000 characters that a backtracking expression would try in every split."""
    start = time.process_time()
    for completion in (f"```{filler * (100_000 // len(filler))}{end}", filler * (100_000 // len(filler))):
        extract_source(completion, rule)
        misses_code(completion, rule)
    assert time.process_time() - start < 1.0, "extraction backtracks: a completion can stop the grader"
