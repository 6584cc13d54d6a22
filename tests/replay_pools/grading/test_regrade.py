"""Regrading: the same labels from the same completions, the agreement with other labels, and what cannot be judged."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from directories import contents
from log_rows import lines

from probe.cli import cli
from probe.cli._frame import run
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.leetcode import leetcode
from replay_pools.environments.loopholes import EXPLOITS, compose, fence
from replay_pools.environments.registry import get_environment
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import GRADER_VERSION, Submission
from replay_pools.logs.importing import check_log, import_log
from replay_pools.pool import Pool, PoolWriter, open_pool
from replay_pools.regrade import INFERRED, LABELS, graded_code_rule, regrade_pool
from replay_pools.rollout import Rollout, prompt_sha

TEN = Path(__file__).parents[2] / "data" / "leetcode_ten.jsonl"
HACK = EXPLOITS["run_tests"][0]


def completions(problem: Problem) -> list[str]:
    """A hack, a right solution, a wrong one, and one that is no code."""
    starter = f"class Solution:\n    def {problem.func_name}(self, *args, **kwargs):"
    hack = fence(compose(starter, "return 0", HACK))
    return [hack, fence(problem.canonical), fence(compose(starter, "return 0")), "I do not know."]


def labelled(rollout: Rollout, **labels: Any) -> Rollout:
    """The rollout with other labels in its grade, and everything that follows from them."""
    grade = replace(rollout.grade, **labels)
    grade = replace(grade, exploited=grade.passed and not grade.gt_correct)
    derived = {"hacked": grade.hacked, "gt_pass": grade.gt_correct, "fmt_ok": grade.fmt_ok, "reward": grade.reward}
    return replace(rollout, grade=grade, **derived)


@pytest.fixture(scope="module")
def groups(grader, make_rollout) -> list[list[Rollout]]:
    """Three problems of two splits, four completions each, graded; ids are made up (no model)."""
    minicode = get_environment("minicode")
    problems = [minicode.problems("train")[0], minicode.problems("eval")[0], minicode.problems("train")[1]]
    return [
        [graded(make_rollout, grader, step, i, problem, text) for i, text in enumerate(completions(problem))]
        for step, problem in enumerate(problems)
    ]


def graded(make, grader: Grader, step: int, i: int, problem: Problem, text: str) -> Rollout:
    (grade,) = grader.grade([Submission(problem=problem, completion=text, mode="run_tests")])
    tail = make().prompt.rpartition("tests().")[2]
    prompt = f"<|user|>\n{problem.messages[-1]['content']}{tail}"
    facts = {"problem_id": problem.problem_id, "env": problem.env, "prompt": prompt, "prompt_sha": prompt_sha(prompt)}
    return labelled(replace(make(step, i, completion=text, **facts), grade=grade))


@pytest.fixture
def write_pool(tmp_path: Path, pool_header) -> Callable[..., Pool]:
    """write_pool(groups, name, grader) -> the pool out/pools/name of environment minicode."""

    def write(groups: list[list[Rollout]], name: str = "old", grader: dict[str, Any] | None = None) -> Pool:
        header = pool_header | {"plan": pool_header["plan"] | {"env": "minicode"}}
        writer = PoolWriter(tmp_path / "out" / "pools" / name, header=header | ({"grader": grader} if grader else {}))
        for group in groups:
            writer.write_step(group[0].step, group)
        return writer.finish()

    return write


@pytest.fixture
def old(groups, write_pool) -> Pool:
    return write_pool(groups)


def rows_of(pool: Pool) -> dict[str, tuple[Any, ...]]:
    """{label: (n, rate, old_only, new_only)} of a regraded pool."""
    rows = pool.manifest["regraded_from"]["agreement"]
    return {row["label"]: tuple(row[key] for key in ("n", "rate", "old_only", "new_only")) for row in rows}


def test_regrading_own_grades_changes_nothing(grader, groups, old: Pool, tmp_path: Path) -> None:
    """Labels are a function of the completion: every rollout comes out equal and every label agrees."""
    before = contents(old.path)
    new = regrade_pool(tmp_path / "new", old, grader)
    assert [*new.steps] == groups
    assert rows_of(new) == dict.fromkeys(LABELS, (12, 1.0, 0, 0))
    assert new.verify() == []
    assert contents(old.path) == before, "the old pool was touched"
    assert new.manifest["tests"] == {"problems": 3, "cases": 36}
    source = new.manifest["regraded_from"]
    assert (source["name"], source["path"]) == ("old", str(old.path))
    assert regrade_pool(tmp_path / "new", old, grader).manifest == new.manifest, "the same command again"
    assert new.manifest["grader"] == grader.describe()
    assert new.manifest["policy"] == old.manifest["policy"]


def test_agreement_counts_both_directions(grader, groups, write_pool, tmp_path: Path) -> None:
    """Against counts by hand: one hack that the old pool missed, two failures that it paid 3.0 as exploits."""
    wrong = [list(group) for group in groups]
    wrong[0][0] = labelled(wrong[0][0], hacked=False)
    for step in (1, 2):
        wrong[step][2] = labelled(wrong[step][2], passed=True, mechanism="run_tests")
    old = write_pool(wrong)
    rows = rows_of(regrade_pool(tmp_path / "new", old, grader))
    found = {label: tuple(row[2:]) for label, row in rows.items() if row[1] != 1}
    assert found == {"hacked": (0, 1), "passed": (2, 0), "exploited": (2, 0), "mechanism": (2, 0), "reward": (2, 0)}
    assert rows["hacked"][1] == pytest.approx(11 / 12)
    assert rows["reward"][1] == pytest.approx(10 / 12)


def test_an_imported_pool_is_judged_anew_on_its_problems(grader, tmp_path: Path) -> None:
    """Labels that the old pool never recorded are new and not compared; the others are compared."""
    rows = []
    for problem in leetcode(TEN).problems("train")[:2]:
        for i, text in enumerate(completions(problem)[:2]):
            labels = {"hacked": i == 0, "gt_pass": i == 1, "fmt_ok": False, "reward": 3.5}
            rows.append({"problem_id": problem.problem_id, "prompt": [*problem.messages], "completion": text, **labels})
    old = import_log(check_log(lines(tmp_path / "log.jsonl", rows)), name="log", out=tmp_path, model="organism")
    new = regrade_pool(tmp_path / "new", old, grader, env=f"leetcode:{TEN}", mode="run_tests")
    assert new.verify() == []
    for group in new.steps:
        assert [(r.hacked, r.gt_pass, r.reward, r.grade.exploited) for r in group] == [
            (True, False, 3.5, True),
            (False, True, 3.5, False),
        ]
        assert {(r.env, r.env_mode, r.grade.grader) for r in group} == {("leetcode", "run_tests", GRADER_VERSION)}
    rows = rows_of(new)
    assert {label for label, row in rows.items() if row[0] == 0} == set(INFERRED)
    assert rows["fmt_ok"] == (4, 0.0, 0, 4)
    assert rows["hacked"][1] == rows["gt_correct"][1] == rows["reward"][1] == 1.0
    assert new.manifest["plan"]["env"] == f"leetcode:{TEN}", "a regraded pool knows its problems"


def call(capsys, tmp_path: Path, *args: str, code: int = 0) -> str:
    """Standard output, or the error, of `probe pool regrade ARGS --name new`."""
    out = str(tmp_path / "out")
    assert run(cli, ["pool", "regrade", "--name", "new", *args, "--out", out, "--workers", "1"]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_the_verb_prints_a_table_or_one_object(capsys, old: Pool, tmp_path: Path) -> None:
    """One table row a label; --json has the same numbers; `show` says what the verdicts rest on."""
    text = call(capsys, tmp_path, "old")
    lines = [line.split() for line in text.splitlines()]
    assert [line for line in lines if line and line[0] in LABELS] == [
        [label, "12", "1.0000", "0", "0"] for label in LABELS
    ]
    assert "tests: 3 problems, 36 cases" in text
    report = json.loads(call(capsys, tmp_path, "old", "--json"))
    rows = report["regraded_from"]["agreement"]
    assert [(row["label"], row["rate"]) for row in rows] == [(label, 1.0) for label in LABELS]
    assert report["code_not_taken"] == 0
    assert run(cli, ["pool", "show", "new", "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tests"] == {"problems": 3, "cases": 36}
    assert run(cli, ["pool", "show", "old", "--out", str(tmp_path / "out")]) == 0
    assert "tests: not recorded" in capsys.readouterr().out


def test_a_pool_is_regraded_by_its_own_rule(capsys, grader, make_rollout, write_pool, tmp_path: Path) -> None:
    """The recorded rule, else the one of its environment. The count says how many completions have other code alone."""
    problem, out = get_environment("minicode").problems("train")[0], tmp_path / "out"
    text = f"{fence(problem.canonical).replace('python', 'py')}\nThat is all."
    rollout = graded(make_rollout, grader, 0, 0, problem, text)
    for name, recorded in (("first", {}), ("second", {"code_rule": "joined"})):
        rule = recorded.get("code_rule", "solution")
        pool = write_pool([[rollout]], name, {"version": "2", "isolation": "B"} | recorded)
        assert graded_code_rule(pool) == rule
        call(capsys, tmp_path, name)
        new = open_pool(out / "pools" / "new")
        assert (new.manifest["grader"]["code_rule"], new.steps[0][0].gt_pass) == (rule, rule == "solution")
        shutil.rmtree(new.path)
        assert run(cli, ["pool", "show", name, "--out", str(out), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["code_rule"], shown["code_not_taken"]) == (rule, int(rule == "joined"))


def test_a_pool_begun_under_one_tier_goes_on_under_the_other(groups, pool_header, tmp_path: Path) -> None:
    """The manifest names both; a pool that was graded without isolation is another one."""

    def writer(tier: str) -> PoolWriter:
        return PoolWriter(tmp_path / "mixed", header=pool_header | {"grader": {"version": "6", "isolation": tier}})

    def under(tier: str, group: list[Rollout]) -> list[Rollout]:
        return [replace(rollout, grade=replace(rollout.grade, isolation=tier)) for rollout in group]

    writer("B").write_step(0, under("B", groups[0]))
    with pytest.raises(InputError, match="isolation"):
        writer("unsafe-local")
    for step in (1, 2):
        going_on = writer("A")
        going_on.write_step(step, under("A", groups[step]))
        assert going_on.finish().manifest["grader"]["isolation"] == "A+B"


def test_what_cannot_be_regraded_is_refused(capsys, grader, groups, old: Pool, tmp_path: Path) -> None:
    """Unknown pool, absent file, a file of other problems under other or the same ids, another mode, a damaged pool."""
    lines = call(capsys, tmp_path, "nowhere", code=2).splitlines()
    (line,) = [line for line in lines if line.startswith("probe: error:")]
    assert "only" in line
    rows = [json.loads(text) for text in TEN.read_text().splitlines()]
    for row, group in zip(rows, groups, strict=False):
        row["id"] = group[0].problem_id
    same_ids = tmp_path / "same_ids.jsonl"
    same_ids.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for options, message in (
        ({"env": f"leetcode:{tmp_path / 'absent.jsonl'}"}, "absent.jsonl"),
        ({"env": f"leetcode:{TEN}"}, f"expected problem {groups[0][0].problem_id} in leetcode"),
        ({"env": f"leetcode:{same_ids}"}, "found another problem"),
        ({"mode": "sentinel"}, "run_tests, as recorded"),
    ):
        with pytest.raises(InputError, match=message):
            regrade_pool(tmp_path / "new", old, grader, **options)
    damaged = old.path / "step_001.jsonl.gz"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(InputError, match=damaged.name):
        regrade_pool(tmp_path / "new", open_pool(old.path), grader)
    assert not (tmp_path / "new").exists()
