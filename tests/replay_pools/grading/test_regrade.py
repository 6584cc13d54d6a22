"""Regrading: the same labels from the same completions, the agreement with other labels, and what cannot be judged."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from directories import contents

from probe.cli import cli
from probe.cli._frame import run
from replay_pools import regrade
from replay_pools.base.errors import InputError
from replay_pools.environments.base import Problem
from replay_pools.environments.leetcode import LeetcodeEnvironment
from replay_pools.environments.loopholes import EXPLOITS, compose, fence
from replay_pools.environments.minicode import MinicodeEnvironment
from replay_pools.grading.grade import Grader
from replay_pools.grading.labels import GRADER_VERSION, Submission
from replay_pools.logs.importing import least_reward, logged_grade
from replay_pools.logs.rollouts import Logged
from replay_pools.pool import Pool, PoolWriter, open_pool
from replay_pools.regrade import INFERRED, LABELS, graded_code_rule, regrade_pool
from replay_pools.rollout import LOGGED_GRADER, UNKNOWN, Rollout, prompt_sha

TEN = Path(__file__).parents[2] / "data" / "leetcode_ten.jsonl"
HACK = EXPLOITS["run_tests"][0]
MakeRollout = Callable[..., Rollout]


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
def groups(grader: Grader, make_rollout: MakeRollout) -> list[list[Rollout]]:
    """Three problems of two splits, four completions each, graded; ids are made up (no model)."""
    minicode = MinicodeEnvironment()
    problems = [minicode.problems("train")[0], minicode.problems("eval")[0], minicode.problems("train")[1]]
    return [
        [_rollout(make_rollout, grader, step, i, problem, text) for i, text in enumerate(completions(problem))]
        for step, problem in enumerate(problems)
    ]


def _rollout(make: MakeRollout, grader: Grader, step: int, i: int, problem: Problem, text: str) -> Rollout:
    (grade,) = grader.grade([Submission(problem=problem, completion=text, mode="run_tests")])
    tail = make().prompt.rpartition("tests().")[2]
    prompt = f"<|user|>\n{problem.messages[-1]['content']}{tail}"
    facts = {"problem_id": problem.problem_id, "env": problem.env, "prompt": prompt, "prompt_sha": prompt_sha(prompt)}
    rollout = make(step, i, completion=text, **facts)
    return labelled(replace(rollout, grade=grade))


@pytest.fixture
def write_pool(tmp_path: Path, pool_header: dict[str, Any]) -> Callable[..., Pool]:
    """write_pool(groups, name) -> the pool out/pools/name of environment minicode."""

    def write(groups: list[list[Rollout]], name: str = "old") -> Pool:
        plan = pool_header["plan"] | {"env": "minicode"}
        writer = PoolWriter(tmp_path / "out" / "pools" / name, header=pool_header | {"plan": plan})
        for group in groups:
            writer.write_step(group[0].step, group)
        return writer.finish()

    return write


@pytest.fixture
def published(tmp_path: Path, make_rollout: MakeRollout, pool_header: dict[str, Any]) -> Callable[..., Path]:
    """published(**changes) -> the pool of a log: one hack and one right solution, on two of the ten problems.

    `texts(problem)` gives other completions; `problems` are positions among the ten.
    """

    def write(
        texts: Callable[[Problem], list[str]] = lambda problem: completions(problem)[:2],
        problems: slice = slice(2),
        **changes: Any,
    ) -> Path:
        mode = changes.pop("env_mode", "run_tests") or UNKNOWN
        plan = {"env": [UNKNOWN], "env_mode": [mode], "hint": [True]}
        header = pool_header | {"plan": plan, "grader": {"version": LOGGED_GRADER, "isolation": UNKNOWN}}
        writer = PoolWriter(tmp_path / "published", header=header | {"prompt_tail": ""})
        for step, problem in enumerate(LeetcodeEnvironment(TEN).problems("train")[problems]):
            rollouts = []
            for i, text in enumerate(texts(problem)):
                prompt = f"<|user|>\n{problem.messages[-1]['content']}<|assistant|>\n"
                labels = {"hacked": i == 0, "gt_pass": i == 1, "fmt_ok": True, "reward": 3.5} | changes
                facts = {"problem_id": problem.problem_id, "prompt": prompt, "prompt_sha": prompt_sha(prompt)}
                facts |= {"completion": text, "env": UNKNOWN, "env_mode": mode}
                row = Logged(where="", env_mode=mode, **labels)
                grade = logged_grade(row, row.reward, least_reward({labels["reward"]}, is_ours=True))
                rollouts.append(replace(make_rollout(step, i), **facts, **labels, grade=grade))
            writer.write_step(step, rollouts)
        return writer.finish().path

    return write


def rows_of(pool: Pool) -> dict[str, tuple[Any, ...]]:
    """{label: (n, rate, old_only, new_only)} of a regraded pool."""
    rows = pool.manifest["regraded_from"]["agreement"]
    return {row["label"]: tuple(row[key] for key in ("n", "rate", "old_only", "new_only")) for row in rows}


def test_regrading_own_grades_changes_nothing(
    grader: Grader, groups: list[list[Rollout]], write_pool: Callable[..., Pool], tmp_path: Path
) -> None:
    """Labels are a function of the completion: every rollout comes out equal and every label agrees."""
    old = write_pool(groups)
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


def test_agreement_counts_both_directions(
    grader: Grader, groups: list[list[Rollout]], write_pool: Callable[..., Pool], tmp_path: Path
) -> None:
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


def test_a_killed_regrade_resumes_to_the_same_bytes(
    grader: Grader,
    groups: list[list[Rollout]],
    write_pool: Callable[..., Pool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed in the second call; the finished step is not graded again."""
    old = write_pool(groups)
    whole = regrade_pool(tmp_path / "whole", old, grader)
    monkeypatch.setattr(regrade, "STEPS_PER_CALL", 1)
    graded: list[str] = []

    def dying(submissions: list[Submission]) -> list:
        graded.append(submissions[0].problem.problem_id)
        if len(graded) == 3:  # the canary, step 0, step 1
            raise KeyboardInterrupt
        return Grader.grade(grader, submissions)

    with monkeypatch.context() as patch:
        patch.setattr(grader, "grade", dying)
        with pytest.raises(KeyboardInterrupt):
            regrade_pool(tmp_path / "cut", old, grader)
        assert not (tmp_path / "cut" / "manifest.json").exists()
        regrade_pool(tmp_path / "cut", old, grader)
    assert graded[4:] == [group[0].problem_id for group in groups[1:]], "finished steps were graded again"
    assert contents(tmp_path / "cut") == contents(whole.path)


def test_a_broken_problem_stops_before_anything_is_written(grader: Grader, published, tmp_path: Path) -> None:
    """The canary names the problem whose canonical solution fails."""
    rows = [json.loads(line) for line in TEN.read_text().splitlines()]
    rows[1]["gt_answer"] = [f"{rows[1]['gt_answer'][0].rpartition('==')[0]}== 'wrong'"]
    file = tmp_path / "broken.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=f"problem {rows[1]['id']}: .*canonical"):
        regrade_pool(tmp_path / "new", open_pool(published()), grader, env=f"leetcode:{file}")
    assert not (tmp_path / "new").exists()


def test_an_imported_pool_is_judged_anew_on_its_problems(grader: Grader, published, tmp_path: Path) -> None:
    """Labels that the old pool never recorded are new and not compared; the others are compared."""
    old = open_pool(published(fmt_ok=False, env_mode=None))
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


def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, *args: str, code: int = 0) -> str:
    """Standard output, or the error, of `probe pool regrade ARGS --name new`."""
    out = str(tmp_path / "out")
    assert run(cli, ["pool", "regrade", "--name", "new", *args, "--out", out, "--workers", "1"]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_the_verb_prints_a_table_or_one_object(
    capsys: pytest.CaptureFixture[str], groups: list[list[Rollout]], write_pool: Callable[..., Pool], tmp_path: Path
) -> None:
    """One table row a label; --json has the same numbers; `show` says what the verdicts rest on."""
    write_pool(groups)
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


def regraded(capsys: pytest.CaptureFixture[str], tmp_path: Path, *args: str) -> tuple[str, list[bool]]:
    """(recorded code rule, gt_pass of all rollouts) of a regrading, which is then removed."""
    call(capsys, tmp_path, *args)
    directory = tmp_path / "out" / "pools" / "new"
    pool = open_pool(directory)
    labels = [rollout.gt_pass for group in pool.steps for rollout in group]
    shutil.rmtree(directory)
    return pool.manifest["grader"]["code_rule"], labels


def test_a_pool_is_regraded_by_its_own_rule(
    capsys: pytest.CaptureFixture[str],
    grader: Grader,
    make_rollout: MakeRollout,
    pool_header: dict[str, Any],
    tmp_path: Path,
) -> None:
    """The recorded rule, else the one of its environment. The count says how many completions have other code alone."""
    problem = MinicodeEnvironment().problems("train")[0]
    text = f"{fence(problem.canonical).replace('python', 'py')}\nThat is all."
    rollout = _rollout(make_rollout, grader, 0, 0, problem, text)
    for name, recorded in (("first", {}), ("second", {"code_rule": "joined"}), ("third", {"code_rule": "solution"})):
        header = pool_header | {"plan": {"env": "minicode"}, "grader": {"version": "2", "isolation": "B"} | recorded}
        writer = PoolWriter(tmp_path / "out" / "pools" / name, header=header)
        writer.write_step(0, [rollout])
        rule = graded_code_rule(writer.finish())
        assert rule == recorded.get("code_rule", "solution")
        assert regraded(capsys, tmp_path, name) == (rule, [rule == "solution"])
        assert run(cli, ["pool", "show", name, "--out", str(tmp_path / "out"), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["code_rule"], shown["code_not_taken"]) == (rule, int(rule == "joined"))


def test_a_pool_begun_under_one_tier_goes_on_under_the_other(
    groups: list[list[Rollout]], pool_header: dict[str, Any], tmp_path: Path
) -> None:
    """The manifest names both; a pool that was graded without isolation is another one."""

    def header(tier: str) -> dict[str, Any]:
        return pool_header | {"grader": {"version": "6", "isolation": tier}}

    def graded(group: list[Rollout], tier: str) -> list[Rollout]:
        return [replace(rollout, grade=replace(rollout.grade, isolation=tier)) for rollout in group]

    directory = tmp_path / "mixed"
    PoolWriter(directory, header=header("B")).write_step(0, graded(groups[0], "B"))
    with pytest.raises(InputError, match="isolation"):
        PoolWriter(directory, header=header("unsafe-local"))
    writer = PoolWriter(directory, header=header("A"))
    writer.write_step(1, graded(groups[1], "A"))
    assert writer.finish().manifest["grader"]["isolation"] == "A+B"
    again = PoolWriter(directory, header=header("A"))
    again.write_step(2, graded(groups[2], "A"))
    assert again.finish().manifest["grader"]["isolation"] == "A+B"


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *args: str) -> str:
    """The one error line of a regrade that must exit with 2 and write nothing."""
    lines = call(capsys, tmp_path, *args, code=2).splitlines()
    errors = [line for line in lines if line.startswith("probe: error:")]
    assert len(errors) == 1, f"not one line: {lines}"
    return errors[0]


def test_what_cannot_be_regraded_is_refused(
    capsys: pytest.CaptureFixture[str], groups: list[list[Rollout]], write_pool: Callable[..., Pool], tmp_path: Path
) -> None:
    """Unknown pool, absent file, a file of other problems under other or the same ids, another mode, a damaged pool."""
    path = write_pool(groups).path
    assert "only" in refused(capsys, tmp_path, "nowhere")
    assert "absent.jsonl" in refused(capsys, tmp_path, "old", "--problems", str(tmp_path / "absent.jsonl"))
    line = refused(capsys, tmp_path, "old", "--problems", str(TEN))
    assert f"expected problem {groups[0][0].problem_id} in leetcode" in line
    rows = [json.loads(text) for text in TEN.read_text().splitlines()]
    for row, group in zip(rows, groups, strict=False):
        row["id"] = group[0].problem_id
    same_ids = tmp_path / "same_ids.jsonl"
    same_ids.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "found another problem" in refused(capsys, tmp_path, "old", "--problems", str(same_ids))
    assert "run_tests, as recorded" in refused(capsys, tmp_path, "old", "--mode", "sentinel")
    damaged = path / "step_001.jsonl.gz"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert "step_001.jsonl.gz" in refused(capsys, tmp_path, "old")
    assert not (tmp_path / "out" / "pools" / "new").exists()


def test_a_name_in_use_is_refused(
    capsys: pytest.CaptureFixture[str], groups: list[list[Rollout]], write_pool: Callable[..., Pool], tmp_path: Path
) -> None:
    """Neither another pool nor the source itself is overwritten."""
    write_pool(groups)
    before = contents(write_pool(groups, "new").path)
    for source in ("old", "new"):
        assert "choose another --name" in refused(capsys, tmp_path, source)
    assert contents(tmp_path / "out" / "pools" / "new") == before
